"""docs/usage.md, made from the columns: python -m proxy.usage.page > docs/usage.md."""

from dataclasses import fields

from quotas.records.trace import Operation
from quotas.records.usage_record import VERSION, Dropped, End, Header, Row, TraceEvent, UsageRecord, columns

_INTRODUCTION = f"""# Usage records and the trace

Made from `quotas/records/usage_record.py` and `quotas/records/trace.py` by `python -m
proxy.usage.page > docs/usage.md`; a test keeps it in step.

With `usage.directory` set, the proxy writes down what every client uses: one record for each (virtual cluster, node,
user, client-id, quota type) and window of `usage.window_s` seconds in which there was any use, whether a quota binds
it or not. Windows begin at multiples of their length by the wall clock; the last one ends with the process. It is off
without a directory.

```yaml
usage:
  directory: spool        # mode 0700; made if it is missing
  instance: proxy-1       # no two proxies that are read together may have one name; default: the host's
  window_s: 10
```

All settings: [configuration.md](configuration.md). Metrics begin with `kafka_throttle_usage_`.

## What counts

- **Sums are exact.** `in_bytes` is what was read from clients' sockets, `out_bytes - unsent_bytes` what was written
  to them, to the byte: length prefixes, what the proxy answers by itself, frames before a login (with the user as it
  was then: none) and frames that were cut by the end of a connection included, so far as they came. With TLS it is
  what is inside. Not counted: PROXY headers, handshakes, and what a kernel still held when a connection was lost:
  nobody but that kernel knows. Over TLS, what was encrypted counts as written.
- A byte belongs to the client of its request; what came behind the last whole request head belongs to `request` of
  the client before it. A request, and what a Produce used, counts in the window in
  which its last byte came, bytes in the window in which they pass. One that is cut by the end of a
  connection counts then, with what came of it.
- `used` is what the quota counts: for produce request sizes, for fetch answer sizes, both as brokers have them; for
  request, ms of handler time of all its requests (as charged while a request quota is on, else what such requests
  cost by the model of [request-time.md](request-time.md)); for controller_mutation partitions in the end, when the
  answer is there, and only while such a quota binds the client; for connection those that were admitted.
- `throttled_ms` is by how much throttles prolonged mutes, so that mutes of one connection by two quotas are not
  counted twice. `backlogged_ms` is the part of it in mutes at whose end the client had already sent something.
- There are `usage.max_clients` clients at most in a virtual cluster at a time; those beyond are one record of their
  user with the client-id `<overflow>`, and with very many users one in all. Sums stay exact.
- A client that reconnects may have two records of one window and type; add them up.

## Files

A file appears when it is complete: `<stream>-<instance>-<epoch>-<number>.tsv`, mode 0600, written before under a
hidden name. It is complete after `file_s` or `file_mib`; with `fsync` it is on the disk by then. Nothing of this ever
holds up traffic: a thread writes, from a queue of `queue_records`. If the disk takes nothing it is tried again every
second; what finds no room is dropped, counted in `kafka_throttle_usage_records_dropped_total`, logged once an
episode, and told by a `dropped` line when there is room again.

What a reader can prove, for one (instance, epoch, stream):

- Files are numbered from 1, records too, both without gaps: a number that is missing is missing, one that is there
  twice is doubled. `first_sequence` of a file is `next_sequence` of the one before.
- A gap that a `dropped` line covers was dropped by the proxy; any other gap is a file that was lost, or that
  retention has deleted (then it is at the beginning: always the oldest go).
- `final` in an `end` says that the epoch is complete. If a later epoch of the instance is there and this one has no
  `final`, its end is missing: at most what was used since the last window that was on disk when the process was
  killed. How many records that were cannot be known. What a killed process had on disk is completed by the next one
  that starts on the directory, with its own number.

Files older than `keep_s`, and the oldest when there are more than `total_mib`, are deleted, none younger than
`keep_at_least_s`; each time with a log line and in `kafka_throttle_usage_files_deleted_total`.

## A Kafka topic

With `usage.kafka` a topic gets every line of complete files, too, some seconds after a file is complete:

```yaml
usage:
  directory: spool
  file_s: 60              # as old the newest lines in the topic may be, and some seconds more
  kafka:
    bootstrap_servers: [kafka-1:9092, kafka-2:9092]
    topic: kafka-throttle-usage
    security_protocol: SASL_SSL     # ca_file, certificate_file, key_file, sasl_mechanism, username and
    sasl_mechanism: SCRAM-SHA-512   # password_file as in upstream.admin
    username: kafka-throttle
    password_file: usage-password
```

- **A message is a line**, without its line feed. Its key is its writer, `stream:instance:epoch`, so all that one
  process writes of one stream is in one partition, in order. Headers, ends and `dropped` lines come, too: what a reader
  can prove of files he can prove of the topic.
- **The spool stays what counts.** The topic is given what is in files, by a process of its own that the proxy starts
  beside itself (some 50 MB) and that ends with it: packing takes time that clients would feel. When the cluster has
  all of a file, that is noted in `.shipped.json` in the spool. If anybody is killed before, the file is sent again: its
  numbers tell that, and `usage ingest` takes each record once. Without that note all files that are there are sent.
- **A cluster that is away costs nothing but time**: files wait in the spool and are sent, the oldest first, when it is
  back; tried again after 1 s, then ever more seldom, at least every 30 s. A server that takes connections and says
  nothing, over TLS, too, is one that is away after 10 s. Files that retention deletes before that are lost for the
  topic: set `keep_s` and `total_mib` for the longest outage. It is counted and logged; a reader of the topic finds
  their numbers missing.
- **A file that cannot be read** holds up those of its process and stream that follow, and no other; it is tried again,
  and counted as a failure. So are `.shipped.json` and `.shipping.lock`, if this process may not read them (they were
  somebody else's, perhaps): nothing is sent until it may, or until they are deleted. A file whose name is not UTF-8 is
  no proxy's: it is logged once and left alone.
- At the end of the proxy what is complete by then is sent, for 10 s at most; the next start on the spool sends the
  rest.
- Make the topic before: `kafka-topics --create --topic kafka-throttle-usage --partitions 6 --config retention.ms=...`;
  a cluster that makes topics by itself makes one with its defaults, also where the name is misspelled. Not with
  `cleanup.policy=compact`: of lines with the same key only the last would stay.
  The user needs WRITE and DESCRIBE on it (before Kafka 2.8 IDEMPOTENT_WRITE on the cluster, too). It gets names of
  users and client-ids: let nobody read it who may not know them.
- It should not be reached through this proxy: then each record of use would be use.

Metrics: `kafka_throttle_usage_shipped_lines_total`, `_shipped_bytes_total`, `_shipped_files_total`,
`_shipping_failures_total`, `_unshipped_files` and `_unshipped_bytes` (how far the topic is behind),
`_files_lost_unshipped_total`, `_lines_unshippable_total` (longer than 900 kB: none of ours).

Spools of proxies without `usage.kafka`, or of hosts that the cluster is not to see, can be sent by hand or by a service
of its own; it keeps the same notes, and only one ships from a spool at a time. What root leaves in a spool belongs to
the directory's owner:

```
kafka-throttle usage ship --from SPOOL --to-topic TOPIC --bootstrap-server HOST:PORT [--every 10]
    [--kafka-conf security_protocol=SASL_SSL --kafka-conf ssl_cafile=ca.pem --kafka-conf sasl_mechanism=SCRAM-SHA-512
     --kafka-conf sasl_plain_username=NAME --kafka-conf sasl_plain_password=@FILE]
```

## A line

Tab-separated UTF-8: version ({VERSION}), kind, the columns of that kind in this order, CRC-32 of all before the last
tab as eight hexadecimal digits. In texts `\\\\`, `\\t`, `\\n`, `\\r` stand for backslash, tab, line feed, carriage
return; `\\N` is a value that is not there. A later version only adds columns at the end.
The version tells of columns alone. A second of a profile may get more numbers behind its last one, and readers leave
out what they do not know. The first readers of profiles did not: they take one with requests and throttles in it as one
that cannot be read, so their windows as even, and another version in front would not have helped them. A table keeps
the text as it was written, so a newer pipeline reads all of it.
"""

_TRACE = """
## The trace

`usage.trace.entities` names entities as quotas do; every operation on their sensors is told, in order: on sensors
that measure under these names, or for a quota that is set on exactly this entity (`default_user: true`: all sensors
of that default). Beyond `events_per_second` operations are dropped, counted and told; from then on a replay of these
sensors is not exact. Where nothing is traced it costs nothing. `quotas.records.trace.Replay` does the same again, and
gives every throttle time to the millisecond.

"""


def usage_page() -> str:
    """The page as Markdown."""
    tables = "".join(map(_table, (UsageRecord, TraceEvent, Header, End, Dropped)))
    reported = "\n".join(line.removeprefix("    ") for line in (Operation.__doc__ or "").splitlines())
    return f"{_INTRODUCTION}{tables}{_TRACE}{reported.strip()}\n"


def _table(row: type[Row]) -> str:
    kinds = columns(row)
    lines = [f"\n### `{row.KIND}`: {(row.__doc__ or '').splitlines()[0]}\n\n"]
    lines.append("| column | type | unit | meaning |\n| --- | --- | --- | --- |\n")
    for column in fields(row):
        kind, optional = kinds[column.name]
        kind_text = f"{kind.__name__} or `\\N`" if optional else kind.__name__
        cells = (f"`{column.name}`", kind_text, column.metadata["unit"], column.metadata["about"])
        lines.append(f"| {' | '.join(cells)} |\n")
    return "".join(lines)


if __name__ == "__main__":
    print(usage_page(), end="")
