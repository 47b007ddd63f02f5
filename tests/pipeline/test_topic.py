"""A Kafka topic into a table: what the spool would have given, whatever else is in the topic, whoever is killed."""

import random
import re
import subprocess
import sys
import threading
import time
from uuid import uuid4

import pytest
from click.testing import CliRunner
from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import KafkaAdminClient, NewTopic

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.pipeline.ingest.frames import Frames
from kafka_throttle.pipeline.ingest.ingest import Batch, Ingest
from kafka_throttle.pipeline.ingest.rules import NO_VALUE
from kafka_throttle.pipeline.ingest.topic import Topic, lines_of, problem_of_topic
from kafka_throttle.pipeline.jobs.ingest import ingest_spool, ingest_topic
from kafka_throttle.pipeline.table.accounts import Account, Writer, read_accounts
from kafka_throttle.pipeline.table.table import read_quarantine, read_usage
from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.usage.kafka_topic import KafkaTopic
from kafka_throttle.proxy.usage.shipper import LONGEST_BYTES, Shipper, TopicUnavailable
from kafka_throttle.quotas.records.topic_message import message_of
from kafka_throttle.quotas.records.usage_record import Dropped, UsageRecord, line_of
from tests.integration import logins
from tests.integration.certified import Certificates
from tests.integration.proxy_process import ProxyProcess
from tests.pipeline.killed import kill
from tests.pipeline.spools import Fleet, end_of, header_of, records, write_spool
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S
from tests.support.topic_messages import line_in, row_in

PARTITIONS = 3
WRITER = Writer("usage", "proxy-1", Fleet().epoch)
NEVER_MS = 2**62
KINDS = {"header", "usage", "end"}


def test_lines_that_come_one_by_one_say_whose_they_are():
    dropped = Dropped(instance="here", epoch=5, stream="usage", first_sequence=7, last_sequence=9, reason="no_room")
    end = end_of(header_of("usage", "here", 5, 1, 1), 6, 10)
    found = Frames()
    texts = [line_of(dropped), line_of(end), "hello", ""]
    reasons = [found.take(text, f"records-2@{offset}") for offset, text in enumerate(texts)]
    assert found.incomplete(()) == []
    assert found.accounts == {Writer("usage", "here", 5): Account((), ((7, 9),), 9, alone=True)}
    assert reasons == ["", "", "the checksum is wrong", "the checksum is wrong"]


@pytest.mark.parametrize(("first", "last"), [(-1, 5), (1, 2**48 + 1), (2**63 - 1, 2**63 - 1)])
def test_numbers_that_no_proxy_has_are_refused(first, last):
    """Anybody who may write to a topic can send them, and nobody could add to them within 64 bits."""
    dropped = Dropped(
        instance="here", epoch=5, stream="usage", first_sequence=first, last_sequence=last, reason="no_room"
    )
    found = Frames()
    assert re.match(
        r"(first|last)_sequence: expected a number from 0 to 281474976710656, got ", found.take(line_of(dropped), "x")
    )
    assert found.accounts == {}


def test_what_spark_says_about_a_topic_is_said_shortly():
    refused = "x\norg.apache.kafka.common.errors.SaslAuthenticationException: Authentication failed\n\tat y"
    assert problem_of_topic(ValueError(refused)) == "SaslAuthenticationException: Authentication failed"
    assert problem_of_topic(ValueError("[PATH_NOT_FOUND] something else")) == ""


def message(text):
    return message_of(text.encode(), LONGEST_BYTES).value.decode()


def rows_of(spark, table):
    rows = read_usage(spark, table).drop("day").collect()
    return sorted((UsageRecord(**row.asDict()) for row in rows), key=lambda row: (row.epoch, row.sequence))


def test_messages_in_any_order_and_number_are_taken_once_and_the_rest_is_put_aside(spark, tmp_path):
    mine = records(Fleet(), 60)
    texts = [line_of(row).rstrip("\n") for row in mine]
    end = end_of(header_of(*WRITER, 1, 1), 60, 64)
    messages = [
        *texts[:40],
        texts[3],
        "hello",
        NO_VALUE,
        texts[5].replace("1", "2", 1),
        *texts[30:],
        line_of(end).rstrip(),
    ]
    whole = [message(text) for text in messages]
    cut = message(texts[0])[:-1]
    rows = [(text, f"records-0@{offset}", 0) for offset, text in enumerate([*whole, cut])]
    table = str(tmp_path / "table")
    messages = spark.createDataFrame(rows, "message string, file string, block long").repartition(3, "message")
    lines = lines_of(messages).localCheckpoint()  # a batch of a stream is a plan by itself, too
    outcome = Ingest(spark, table).take(Batch("query", 0, lines, (), NEVER_MS))
    assert outcome.counts["usage records"] == 60
    assert outcome.counts["usage duplicates"] == 11
    assert rows_of(spark, table) == mine
    assert read_accounts(spark, table)[WRITER] == Account(((1, 60),), (), 63, alone=True)
    rejected = read_quarantine(spark, table).collect()
    assert cut[cut.index('"payload"') :][:1_000] in {row.text for row in rejected}
    put_aside = sorted((row.file, row.line, row.reason) for row in rejected)
    assert put_aside == [
        ("records-0@41", None, "the checksum is wrong"),
        ("records-0@42", None, "the message has no value"),
        ("records-0@43", None, "the checksum is wrong"),
        (f"records-0@{len(rows) - 1}", None, "the JSON is not that of a line, or was changed"),
    ]


# ------------------------------------------------------------- a real cluster


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def cluster(certificates):
    """One node, with a listener for SASL over TLS beside the plain one."""
    listener = logins.LISTENER

    def secured(node_id):
        return {**logins.secured(node_id), **certificates.of_nodes(node_id, listener, "none")}

    with KafkaCluster("4.3.1", "kraft", 1, listeners={listener: "SASL_SSL"}, extra=secured) as running:
        logins.add_scram_users(running.bootstrap_servers)
        yield running


def make_topic(cluster, name, partitions):
    admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
    admin.create_topics([NewTopic(name, num_partitions=partitions, replication_factor=1)])
    admin.close()
    return name


def messages_in(cluster, topic):
    """Key, value, partition and offset of all that is in a topic."""
    consumer = KafkaConsumer(bootstrap_servers=cluster.bootstrap_servers, auto_offset_reset="earliest")
    places = [TopicPartition(topic, partition) for partition in range(PARTITIONS)]
    consumer.assign(places)
    count = sum(consumer.end_offsets(places).values())
    found = []
    while len(found) < count:
        found += [message for some in consumer.poll(timeout_ms=1000).values() for message in some]
    consumer.close()
    return found


QUICK = {"max_block_ms": 10_000, "request_timeout_ms": 3_000, "delivery_timeout_ms": 10_000}


def until_shipped(shipper):
    deadline = time.monotonic() + TIMEOUT_S
    while True:
        try:
            return shipper.ship()
        except TopicUnavailable:
            assert time.monotonic() < deadline


@pytest.mark.kafka
@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_a_cluster_that_goes_away_has_all_lines_when_it_is_back(cluster, tmp_path):
    name = make_topic(cluster, f"records-{uuid4().hex}", PARTITIONS)
    paths = write_spool(tmp_path, records(Fleet(), 200), per_file=50)
    topic = KafkaTopic(name, {"bootstrap_servers": cluster.bootstrap_servers.split(","), **QUICK})
    shipper = Shipper(tmp_path, topic, lambda totals: totals.files == 1 and cluster.kill(1))
    with pytest.raises(TopicUnavailable, match=name):
        shipper.ship()
    assert shipper.totals.waiting_files == 3
    threads = threading.active_count()
    cluster.restart(1)
    until_shipped(Shipper(tmp_path, topic))
    topic.close()
    assert threading.active_count() <= threads
    sent = messages_in(cluster, name)
    assert {message.key for message in sent} == {b"usage:proxy-1:%d" % WRITER.epoch}
    [partition] = {message.partition for message in sent}
    lines = [line for path in paths for line in path.read_bytes().splitlines()]
    in_order = list(dict.fromkeys(line_in(message.value) for message in sent))
    assert in_order == list(dict.fromkeys(lines)), f"partition {partition}"


# --------------------------------------------------------- and one with SASL and TLS


@pytest.fixture
def password_file(tmp_path):
    path = tmp_path / "password"
    path.write_text(logins.PASSWORDS["proxy"] + "\n")
    return path


@pytest.fixture
def shipping_command(cluster, certificates, password_file):
    """`usage ship` as docs/reference/records.md has it: run with the spool and the topic."""

    def ship(spool, name):
        settings = {
            "security_protocol": "SASL_SSL",
            "ssl_cafile": certificates.authority.file,
            "sasl_mechanism": logins.SHA_512,
            "sasl_plain_username": "proxy",
            "sasl_plain_password": f"@{password_file}",
        }
        pairs = [word for key, value in settings.items() for word in ("--kafka-conf", f"{key}={value}")]
        where = ["--from", str(spool), "--to-topic", name, "--bootstrap-server", cluster.bootstrap(logins.LISTENER)]
        return CliRunner().invoke(main, ["usage", "ship", *where, *pairs])

    return ship


@pytest.mark.kafka
@pytest.mark.nightly
@pytest.mark.timeout(240)
def test_a_server_that_stands_still_behind_tls_has_all_lines_when_it_goes_on(cluster, certificates, tmp_path):
    name = make_topic(cluster, f"records-{uuid4().hex}", PARTITIONS)
    paths = write_spool(tmp_path, records(Fleet(), 200), per_file=50)
    who = logins.python(logins.SHA_512, "proxy", logins.PASSWORDS["proxy"])
    tls = {"security_protocol": "SASL_SSL", "ssl_cafile": str(certificates.authority.file)}
    servers = {"bootstrap_servers": cluster.bootstrap(logins.LISTENER).split(",")}
    topic = KafkaTopic(name, {**servers, **who, **tls, **QUICK, "bootstrap_timeout_ms": 3_000})
    shipper = Shipper(tmp_path, topic, lambda totals: totals.files == 1 and cluster.freeze(1))
    try:
        with pytest.raises(TopicUnavailable, match=name):
            shipper.ship()  # on connections that stand
        assert shipper.totals.files == 1
        with pytest.raises(TopicUnavailable, match="Unable to bootstrap"):
            Shipper(tmp_path, topic).ship()
    finally:
        cluster.thaw(1)
    until_shipped(Shipper(tmp_path, topic))
    topic.close()
    lines = [line for path in paths for line in path.read_bytes().splitlines()]
    in_order = list(dict.fromkeys(line_in(message.value) for message in messages_in(cluster, name)))
    assert in_order == list(dict.fromkeys(lines))


@pytest.mark.kafka
@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_records_go_over_tls_with_a_password_into_the_topic_and_out_of_it(
    spark, cluster, certificates, password_file, shipping_command, tmp_path
):
    name = make_topic(cluster, f"records-{uuid4().hex}", PARTITIONS)
    spool = tmp_path / "spool"
    kafka = {
        "bootstrap_servers": cluster.bootstrap(logins.LISTENER).split(","),
        "topic": name,
        "security_protocol": "SASL_SSL",
        "ca_file": str(certificates.authority.file),
        "sasl_mechanism": logins.SHA_512,
        "username": "proxy",
        "password_file": str(password_file),
    }
    record(cluster, spool, kafka)
    # What the proxy had no time for.
    assert shipping_command(spool, name).exit_code == 0
    written = [line for path in spool.glob("*.tsv") for line in path.read_bytes().splitlines()]
    assert {line_in(message.value) for message in messages_in(cluster, name)} == set(written)

    java = {**logins.java(logins.SHA_512, "proxy", logins.PASSWORDS["proxy"]), "security.protocol": "SASL_SSL"}
    (tmp_path / "jaas").write_text(java["sasl.jaas.config"] + "\n")
    java |= {"sasl.jaas.config": f"@{tmp_path / 'jaas'}"}
    java |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(certificates.authority.file)}
    table = tmp_path / "table"
    pairs = [word for key, value in java.items() for word in ("--kafka-conf", f"{key}={value}")]
    command = [*ingest_command(cluster.bootstrap(logins.LISTENER), name, table), *pairs]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, "no record is missing" in done.stdout) == (0, True), done.stderr
    assert logins.PASSWORDS["proxy"] not in done.stdout + done.stderr
    accounts = read_accounts(spark, str(table))
    count = sum(line.split(b"\t")[1] == b"usage" for line in written)
    assert count > 10
    assert [account.present for account in accounts.values()] == [((1, count),)]


def ingest_command(servers, topic, table):
    command = [sys.executable, "-m", "proxy", "usage", "ingest", "--from-topic", topic, "--table", str(table)]
    return [*command, "--bootstrap-server", servers, "--memory", "1g", "--master", "local[2]"]


def some_traffic(bootstrap, topic):
    for client in range(6):
        producer = KafkaProducer(bootstrap_servers=bootstrap, client_id=f"client-{client}")
        for _ in range(20):
            producer.send(topic, bytes(500))
        producer.flush()
        producer.close()


def record(cluster, spool, kafka, starts=1):
    """A proxy with traffic that ships by the settings `usage.kafka`; each of its starts has ended in order."""
    usage = {"directory": str(spool), "window_s": 1, "file_s": 1, "instance": "here", "kafka": kafka}
    data = make_topic(cluster, f"data-{uuid4().hex}", 1)
    with ProxyProcess(cluster, usage=usage, limits={"drain_s": 1}) as proxy:
        some_traffic(proxy.bootstrap, data)
        proxy.wait_for(lambda: proxy.metric("usage_shipped_lines_total") > 10, TIMEOUT_S, "lines in the topic")
        proxy.stop()
        for _ in range(starts - 1):
            proxy.start()
            some_traffic(proxy.bootstrap, data)
            proxy.stop()
        assert not proxy.events("usage_shipping_ended")


def killed_ingest(cluster, topic, table):
    """`usage ingest` that gets SIGKILL when it has begun to write."""
    command = ingest_command(cluster.bootstrap_servers, topic, table)
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=subprocess.STDOUT, start_new_session=True)
    said = []
    reader = threading.Thread(target=lambda: said.extend(process.stdout), daemon=True)
    reader.start()
    deadline = time.monotonic() + 3 * TIMEOUT_S
    # The first commit has made the table.
    try:
        while (
            not list(table.glob("usage/day=*/*.parquet"))
            and not (table / "usage" / "_delta_log" / f"{1:020}.json").exists()
        ):
            assert process.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.01)
    finally:
        kill(process, random.Random(7))


def is_usage(message):
    return row_in(message.value).KIND == "usage"


def in_table(spark, topic, table):
    said = []
    counts = ingest_topic(spark, topic, str(table), say=said.append).counts
    return counts, said


@pytest.mark.kafka
@pytest.mark.timeout(600)
def test_the_topic_gives_what_the_spool_gives_and_nobody_is_counted_twice(kafka_source, cluster, tmp_path):
    spark = kafka_source
    name = make_topic(cluster, f"records-{uuid4().hex}", PARTITIONS)
    spool, servers = tmp_path / "spool", {"bootstrap_servers": cluster.bootstrap_servers.split(",")}
    record(cluster, spool, {**servers, "topic": name}, starts=2)
    Shipper(spool, KafkaTopic(name, servers)).ship()  # what the proxy had no time for
    written = [line for path in spool.glob("*.tsv") for line in path.read_bytes().splitlines()]
    sent = messages_in(cluster, name)
    assert {line_in(message.value) for message in sent} == set(written)
    assert {(message.headers[0][0], row_in(message.value).KIND) for message in sent} == {(kind, kind) for kind in KINDS}
    partitions = {(message.key, message.partition) for message in sent}
    assert len(partitions) == len({key for key, _ in partitions}) == 2, "one partition for each writer"

    table, other = tmp_path / "table", tmp_path / "other"
    topic = Topic(name, cluster.bootstrap_servers)
    killed_ingest(cluster, name, table)
    _, said = in_table(spark, topic, table)
    assert said[-1] == "no record is missing"
    ingest_spool(spark, str(spool), str(other), say=said.append)
    expected = rows_of(spark, str(other))
    assert len(expected) > 20
    assert rows_of(spark, str(table)) == expected
    assert read_accounts(spark, str(table)) == read_accounts(spark, str(other))
    assert read_quarantine(spark, str(table)).count() == 0

    # All of it once more, in other partitions, every other one as a proxy before sent it; and what is none of ours.
    producer = KafkaProducer(bootstrap_servers=cluster.bootstrap_servers)
    for number, message in enumerate(sent):
        value = line_in(message.value) if number % 2 else message.value
        producer.send(name, value, key=message.key, partition=(message.partition + 1) % PARTITIONS)
    producer.flush()
    damaged = next(message.value for message in sent if is_usage(message)).replace(b"here", b"hier")
    values = [b"Dear diary", b"", None, b"\xff\xfe\x00", damaged, b"x" * 300_000]
    at = [producer.send(name, value, key=b"mine", partition=2).get(TIMEOUT_S).offset for value in values]
    producer.close()
    counts, _ = in_table(spark, topic, table)
    again = sum(map(is_usage, sent))
    assert again >= len(expected)
    assert (counts["usage records"], counts["usage duplicates"]) == (0, again)
    assert rows_of(spark, str(table)) == expected
    rows = read_quarantine(spark, str(table)).collect()
    wrong = ["the checksum is wrong"] * len(values)
    wrong[2] = "the message has no value"
    wrong[4] = "the JSON is not that of a line, or was changed"
    reported = sorted(
        (int(row.file.rpartition("@")[2]), row.file.rpartition("@")[0], row.line, row.reason) for row in rows
    )
    assert reported == [(offset, f"{name}-2", None, reason) for offset, reason in zip(at, wrong, strict=True)]
    assert max(len(row.text or "") for row in rows) == 1_000
    assert in_table(spark, topic, table)[0] == {}

    with pytest.raises(ValueError, match=r"--from-topic: nobody-knows-it at .*: there is no such topic"):
        ingest_topic(spark, Topic("nobody-knows-it", cluster.bootstrap_servers), str(tmp_path / "third"))
