"""Usage records in front of a real cluster: their sums are what an observer on the wire has counted, byte for byte."""

import os
import signal
import socket
import subprocess
import sys
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer
from deltalake import DeltaTable
from kafka import KafkaConsumer, KafkaProducer

from kafka_throttle.pipeline.ingest.frames import Frames
from kafka_throttle.pipeline.ingest.summary import gap_lines
from kafka_throttle.pipeline.simulate.candidate import candidate_of
from kafka_throttle.pipeline.table.accounts import Account, Writer, added, lost_ends
from kafka_throttle.pipeline.table.intervals import union
from kafka_throttle.quotas.records.usage_record import Dropped, End, Header, TraceEvent, UsageRecord, read_line
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.restarts import RelayedProxy, is_running
from tests.integration.topics import make_topic
from tests.integration.wire_observer import WireObserver
from tests.pipeline.oracle.simulated_trace import simulate_trace
from tests.quotas.trace_replay import Replay
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S

OBSERVER = "127.0.0.3"
RECORDS = 60
QUOTAS = [{"client_id": "limited", "producer_byte_rate": 5_500, "consumer_byte_rate": 15_000}]
EMPTY = {"fetch": "empty"}
"""A trace has all throttles of fetches only if they do not wait for turns."""


class Observed:
    """A proxy that records, and the observer before it."""

    def __init__(self, cluster, directory, workers=1, throttle=None, **usage):
        self.directory = directory
        usage = {"directory": str(directory), "window_s": 1, "file_s": 1, "instance": "here", **usage}
        listener = {"advertised_host": OBSERVER}
        settings = {"usage": usage, "listener": listener, "throttle": throttle or {}}
        self.proxy = ProxyProcess(cluster, QUOTAS, workers=workers, **settings)
        self.observer = WireObserver(OBSERVER, HOST, self.proxy.ports)
        self.bootstrap = f"{OBSERVER}:{self.proxy.port}"

    def __enter__(self):
        self.observer.__enter__()
        self.proxy.__enter__()
        return self

    def __exit__(self, kind, error, trace):
        try:
            self.proxy.__exit__(kind, error, trace)
        finally:
            self.observer.__exit__(kind, error, trace)

    def clients_are_gone(self):
        self.proxy.wait_for(lambda: not self.observer.open, TIMEOUT_S, "the end of all connections")

    @property
    def files(self):
        """The rows of complete files, the first written first."""
        paths = sorted(self.directory.glob("usage-*.tsv"), key=lambda path: path.name)
        return [list(map(read_line, path.read_text().splitlines(keepends=True))) for path in paths]


def records_of(files, epoch=None):
    rows = [row for rows in files for row in rows if isinstance(row, UsageRecord)]
    return [row for row in rows if epoch in (None, row.epoch)]


def wire_sums(records):
    return sum(row.in_bytes for row in records), sum(row.out_bytes - row.unsent_bytes for row in records)


def produce_and_consume(bootstrap, topic, client_id="limited"):
    """kafka-python and confluent-kafka, each both ways."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, client_id=client_id, linger_ms=0)
    for _ in range(RECORDS):
        producer.send(topic, bytes(1000))
    producer.flush()
    producer.close()
    other = Producer({"bootstrap.servers": bootstrap, "client.id": "free", "acks": "all"})
    for _ in range(RECORDS):
        other.produce(topic, bytes(2000))
    assert other.flush(TIMEOUT_S) == 0
    del other
    consumer = KafkaConsumer(
        topic, bootstrap_servers=bootstrap, client_id=client_id, auto_offset_reset="earliest", enable_auto_commit=False
    )
    read = 0
    while read < 2 * RECORDS:
        read += sum(map(len, consumer.poll(timeout_ms=1000).values()))
    consumer.close()
    second = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "free",
            "group.id": uuid4().hex,
            "auto.offset.reset": "earliest",
        }
    )
    second.subscribe([topic])
    found = 0
    while found < 2 * RECORDS:
        found += len(second.consume(100, timeout=1))
    second.close()


def accounts_of_spool(directory):
    """What an ingest of the spool notes of headers, ends and records."""
    found, numbers = Frames(), {}
    paths = sorted(directory.glob("*.tsv"))
    for path in paths:
        for line in path.read_text().splitlines():
            row = read_line(line)
            if isinstance(row, UsageRecord | TraceEvent):
                numbers.setdefault(Writer(row.KIND, row.instance, row.epoch), []).append((row.sequence, row.sequence))
            else:
                assert found.take(line, str(path)) == ""
    found.incomplete(map(str, paths))
    return added(found.accounts, {writer: Account(union(present)) for writer, present in numbers.items()})


def assert_nothing_is_missing(files):
    """The numbers of one epoch's files and records follow each other."""
    following = 1
    for number, rows in enumerate(files, 1):
        header, *found, end = rows
        assert isinstance(header, Header)
        assert isinstance(end, End)
        assert (header.file, header.first_sequence) == (number, following)
        assert not any(isinstance(row, Dropped) for row in found)
        assert [row.sequence for row in found] == list(range(following, following + len(found)))
        following = end.next_sequence
        assert (end.records, following) == (len(found), header.first_sequence + len(found))


@pytest.mark.timeout(240)
def test_sums_are_what_crossed_the_wire_and_a_killed_proxy_loses_only_its_end(newest_kafka, tmp_path):
    make_topic(newest_kafka.bootstrap_servers, topic := f"usage-{uuid4().hex}")
    with Observed(newest_kafka, tmp_path / "spool") as observed:
        proxy, observer = observed.proxy, observed.observer
        produce_and_consume(observed.bootstrap, topic)
        observed.clients_are_gone()
        before = observer.counts
        proxy.wait_for(lambda: wire_sums(records_of(observed.files)) == before, TIMEOUT_S, "records of all of it")
        killed = KafkaProducer(bootstrap_servers=observed.bootstrap, client_id="limited")
        killed.send(topic, bytes(10)).get(TIMEOUT_S)
        os.kill(proxy.pid, signal.SIGKILL)
        proxy.wait_for_exit()
        killed.close(timeout=0)
        lost_at_most = observer.counts
        first = observed.files
        [epoch] = {rows[0].epoch for rows in first}

        proxy.start()
        observer.to_proxy = observer.from_proxy = 0
        produce_and_consume(observed.bootstrap, topic)
        observed.clients_are_gone()
        proxy.stop()
        files = observed.files
        earlier = [rows for rows in files if rows[0].epoch == epoch]
        later = [rows for rows in files if rows[0].epoch != epoch]
        assert earlier[: len(first)] == first
        assert_nothing_is_missing(earlier)
        assert_nothing_is_missing(later)
        assert [rows[-1].final for rows in earlier] == [0] * len(earlier)
        assert [rows[-1].final for rows in later] == [0] * (len(later) - 1) + [1]
        for found, least, most in zip(wire_sums(records_of(earlier)), before, lost_at_most, strict=True):
            assert least <= found <= most
        assert wire_sums(records_of(later)) == observer.counts

        records = records_of(files)
        numbers = [(row.epoch, row.sequence) for row in records]
        assert len(set(numbers)) == len(numbers)
        limited = [row for row in records if row.client_id == "limited" and row.quota_type == "produce"]
        assert {(row.user, row.limit, row.rule) for row in limited} == {("ANONYMOUS", 5_500.0, "client-id=limited")}
        assert sum(row.throttles for row in limited) > 0
        assert sum(row.throttled_ms for row in limited) > 0
        assert sum(row.used for row in limited) == sum(row.in_bytes - 4 * row.requests for row in limited)
        connections = [row for row in records if row.quota_type == "connection"]
        assert {row.ip for row in connections} == {HOST}
        assert list((tmp_path / "spool").glob(".*")) == []
        assert {rows[0].flush_ms for rows in files} == {1000}
        accounts = accounts_of_spool(observed.directory)
        [lost] = lost_ends(accounts)
        assert lost == (Writer("usage", "here", epoch), later[0][0].epoch, 1000)
        [told] = gap_lines(accounts)
        assert told.startswith(f"missing: usage of here, epoch {epoch}: its end, ")
        assert "the use of its last 1 s at most" in told


@pytest.mark.timeout(240)
def test_a_directory_that_goes_and_is_made_anew_under_the_proxy_costs_no_record(newest_kafka, tmp_path):
    make_topic(newest_kafka.bootstrap_servers, topic := f"usage-{uuid4().hex}")
    with Observed(newest_kafka, tmp_path / "spool") as observed:
        producer = KafkaProducer(bootstrap_servers=observed.bootstrap, client_id="free", linger_ms=0)
        for number in range(3):
            producer.send(topic, bytes(1000)).get(TIMEOUT_S)
            before = len(observed.files)
            observed.proxy.wait_for(lambda: len(observed.files) > before, TIMEOUT_S, "a complete file")  # noqa: B023
            observed.directory.rename(tmp_path / f"kept-{number}")
            if number == 1:
                observed.directory.mkdir(mode=0o755)
            producer.send(topic, bytes(1000)).get(TIMEOUT_S)
            observed.proxy.wait_for(lambda: observed.files, TIMEOUT_S, "files again")
        producer.close()
        observed.clients_are_gone()
        observed.proxy.stop()
        assert observed.directory.stat().st_mode & 0o777 == 0o700
        everywhere = [*tmp_path.glob("kept-*"), observed.directory]
        paths = sorted((path for folder in everywhere for path in folder.glob("*.tsv")), key=lambda path: path.name)
        files = [list(map(read_line, path.read_text().splitlines(keepends=True))) for path in paths]
        assert_nothing_is_missing(files)
        assert files[-1][-1].final == 1
        assert wire_sums(records_of(files)) == observed.observer.counts
        missing = [number for first, last in next(iter(accounts_of_spool(observed.directory).values())).gaps
                   for number in range(first, last + 1)]  # fmt: skip
        gone = records_of([rows for path, rows in zip(paths, files, strict=True) if path.parent != observed.directory])
        assert missing == [row.sequence for row in gone]


@pytest.mark.timeout(120)
def test_a_process_that_another_one_replaces_is_no_loss_even_while_it_still_serves(newest_kafka, tmp_path):
    make_topic(newest_kafka.bootstrap_servers, topic := f"usage-{uuid4().hex}")
    spool = tmp_path / "spool"
    usage = {"directory": str(spool), "window_s": 1, "file_s": 1, "instance": "here"}
    with RelayedProxy(newest_kafka, QUOTAS, usage=usage, limits={"drain_s": 15}) as proxy:

        def ends():
            return [read_line(path.read_text().splitlines(keepends=True)[-1]) for path in sorted(spool.glob("usage-*"))]

        def use_until(condition, what):
            def is_so():
                producer.send(topic, bytes(10)).get(TIMEOUT_S)
                return condition()

            proxy.wait_for(is_so, TIMEOUT_S, what)

        producer = KafkaProducer(bootstrap_servers=proxy.bootstrap, client_id="first")
        use_until(ends, "records of the first process")
        producer.close()
        with socket.create_connection((HOST, proxy.port)) as busy:
            busy.sendall(b"\0\0\0\x40\0")  # a request of which the rest does not come
            proxy.wait_for(lambda: proxy.metric("client_sockets") == 1, TIMEOUT_S, "the connection")
            proxy.take_over()
            replaced, successor = proxy.pids
            producer = KafkaProducer(bootstrap_servers=proxy.bootstrap, client_id="second")
            use_until(lambda: len({end.epoch for end in ends()}) == 2, "records of the second process")
            found, accounts = ends(), accounts_of_spool(spool)
            assert is_running(replaced)
        first, second = sorted({end.epoch for end in found})
        assert {end.final for end in found if end.epoch == first} == {0}, "it still serves"
        assert {end.beside for end in found if end.epoch == second} == {1}
        assert lost_ends(accounts) == []
        proxy.wait_for(lambda: not is_running(replaced), TIMEOUT_S, "the end of the first process")
        use_until(lambda: ends()[-1].beside == 0, "an end of the second process alone")
        assert [end.final for end in ends() if end.epoch == first][-1] == 1
        assert lost_ends(accounts_of_spool(spool)) == []
        os.kill(successor, signal.SIGKILL)
        proxy.wait_for(lambda: not is_running(successor), TIMEOUT_S, "the end of the second process")
        producer.close(timeout=0)
        assert lost_ends(accounts_of_spool(spool)) == [], "the latest epoch"
        proxy.start()
        proxy.stop()
        assert [lost.writer for lost in lost_ends(accounts_of_spool(spool))] == [Writer("usage", "here", second)]


@pytest.mark.timeout(120)
def test_a_trace_of_real_traffic_is_replayed_to_the_millisecond(newest_kafka, tmp_path):
    make_topic(newest_kafka.bootstrap_servers, topic := f"usage-{uuid4().hex}")
    trace = {"entities": [{"client_id": "limited"}]}
    with Observed(newest_kafka, tmp_path / "spool", throttle=EMPTY, trace=trace) as observed:
        produce_and_consume(observed.bootstrap, topic)
        observed.clients_are_gone()
        observed.proxy.stop()
        replay, events = Replay(1000), []
        for path in sorted(observed.directory.glob("trace-*.tsv")):
            for row in map(read_line, path.read_text().splitlines(keepends=True)):
                if isinstance(row, TraceEvent):
                    assert (replay.apply(row), row) == (row.throttle_ms, row)
                    events.append(row)
    assert {event.client_id for event in events} == {"", "limited"}
    assert sum(event.throttle_ms > 0 for event in events) > 0
    assert {"open", "charge", "charge_if_within"} <= {event.operation for event in events}
    used = {"produce": 0.0, "fetch": 0.0}
    for event in events:
        taken_back = event.operation == "charge_if_within" and event.throttle_ms
        if event.operation in ("charge", "run", "charge_if_within") and not taken_back:
            used[event.quota_type] += event.value
    records = [row for row in records_of(observed.files) if row.client_id == "limited"]
    for quota_type, value in used.items():
        assert value == sum(row.used for row in records if row.quota_type == quota_type)


def kafka_throttle_usage(*arguments):
    command = [sys.executable, "-m", "proxy", "usage", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=10 * TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.spark
@pytest.mark.nightly
def test_the_table_has_what_crossed_the_wire_and_the_same_quotas_would_do_the_same(newest_kafka, tmp_path):
    make_topic(newest_kafka.bootstrap_servers, topic := f"usage-{uuid4().hex}")
    trace = {"entities": [{"client_id": "limited"}]}
    with Observed(newest_kafka, tmp_path / "spool", throttle=EMPTY, trace=trace) as observed:
        produce_and_consume(observed.bootstrap, topic)
        observed.clients_are_gone()
        observed.proxy.stop()
        counts = observed.observer.counts
    table = tmp_path / "table"
    for _ in range(2):  # the second time all of it is there
        kafka_throttle_usage("ingest", "--from", observed.directory, "--table", table, "--once")
    rows = DeltaTable(table / "usage").to_pyarrow_table(columns=["in_bytes", "out_bytes", "unsent_bytes"])
    in_bytes, out_bytes, unsent_bytes = map(sum, rows.to_pydict().values())
    assert (in_bytes, out_bytes - unsent_bytes) == counts
    assert kafka_throttle_usage("gaps", "--table", table).strip() == "no record is missing"

    lines = [line for path in observed.directory.glob("trace-*.tsv") for line in path.read_text().splitlines()]
    events = [row for row in map(read_line, lines) if isinstance(row, TraceEvent)]
    reported = {}
    for sensor in simulate_trace(events, candidate_of({"entries": QUOTAS, "throttle": EMPTY})):
        reported |= sensor.reported
    assert any(reported.values())
    assert reported == {event.sequence: event.throttle_ms for event in events if event.sequence in reported}
