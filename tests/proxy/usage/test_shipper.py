"""What is shipped: every line of complete files at least once, in order, whatever fails when."""

import contextlib
import errno
import json
import os
import signal
import socket
import stat
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from kafka.errors import KafkaConnectionError
from structlog.testing import capture_logs

from kafka_throttle.common.login_secrets import PasswordFile, TokenFile
from kafka_throttle.common.token_endpoint import TokenEndpoint
from kafka_throttle.proxy.usage.kafka_topic import KafkaTopic, producer_settings
from kafka_throttle.proxy.usage.shipper import POSITION, Shipper, SpoolBusy, TopicUnavailable, alone_at
from kafka_throttle.proxy.usage.shipping import Order, Shipping, keep_shipping
from kafka_throttle.quotas.records.usage_record import read_line
from tests.pipeline.spools import Fleet, records, write_spool
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import until

FLEET = Fleet(entities=5, per_window=5)
KEY = f"usage:{FLEET.instance}:{FLEET.epoch}".encode()


class PlayedTopic:
    """Keeps what it is given; fails at the calls whose numbers are in `failing`, after it has taken half."""

    def __init__(self, name="records", failing=()):
        self.name = name
        self.failing = failing
        self.calls = 0
        self.sent = []

    def send(self, key, lines):
        self.calls += 1
        fails = self.calls in self.failing
        self.sent += [(key, line) for line in lines[: len(lines) // 2 if fails else None]]
        if fails:
            raise TopicUnavailable("played")

    @property
    def lines(self):
        return [line for _, line in self.sent]

    def close(self):
        pass


class Killed(BaseException):
    """As SIGKILL: nobody catches it."""


def lines_of(paths):
    return [line for path in paths for line in path.read_bytes().splitlines()]


def test_all_lines_are_sent_once_in_order_under_their_writers_key(tmp_path):
    paths = write_spool(tmp_path, records(FLEET, 30), per_file=10)
    (tmp_path / ".usage-proxy-1-1-000009.tsv.part").write_text("not complete")
    (tmp_path / "notes.txt").write_text("not ours")
    topic = PlayedTopic()
    shipper = Shipper(tmp_path, topic)
    shipper.ship()
    assert topic.lines == lines_of(paths)
    assert {key for key, _ in topic.sent} == {KEY}
    shipper.ship()
    Shipper(tmp_path, topic).ship()
    assert topic.lines == lines_of(paths)
    totals = shipper.totals
    assert (totals.files, totals.lines, totals.lost_files, totals.waiting_files, totals.waiting_bytes) == (
        3,
        36,
        0,
        0,
        0,
    )
    assert totals.line_bytes == sum(map(len, topic.lines))

    other = PlayedTopic("other")
    Shipper(tmp_path, other).ship()
    assert other.lines == topic.lines, "each topic gets all"
    more = write_spool(tmp_path, records(FLEET, 40)[30:], per_file=10, first_file=4)
    Shipper(tmp_path, topic).ship()
    assert topic.lines == lines_of([*paths, *more])


def test_files_of_a_killed_process_that_are_completed_late_are_sent_too(tmp_path):
    earlier, later = Fleet(epoch=5, per_window=5), Fleet(epoch=6, per_window=5)
    first = write_spool(tmp_path, records(earlier, 10))
    second = write_spool(tmp_path, records(later, 10))
    topic = PlayedTopic()
    Shipper(tmp_path, topic).ship()
    late = write_spool(tmp_path, records(earlier, 20)[10:], first_file=2)
    Shipper(tmp_path, topic).ship()
    assert topic.lines == lines_of([*first, *second, *late])


def test_a_crash_between_sending_and_noting_sends_a_file_again_and_no_other(tmp_path, monkeypatch):
    paths = write_spool(tmp_path, records(FLEET, 30), per_file=10)
    topic = PlayedTopic()
    replaced, rename = [], Path.rename

    def replace(self, to):
        replaced.append(to)
        if len(replaced) == 2:
            raise Killed
        return rename(self, to)

    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.replace", replace)
        with pytest.raises(Killed):
            Shipper(tmp_path, topic).ship()
    assert topic.lines == lines_of(paths[:2])
    Shipper(tmp_path, topic).ship()
    assert topic.lines == lines_of([*paths[:2], *paths[1:]])


def test_what_was_sent_before_a_failure_is_not_sent_again_while_the_process_lives(tmp_path, monkeypatch):
    monkeypatch.setattr("kafka_throttle.proxy.usage.shipper._LINES_AT_ONCE", 4)
    paths = write_spool(tmp_path, records(FLEET, 20), per_file=10)
    topic = PlayedTopic(failing=(2, 5))
    shipper = Shipper(tmp_path, topic)
    for _ in range(2):
        with pytest.raises(TopicUnavailable):
            shipper.ship()
    assert shipper.totals.waiting_files == 1
    shipper.ship()
    lines = lines_of(paths)
    first, second = lines[:12], lines[12:]
    assert topic.lines == [*first[:4], *first[4:6], *first[4:], *second[:2], *second]
    assert (shipper.totals.lines, shipper.totals.waiting_files, shipper.totals.waiting_bytes) == (24, 0, 0)


def test_a_file_that_cannot_be_read_holds_up_its_own_writer_only(tmp_path, monkeypatch):
    monkeypatch.setattr("kafka_throttle.proxy.usage.shipper._LINES_AT_ONCE", 4)
    fleets = [Fleet(epoch=epoch, per_window=5) for epoch in (5, 6, 7, 8)]
    first, (folder, _), (loop, _), last = [write_spool(tmp_path, records(of, 20), per_file=10) for of in fleets]
    folder.unlink()
    folder.mkdir()
    loop.unlink()
    loop.symlink_to(loop)
    topic = PlayedTopic()
    shipper = Shipper(tmp_path, topic)
    for _ in range(2):
        with pytest.raises(IsADirectoryError):
            shipper.ship()
        assert topic.lines == lines_of([*first, *last]), "each once, and the writers' own later files wait"
        assert shipper.totals.waiting_files == 4


def test_a_disk_that_fails_within_a_file_has_no_line_before_sent_again(tmp_path, monkeypatch):
    monkeypatch.setattr("kafka_throttle.proxy.usage.shipper._LINES_AT_ONCE", 4)
    first, last = [write_spool(tmp_path, records(Fleet(epoch=epoch), 10)) for epoch in (5, 6)]
    assert len(first) == len(last) == 1
    some_lines, failing = Shipper._some_lines, True

    def read(self, file):
        if failing and Path(file.name) == first[0] and file.tell():
            raise OSError(errno.EIO, "played")
        return some_lines(self, file)

    monkeypatch.setattr(Shipper, "_some_lines", read)
    topic = PlayedTopic()
    shipper = Shipper(tmp_path, topic)
    for _ in range(2):
        with pytest.raises(OSError, match="played"):
            shipper.ship()
    lines = lines_of(first)
    assert topic.lines == [*lines[:4], *lines_of(last)]
    failing = False
    shipper.ship()
    assert topic.lines == [*lines[:4], *lines_of(last), *lines[4:]]


def test_a_position_that_cannot_be_stored_holds_up_no_file_and_has_none_sent_again(tmp_path, monkeypatch):
    paths = write_spool(tmp_path, records(FLEET, 30), per_file=10)
    topic = PlayedTopic()
    shipper = Shipper(tmp_path, topic)
    with monkeypatch.context() as patched:

        def replace(path, to):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))

        patched.setattr(os, "replace", replace)
        for _ in range(2):
            with pytest.raises(OSError, match="Read-only file system"):
                shipper.ship()
    assert topic.lines == lines_of(paths)
    assert (shipper.totals.files, shipper.totals.waiting_files) == (3, 0)
    shipper.ship()
    Shipper(tmp_path, topic).ship()
    assert topic.lines == lines_of(paths), "the position is stored in the end, though there is no further file"


def test_files_that_retention_deleted_before_are_counted(tmp_path):
    paths = write_spool(tmp_path, records(FLEET, 50), per_file=10)
    topic = PlayedTopic()
    for path in (paths[0], paths[3]):
        path.unlink()
    shipper = Shipper(tmp_path, topic)
    shipper.ship()
    assert topic.lines == lines_of([paths[1], paths[2], paths[4]])
    assert shipper.totals.lost_files == 2

    # One goes between the look and its turn; all go when they were sent, which loses nothing.
    more = write_spool(tmp_path, records(FLEET, 80)[50:], per_file=10, first_file=6)
    send = topic.send
    topic.send = lambda key, lines: (more[1].unlink(missing_ok=True), send(key, lines))
    again = Shipper(tmp_path, topic)
    again.ship()
    assert again.totals.lost_files == 1
    for path in tmp_path.glob("*.tsv"):
        path.unlink()
    other = Fleet(instance="other", epoch=FLEET.epoch + 1)
    write_spool(tmp_path, records(other, 10))
    Shipper(tmp_path, topic).ship()
    write_spool(tmp_path, records(FLEET, 90)[80:], first_file=9)
    last = Shipper(tmp_path, topic)
    last.ship()
    assert last.totals.lost_files == 0


def test_what_retention_deleted_is_counted_once_however_often_the_next_file_is_tried(tmp_path):
    paths = write_spool(tmp_path, records(FLEET, 30), per_file=10)
    paths[0].unlink()
    shipper = Shipper(tmp_path, PlayedTopic(failing=(1, 2)))
    for _ in range(2):
        with pytest.raises(TopicUnavailable):
            shipper.ship()
    shipper.ship()
    assert shipper.totals.lost_files == 1


def test_old_writers_are_forgotten_when_they_have_no_files_left(tmp_path):
    topic = PlayedTopic()
    for epoch in (5, 6, 7):
        [path] = write_spool(tmp_path, records(Fleet(epoch=epoch), 3))
        Shipper(tmp_path, topic).ship()
        if epoch == 5:
            path.unlink()
    noted = json.loads((tmp_path / POSITION).read_text())
    assert noted == {"format": 1, "topics": {"records": {"usage:proxy-1:6": 1, "usage:proxy-1:7": 1}}}


def test_where_it_stood_may_not_be_read_and_nothing_is_sent_until_it_may(tmp_path):
    paths = write_spool(tmp_path, records(FLEET, 10))
    (tmp_path / POSITION).mkdir()  # so that it is an error for root, too
    topic = PlayedTopic()
    shipper, event = Shipper(tmp_path, topic), PlayedEvent(2)
    with capture_logs() as reported:
        keep_shipping(shipper, event, 5.0, lambda totals: None)
    assert topic.sent == []
    assert (shipper.totals.failures, shipper.totals.waiting_files) == (3, 1)
    [failed] = [line for line in reported if line["event"] == "usage_shipping_failed"]
    assert str(tmp_path / POSITION) in failed["problem"]
    (tmp_path / POSITION).rmdir()
    shipper.ship()
    assert topic.lines == lines_of(paths)


def test_a_file_whose_name_is_not_text_is_told_once_and_holds_up_nobody(tmp_path):
    paths = write_spool(tmp_path, records(FLEET, 10))
    foreign = os.fsencode(tmp_path) + b"/usage-pr\xffxy-5-000001.tsv"
    Path(os.fsdecode(foreign)).write_bytes(b"line\n")
    topic = PlayedTopic()
    shipper = Shipper(tmp_path, topic)
    with capture_logs() as reported:
        shipper.ship()
        shipper.ship()
    assert topic.lines == lines_of(paths)
    [line] = reported
    assert (line["event"], "usage-pr\\udcffxy-5" in line["file"]) == ("usage_file_not_shipped", True)


@pytest.mark.parametrize(
    "content",
    [
        "{",
        "[]",
        '{"format": 2, "topics": {}}',
        '{"format": 1, "topics": {"records": 3}}',
        '{"format": 1, "topics": ' + 100_000 * "[",
        '{"format": 1, "topics": {"records": {"usage:proxy-1:%s": 3}}}' % (5_000 * "1"),
    ],
    ids=["cut", "list", "format", "number", "deep", "long"],
)
def test_where_it_stood_cannot_be_read_and_all_is_sent_again(tmp_path, content):
    paths = write_spool(tmp_path, records(FLEET, 10))
    topic = PlayedTopic()
    Shipper(tmp_path, topic).ship()
    (tmp_path / POSITION).write_text(content)
    Shipper(tmp_path, topic).ship()
    assert topic.lines == 2 * lines_of(paths)


def test_lines_that_no_cluster_takes_are_left_out_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("kafka_throttle.proxy.usage.shipper.LONGEST_BYTES", 1000)
    monkeypatch.setattr("kafka_throttle.proxy.usage.shipper._LINES_AT_ONCE", 2)
    name = "usage-here-5-000001.tsv"
    (tmp_path / name).write_bytes(b"one\n" + 3 * (b"x" * 2500 + b"\n") + b"two\n" + b"y" * 999 + b"\nend")
    topic = PlayedTopic()
    shipper = Shipper(tmp_path, topic)
    shipper.ship()
    assert topic.lines == [b"one", b"two", b"y" * 999, b"end"]
    assert shipper.totals.long_lines == 3


def test_one_at_a_time(tmp_path):
    with alone_at(tmp_path), pytest.raises(SpoolBusy), alone_at(tmp_path):
        pass
    with alone_at(tmp_path):
        pass


def test_a_command_of_roots_leaves_the_spool_to_its_owner(tmp_path):
    write_spool(tmp_path, records(FLEET, 10))
    owner = (4321, 1234) if os.geteuid() == 0 else (os.geteuid(), os.getegid())  # only root can give files away
    os.chown(tmp_path, *owner)
    with alone_at(tmp_path):
        Shipper(tmp_path, PlayedTopic()).ship()
    for name in (".shipping.lock", POSITION):
        found = (tmp_path / name).stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (*owner, 0o600), name


def test_only_the_spools_user_may_read_how_far_it_is(tmp_path):
    write_spool(tmp_path, records(FLEET, 10))
    Shipper(tmp_path, PlayedTopic()).ship()
    assert stat.S_IMODE((tmp_path / POSITION).stat().st_mode) == 0o600


def test_the_lock_is_no_link_to_a_file_of_somebody_elses(tmp_path):
    (tmp_path / "other").touch()
    (tmp_path / ".shipping.lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"), alone_at(tmp_path):
        pass


class PlayedEvent:
    """Is set after so many waits, and notes how long they were to be."""

    def __init__(self, waits):
        self.left = waits
        self.waited_s = []

    def is_set(self):
        return not self.left

    def wait(self, timeout_s):
        self.left -= 1
        self.waited_s.append(timeout_s)


def test_a_topic_that_fails_is_tried_ever_more_seldom_and_what_is_left_is_sent_in_the_end(tmp_path):
    write_spool(tmp_path, records(FLEET, 2))
    topic = PlayedTopic(failing=range(1, 8))
    shipper, event, reported = Shipper(tmp_path, topic), PlayedEvent(9), []
    keep_shipping(shipper, event, 5.0, lambda totals: reported.append((totals.failures, totals.waiting_files)))
    assert event.waited_s == [1, 2, 4, 8, 16, 30, 30, 5, 5]
    assert reported == [*((number, 1) for number in range(1, 8)), (7, 0), (7, 0), (7, 0)]
    assert len(topic.lines) == 4 + 7 * 2


@pytest.fixture
def nobody():
    """An address where connections are refused, as long as the test goes."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def test_nobody_is_there(nobody):
    topic = KafkaTopic("records", {"bootstrap_servers": [nobody], "bootstrap_timeout_ms": 200})
    for _ in range(2):
        with pytest.raises(TopicUnavailable, match=r"topic records: .*Unable to bootstrap"):
            topic.send(b"key", [b"line"])


def test_the_next_producer_asks_the_nodes_too_that_the_one_before_it_has_seen(monkeypatch):
    asked = []

    def producer(bootstrap_servers, kafka_client, **_):
        asked.append(bootstrap_servers)
        if len(asked) < 3:
            kafka_client().cluster.brokers = lambda: [
                SimpleNamespace(host="a", port=1),
                SimpleNamespace(host="::2", port=2),
            ]
        raise KafkaConnectionError

    monkeypatch.setattr("kafka_throttle.proxy.usage.kafka_topic.KafkaProducer", producer)
    topic = KafkaTopic("records", {"bootstrap_servers": ["first:1"]})
    for _ in range(3):
        with pytest.raises(TopicUnavailable):
            topic.send(b"key", [b"line"])
    assert asked == [["first:1"], ["first:1", "a:1", "[::2]:2"], ["first:1", "a:1", "[::2]:2"]]


@pytest.fixture
def silent():
    """The address of a server whose kernel takes connections, and that says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


def open_sockets():
    count = 0
    for file in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it is closed already
            count += file.readlink().parts[0].startswith("socket:")
    return count


@pytest.mark.parametrize("security_protocol", ["PLAINTEXT", "SSL"])
def test_a_server_takes_connections_and_says_nothing(silent, security_protocol):
    settings = {"bootstrap_servers": [silent], "security_protocol": security_protocol, "bootstrap_timeout_ms": 200}
    topic = KafkaTopic("records", settings)
    before, problems = open_sockets(), []
    for _ in range(3):
        with pytest.raises(TopicUnavailable, match=r"topic records: .*Unable to bootstrap") as refused:
            topic.send(b"key", [b"line"])
        problems.append(str(refused.value))
    for thread in threading.enumerate():
        if thread.name == "producer-connection":  # it may be late, and then closes its socket itself
            thread.join(TIMEOUT_S)
    assert open_sockets() <= before, "they are closed again"
    assert any("not ready within" in one or "timed out" in one for one in problems), problems
    topic.close()


def test_settings_of_the_command_line():
    texts = {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_password": "secret",
        "ssl_check_hostname": "false",
        "compression_type": "none",
    }
    assert producer_settings(texts) == {
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_password": "secret",
        "ssl_check_hostname": False,
        "compression_type": None,
    }
    for pair, problem in (
        ("acks=0", "got 'acks'"),
        ("ssl_banana=1", "ssl_banana: KafkaProducer has no such setting"),
        ("ssl_check_hostname=no", "expected true or false"),
        ("security_protocol=TLS", "security_protocol: expected PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL"),
        ("sasl_mechanism=SCRAM", "sasl_mechanism: expected PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, GSSAPI or AWS_MSK_IAM"),
        ("sasl_mechanism=OAUTHBEARER", "sasl_mechanism: expected PLAIN,"),
        ("sasl_mechanism=PLAIN", "sasl_mechanism needs security_protocol SASL_PLAINTEXT or SASL_SSL"),
        ("security_protocol=SASL_SSL", "security_protocol SASL_PLAINTEXT or SASL_SSL needs sasl_mechanism"),
    ):
        with pytest.raises(ValueError, match=problem):
            producer_settings(dict([pair.split("=")]))


async def test_the_process_beside_the_proxy_is_started_again_and_ends_with_it(tmp_path, silent):
    write_spool(tmp_path, records(FLEET, 20), per_file=10)
    settings = {"bootstrap_servers": [silent], "security_protocol": "SSL", "bootstrap_timeout_ms": 200}
    order = Order(str(tmp_path), "records", settings)
    shipping = Shipping(order, again_s=0.1)
    shipping.start()
    await until(lambda: shipping.totals().failures >= 2)
    assert shipping.totals().waiting_files == 2
    first, failures = shipping.pid, shipping.totals().failures
    os.kill(first, signal.SIGTERM)  # to all of the service's processes: it is not meant for this one
    os.kill(first, signal.SIGKILL)
    await until(lambda: shipping.totals().failures > failures and shipping.pid not in (None, first))
    assert shipping.totals().waiting_files == 2
    await shipping.stop()
    assert shipping.pid is None
    with alone_at(tmp_path):
        assert all(read_line(line.decode()) for path in tmp_path.glob("*.tsv") for line in path.open("rb"))


@pytest.mark.parametrize(
    "secret",
    [
        None,
        PasswordFile("/password", "proxy at a:1"),
        TokenFile("/token"),
        TokenEndpoint("https://a/token", "proxy", "/secret", "kafka", "/ca.pem"),
    ],
)
def test_the_process_beside_the_proxy_is_told_where_secrets_are(secret):
    order = Order("/spool", "records", {"bootstrap_servers": ["a:1"]}, secret=secret, extensions={"pool": "p"})
    line = order.as_line()
    assert line.count(b"\n") == 1
    assert Order.of_line(line.decode()) == order


async def test_a_lock_that_cannot_be_taken_is_told_and_counted(tmp_path, nobody, capfd):
    (tmp_path / ".shipping.lock").mkdir()  # so that it is an error for root, too
    shipping = Shipping(Order(str(tmp_path), "records", {"bootstrap_servers": [nobody]}))
    shipping.start()
    await until(lambda: shipping.totals().failures)
    await shipping.stop()
    [line] = [line for line in capfd.readouterr().err.splitlines() if "usage_shipping_waits" in line]
    assert str(tmp_path / ".shipping.lock") in json.loads(line)["problem"]
