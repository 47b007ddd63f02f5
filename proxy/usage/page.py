"""docs/reference/records.md, made from the columns.

python -m kafka_throttle.proxy.usage.page > docs/reference/records.md
"""

import json
import textwrap
from dataclasses import fields

from kafka_throttle.proxy.usage.shipper import LONGEST_BYTES
from kafka_throttle.quotas.records.topic_message import message_of
from kafka_throttle.quotas.records.trace import Operation
from kafka_throttle.quotas.records.usage_record import (
    VERSION,
    Dropped,
    End,
    Header,
    Row,
    TraceEvent,
    UsageRecord,
    columns,
    line_of,
)

_INTRODUCTION = """# Usage records and the trace

Generated from `quotas/records/usage_record.py` and `quotas/records/trace.py` by `python -m
kafka_throttle.proxy.usage.page > docs/reference/records.md`; a test checks that it is up to date.

With `usage.directory` set, the proxy records what every client uses: one record for each (virtual cluster, node,
user, client-id, quota type) and window of `usage.window_s` seconds in which there was any use, whether or not a quota
binds the client. Windows begin at multiples of their length by the wall clock; the last one ends with the process.
Without a directory nothing is recorded.

```yaml
usage:
  directory: spool        # mode 0700; created if it is missing
  instance: proxy-1       # unique among all proxies that are read together; default: the name of the host
  window_s: 10
```

All settings: [configuration.md](configuration.md). Metrics begin with `kafka_throttle_usage_`.

## What counts

- **Sums are exact.** `in_bytes` are the bytes that were read from clients' sockets, `out_bytes - unsent_bytes` those
  that were written to them, to the byte. They include length prefixes, the responses that the proxy gives itself,
  frames before a login (with an empty user), and the received part of frames that were cut by the end of a connection.
  With TLS the bytes inside of it count. Not counted are PROXY headers, TLS handshakes, and bytes that a kernel still
  held when a connection was lost, which only that kernel knows. With TLS, bytes count as written once they are
  encrypted.
- A byte belongs to the client of its request. Bytes behind the last whole request head belong to `request` of the
  client before it. A request, and what a Produce used, counts in the window in which its last byte came; bytes count
  in the window in which they pass. A request that is cut by the end of its connection counts at that moment, with
  everything that was counted for it.
- `used` is what the quota counts. For produce these are request sizes, for fetch response sizes, both as brokers
  measure them. For request it is ms of handler time of all requests of the client: as charged while there is a request
  quota, otherwise what the requests cost by the model of [request time](../proofs/request-time.md). For
  controller_mutation it is the final number of partitions, counted when the response is there, and only while such a
  quota binds the client. For connection it is the number of admitted connections.
- `throttled_ms` is the time by which throttles made mutes longer: where two quotas mute one connection, overlapping
  mutes count once. `backlogged_ms` is the part of it in mutes at whose end the client had already sent something.
- At most 100,000 clients of a virtual cluster are counted separately at a time. Further ones share one
  record for each user, with the client-id `<overflow>`; with very many users they share a single record. Sums stay
  exact.
- A client that reconnects may have two records of one window and type; add them up.

## Files

A file appears when it is complete: `<stream>-<instance>-<epoch>-<number>.tsv`, mode 0600. Until then it has a hidden
name. It is complete after `file_s` or at 64 MiB, and is on the disk by then. Writing never delays
traffic: a thread writes, from a queue of `queue_records`. A failed write is tried again every second. Records that
find no room in the queue are dropped, counted in `kafka_throttle_usage_records_dropped_total`, logged once for each
episode, and reported by a `dropped` line when there is room again. While records cannot be written, `/readyz` has a
remark that says why.

After a file has got its name, the proxy never writes to it again. If it then cannot sync the directory, the file is
complete, but might not survive a crash of the machine: this is logged once (`usage_directory_not_synced`) and counted
as a failed write, and the directory is synced again with the next file. On file systems that cannot sync directories
the proxy does not try. If it cannot sync the file itself, it writes the whole file once more before it tries again.

If the directory, or a file that is not complete, is removed, moved or replaced, the proxy notices that before its next
write. It makes the directory again with mode 0700 (if there is another directory at this path, it changes the mode of
that one, provided that it is empty and belongs to the user of the proxy). Then it begins another file with the same
first record, and copies the records of the old file, which it still has open. The log has `usage_file_written_again`.
If it cannot read the old file any more, a `dropped` line with the reason `file_lost` stands for the lost records.
Complete files that were removed are a gap.

What a reader can verify, for one (instance, epoch, stream):

- Files are numbered from 1, and records too, both without gaps. A missing number is a missing file or record, a
  repeated number is a duplicate. `first_sequence` of a file is `next_sequence` of the one before.
- A gap that a `dropped` line covers was dropped by the proxy, or lost with its file. Any other gap is a file that was
  lost, or that retention has deleted (then the gap is at the beginning, as the oldest files are deleted first).
- `final` in an `end` line says that the epoch is complete. If there is a later epoch of the instance and this one has
  no `final`, its process was killed, and its end is missing: the use of the last `flush_ms` of its header at most (for
  usage: `window_s`), while the machine goes on and the disk takes what is written. If the machine crashes, the last
  file of each stream is missing, too: `file_s`. It cannot be known how many records these were. The
  next process that starts on the directory completes the file that a killed process has left, under the same name; a
  process that already writes there does it within a minute.
- A file that is being written is locked, so that no other process completes it. Where the file system has no locks
  (some network file systems), a file counts as that of a killed process when nothing was written to it for twice
  `file_s` and a minute. If its process runs on after all, it writes the same records again, under the next number.
- While a process that was replaced (SIGUSR2) still serves its connections, it writes records beside the next one, and
  has no `final` yet. Meanwhile the next one marks the ends of its files with `beside`. Only an end without that mark
  proves that the old process has ended; until there is one, the new epoch does not count as a later one. With
  `restart.reuse_port` a process does not know of the other one that still runs: until that one has ended and its last
  file has been read, its end counts as missing.
- A process that is killed before its first record is on disk leaves nothing, not even its epoch.

Files older than `keep_s`, and the oldest files when there are more than `total_mib`, are deleted, but none younger
than an hour. This is logged and counted in `kafka_throttle_usage_files_deleted_total`.

## A Kafka topic

With `usage.kafka`, every line of complete files is also sent to a topic, some seconds after a file is complete:

```yaml
usage:
  directory: spool
  file_s: 60              # the newest lines in the topic are as old as this, and some seconds more
  kafka:
    bootstrap_servers: [kafka-1:9092, kafka-2:9092]
    topic: kafka-throttle-usage
    security_protocol: SASL_SSL     # ca_file, certificate_file, key_file, sasl_mechanism, username and
    sasl_mechanism: SCRAM-SHA-512   # password_file as in upstream.admin
    username: kafka-throttle
    password_file: usage-password
```

- **A message is a line as [JSON with its schema](#a-message).** Its key is its writer, `stream:instance:epoch`, so the
  lines that one process writes of one stream are in one partition, in order. Headers, ends and `dropped` lines are sent
  too: what a reader can verify in files can also be verified in the topic.
- **The spool remains the primary copy.** A separate process, which the proxy starts and which ends with it (some
  50 MB), sends the lines of complete files: in the proxy itself, compressing them would delay clients. When the cluster
  has all lines of a file, that is noted in `.shipped.json` in the spool. If a process is killed before that, the file
  is sent again: its sequence numbers show that, and `usage ingest` takes each record once. Without `.shipped.json` all
  files in the spool are sent.
- **A cluster that is unreachable delays lines and nothing else**: files wait in the spool and are sent, the oldest
  first, when the cluster is back. Sending is tried again after 1 s, then less and less often, at least every 30 s. A
  server that accepts connections and does not respond, also one with TLS, counts as unreachable after 10 s. Files that
  retention deletes before that are lost for the topic: set `keep_s` and `total_mib` for the longest outage. Lost files
  are counted and logged, and their numbers are missing in the topic.
- **A file that cannot be read** delays the later files of its process and stream, and no others. It is tried again,
  and counted as a failure. The same holds for `.shipped.json` and `.shipping.lock`, if this process may not read them
  (another user may own them): nothing is sent until it may, or until they are deleted. A file whose name is not UTF-8
  does not come from a proxy: it is logged once and left alone.
- When the proxy stops, it sends the files that are complete, for 10 s at most. The next start on the spool sends the
  rest.
- Create the topic before:
  `kafka-topics --create --topic kafka-throttle-usage --partitions 6 --config retention.ms=...`.
  A cluster that creates topics automatically creates one with its defaults, also for a misspelled name. Do not use
  `cleanup.policy=compact`: it would keep only the last of all lines with the same key.
  The user needs WRITE and DESCRIBE on the topic (before Kafka 2.8 also IDEMPOTENT_WRITE on the cluster). The topic
  contains names of users and client-ids: restrict who may read it.
- The proxy should not reach this topic through itself: then each record of use would cause further use.

Metrics: `kafka_throttle_usage_shipped_lines_total`, `_shipped_bytes_total`, `_shipped_files_total`,
`_shipping_failures_total`, `_unshipped_files` and `_unshipped_bytes` (how far the topic is behind),
`_files_lost_unshipped_total`, `_lines_unshippable_total` (lines longer than 900 kB, which kafka-throttle never writes).

Spools of proxies without `usage.kafka`, or of hosts that must not connect to the cluster, can be sent by hand or by a
separate service. It uses the same `.shipped.json`, and only one process ships from a spool at a time. Files that root
creates in a spool are given to the owner of the directory:

```
kafka-throttle usage ship --from SPOOL --to-topic TOPIC --bootstrap-server HOST:PORT [--every 10]
    [--kafka-conf security_protocol=SASL_SSL --kafka-conf ssl_cafile=ca.pem --kafka-conf sasl_mechanism=SCRAM-SHA-512
     --kafka-conf sasl_plain_username=NAME --kafka-conf sasl_plain_password=@FILE]
```
"""

_MESSAGE = """
### A message

```
{example}
```

`payload` has the parts of [the line](#a-line) in their order: `version`, `kind`, the columns of that kind, and `crc`,
the checksum of the line. `schema` is Kafka Connect's. A missing value is null. Fields of a later version come before
`crc`. The message has a header whose name is the kind (`usage`, `trace`, `header`, `end` or `dropped`), with an empty
value.

With `(kind, instance, epoch, sequence)` a reader recognises records that it gets twice. Numbers are written as in the
line, so `usage ingest` makes the line again from the values, and its checksum shows that it is the same. Only what
keeps the messages as they are (MirrorMaker, for example) can stand between the proxy and `usage ingest`: JSON in
which numbers were written anew, as `1.0E-7`, goes to the quarantine.

Lines of the spool that are damaged or of a later version than the program that sends them are no JSON: they are sent as
they are, without their line feed. `usage ingest` reads them. Other readers should be able to leave them out, as below.

**Kafka Connect.** This gives a sink connector the usage records, each as a `Struct`. `HasHeaderKey` selects one kind
of messages, because a table has one schema.

```
topics=kafka-throttle-usage
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
value.converter.schemas.enable=true
transforms=select
transforms.select.type=org.apache.kafka.connect.transforms.Filter
transforms.select.predicate=isUsage
transforms.select.negate=true
predicates=isUsage
predicates.isUsage.type=org.apache.kafka.connect.transforms.predicates.HasHeaderKey
predicates.isUsage.name=usage
errors.tolerance=all
errors.deadletterqueue.topic.name=kafka-throttle-usage-unreadable
```

**Flink SQL** names the fields that it wants; tried with Flink 2.0.0 and its Kafka connector 4.0.0-2.0.

```sql
CREATE TABLE kafka_throttle (
  payload ROW<kind STRING, instance STRING, epoch BIGINT, sequence BIGINT, begin_ms BIGINT, `user` STRING,
              client_id STRING, quota_type STRING, used DOUBLE, `limit` DOUBLE>,
  begins AS TO_TIMESTAMP_LTZ(payload.begin_ms, 3)
) WITH (
  'connector' = 'kafka', 'topic' = 'kafka-throttle-usage', 'properties.bootstrap.servers' = 'kafka-1:9092',
  'scan.startup.mode' = 'earliest-offset', 'format' = 'json', 'json.ignore-parse-errors' = 'true'
);
SELECT begins, payload.`user`, payload.used FROM kafka_throttle WHERE payload.kind = 'usage';
```
"""

_LINE = f"""
## A line

Tab-separated UTF-8: the version ({VERSION}), the kind, the columns of that kind in the order below, and the CRC-32 of
everything before the last tab as eight hexadecimal digits. In texts `\\\\`, `\\t`, `\\n`, `\\r` stand for backslash,
tab, line feed, carriage return; `\\N` is a missing value. Numbers are written as Python's `repr` writes them (`-2`,
`0.1`, `1e-07`); `usage ingest` refuses others, such as `+5` or `007`. A later version only adds columns at the end;
`usage ingest` ignores those that it does not know. A line that lacks a column goes to the quarantine.

The version covers columns only. A later proxy may write more numbers at the end of each second of a profile; readers
ignore numbers that they do not know. A table keeps the text as it was written, so a newer pipeline reads all of it.
"""

_TRACE = """
## The trace

`usage.trace.entities` names entities as quotas do. Every operation on their sensors is recorded, in order: on sensors
that measure under these names, or for a quota that is set on exactly this entity (`default_user: true`: all sensors
of that default). Operations beyond 10,000 per second are dropped, counted and reported; from then on the trace of these
sensors is not whole. Without traced entities there is no cost. Done again in their order, the operations give every
throttle time to the millisecond: `tests/quotas/trace_replay.py` does that. With a
[history](operations.md#what-happened-at-0312), `kafka-throttle explain --at` shows the operations of a second.

"""


def usage_page() -> str:
    """The page as Markdown."""
    tables = "".join(map(_table, (UsageRecord, TraceEvent, Header, End, Dropped)))
    reported = "\n".join(line.removeprefix("    ") for line in (Operation.__doc__ or "").splitlines())
    message = _MESSAGE.replace("{example}", _example())
    return f"{_INTRODUCTION}{message}{_LINE}{tables}{_TRACE}{reported.strip()}\n"


def _example() -> str:
    """A message, on several lines."""
    row = Dropped(instance="proxy-1", epoch=5, stream="usage", first_sequence=7, last_sequence=9, reason="no_room")
    form = json.loads(message_of(line_of(row).removesuffix("\n").encode(), LONGEST_BYTES).value)
    schema, payload = textwrap.wrap(json.dumps(form["schema"]), 100), textwrap.wrap(json.dumps(form["payload"]), 100)
    indented = [("\n" + " " * 12).join(lines) for lines in (schema, payload)]
    return f'{{"schema":  {indented[0]},\n "payload": {indented[1]}}}'


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
