"""The segments on disk: bounded, each process's own, readable after kill -9, bit flips and a full disk."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import MappingProxyType

import pytest

from kafka_throttle.common.private_directory import DirectoryUnusable
from kafka_throttle.proxy.observe.known_clients import Names
from kafka_throttle.proxy.observe.last_throttles import PastThrottle
from kafka_throttle.proxy.observe.past.look_up import Past, Trace
from kafka_throttle.proxy.observe.past.moments import NotHeld, second_text
from kafka_throttle.proxy.observe.past.records import Kinds, Others, PastLine, Seconds, ThrottledIn
from kafka_throttle.proxy.observe.past.ring import InForce, Ring, TooLarge
from kafka_throttle.proxy.observe.past.segments import SEGMENTS
from kafka_throttle.proxy.observe.throttled_line import ThrottledLine
from kafka_throttle.quotas.changes import NO_QUOTAS, Limit, following, tables_of
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType, SensorTags
from kafka_throttle.quotas.records.usage_record import TraceEvent
from tests.support.places import ROOT

BEGIN = 1_764_072_000
KEEP_S = 86_400
MIB = 1 << 20
PRODUCE = QuotaKey(QuotaType.PRODUCE)
ALICE = Entity("alice")


def line(client_id="etl", entity=ALICE, user="alice", quota_type=QuotaType.PRODUCE, muted_ms=800):
    tags = (
        None if quota_type is None else SensorTags(user if entity.user else "", client_id if entity.client_id else "")
    )
    first = PastThrottle(
        at_epoch_ms=BEGIN * 1000,
        throttle_time_ms=500,
        user=user,
        client_id=client_id,
        ip="10.0.0.1",
        node_id=1,
        quota_type=quota_type,
        tags=tags,
        sensor=None,
        entity=entity,
        rate=None,
        limit=7.0,
        tokens=None,
        throttles=1,
    )
    return PastLine(ThrottledLine(first, 1234.5, None, 300, 2, muted_ms, 1), 900, 42.0)


def throttled(second, *lines, last=None, cluster="main", others=None):
    return Seconds(second, last or second, {cluster: ThrottledIn(list(lines or [line()]), others or Others())})


def in_force(second, *, cluster="main", known=True, **rates):
    """Quotas of produce by user."""
    limits = {
        Entity(user): MappingProxyType({PRODUCE: Limit(float(rate), "state.json")}) for user, rate in rates.items()
    }
    quotas = following(NO_QUOTAS, limits)
    kinds = Kinds(tables_of(quotas).enforced.kinds(), {})
    return InForce(second * 1000, cluster, "file", known, kinds, quotas)


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "past"


@pytest.fixture
def past(directory):
    return Past(directory, KEEP_S)


def ring_in(directory, writer="one", max_bytes=8 * MIB):
    return Ring(directory, max_bytes, KEEP_S, writer)


def segments(directory):
    return sorted(path.name for path in directory.iterdir())


def written_until(directory, second):
    """As if the segments had been written to until `second`."""
    for path in directory.iterdir():
        os.utime(path, (second, second))


def explained(past, second, client_id="etl", user="alice", now=None):
    form = past.explained("main", Names(user, client_id), second_text(second), now or second + 60)
    return form, next(of_quota for of_quota in form["quotas"] if of_quota["quota"] == PRODUCE.text)


def test_a_second_is_explained_with_the_quotas_of_its_time(directory, past):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN - 100, alice=1000))
    ring.put_seconds(throttled(BEGIN))
    ring.put_quotas(in_force(BEGIN + 1.5, alice=250, bob=7))
    ring.put_seconds(throttled(BEGIN + 1))
    ring.put_seconds(throttled(BEGIN + 2))
    ring.close_segment()

    form, before = explained(past, BEGIN)
    assert (form["at"], form["until"], form["precision"], form["skipped"]) == (
        *("2025-11-25T12:00:00Z", "2025-11-25T12:00:00Z"),
        *("second", 0),
    )
    assert (form["source"], form["known"], form["live"]) == ("file", True, False)
    assert (before["rule"]["limit"], before["rule"]["layer"], before["changes"]) == (1000, "state.json", [])
    [client] = before["throttled"]
    assert (client["user"], client["client_id"], client["node_id"]) == ("alice", "etl", 1)
    assert (client["limit"], client["rate"], client["charged"]) == (1000, 1234.5, 42)
    assert (client["throttles"], client["throttled_ms"], client["given_ms"], client["left_ms"]) == (2, 800, 900, 300)
    for second in (BEGIN + 1, BEGIN + 2):
        _, after = explained(past, second)
        assert after["rule"]["limit"] == after["throttled"][0]["limit"] == 250
        assert after["changes"] == [
            {
                "at": "2025-11-25T12:00:01.500Z",
                "entity": {"user": "alice"},
                "old": 1000,
                "new": 250,
                "layer": "state.json",
                "scope": "node",
            }
        ]
    _, of_bob = explained(past, BEGIN, user="bob")
    assert (of_bob["rule"], of_bob["throttled"]) == (None, [])
    assert explained(past, BEGIN + 1, user="bob")[1]["rule"]["limit"] == 7


def test_a_client_id_alone_is_explained_for_those_who_were_throttled_with_it(directory, past):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN - 100, alice=1000, bob=7))
    many = [line("etl", Entity(f"u{i:02}"), f"u{i:02}", muted_ms=1) for i in range(20)]
    ring.put_seconds(throttled(BEGIN, line("etl", Entity("bob"), "bob", muted_ms=900), line(), line("web"), *many))
    ring.close_segment()
    form = past.explained("main", Names(client_id="etl"), second_text(BEGIN), BEGIN + 60)
    assert [each["client"]["user"] for each in (form, *form["others"])] == [
        "bob",
        "alice",
        *(f"u{i:02}" for i in range(8)),
    ]
    assert (form["more"], form["notes"]) == (12, [])
    for each, limit, muted_ms in ((form, 7, 900), (form["others"][0], 1000, 800)):
        [produce] = [of_quota for of_quota in each["quotas"] if of_quota["quota"] == PRODUCE.text]
        assert produce["rule"]["limit"] == limit
        assert produce["throttled"][0]["throttled_ms"] == muted_ms
    [other] = past.explained("main", Names(user="alice"), second_text(BEGIN), BEGIN + 60)["others"]
    assert other["client"]["client_id"] == "web"
    nobody = past.explained("main", Names(client_id="app"), second_text(BEGIN), BEGIN + 60)
    assert nobody["client"] == {"user": "ANONYMOUS", "client_id": "app", "ip": None}
    assert nobody["notes"] == [
        "no client with client_id='app' was throttled then, and it is not kept who else was connected: what follows is "
        "for the user ANONYMOUS (clients that do not log in)"
    ]


def test_a_quota_that_comes_just_after_the_second_with_which_a_segment_begins_is_not_of_it(directory, past):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN - 100, alice=1000))
    ring.put_quotas(in_force(BEGIN + 1.001, alice=250))
    ring.put_seconds(throttled(BEGIN))
    assert explained(past, BEGIN)[1]["rule"]["limit"] == 1000


def test_seconds_without_throttles_are_held_together_and_gaps_are_not_held(directory, past):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN, alice=1000))
    for second in range(BEGIN, BEGIN + 25):
        ring.put_seconds(Seconds(second, second))
    ring.flush()
    ring.put_seconds(Seconds(BEGIN + 30, BEGIN + 30))
    ring.close_segment()
    [segment] = directory.iterdir()
    assert segment.read_bytes().count(b" s ") == 3
    for second in (BEGIN, BEGIN + 9, BEGIN + 10, BEGIN + 24):
        assert explained(past, second)[1]["throttled"] == []
    with pytest.raises(NotHeld, match="the history has nothing of 2025-11-25T12:00:26Z: no proxy wrote then"):
        explained(past, BEGIN + 26)


def test_a_look_at_all_clients_has_the_sums_of_those_without_a_line(directory, past):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN, alice=1000))
    lines = [line(f"client-{number}", muted_ms=100 * number) for number in range(5)]
    ring.put_seconds(throttled(BEGIN, *lines, others=Others(3, 4, 5, 6)))
    form = past.throttled(["main", "other"], second_text(BEGIN), 2, BEGIN + 9)
    assert [client["client_id"] for client in form["throttled"]] == ["client-4", "client-3"]
    assert (form["clients"], form["total"], form["more"]) == (5, 8, 6)
    assert form["others"] == {"throttles": 4 + 6, "given_ms": 5 + 2700, "throttled_ms": 6 + 300}
    assert [origin["virtual_cluster"] for origin in form["quotas_unknown"]] == ["other"]


def test_a_throttle_of_the_node_has_no_rule(directory, past):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN, alice=1000))
    ring.put_seconds(throttled(BEGIN, line(quota_type=None, entity=None)))
    form, of_quota = explained(past, BEGIN)
    assert of_quota["throttled"] == []
    [client] = form["node_throttled"]
    assert (client["quota_type"], client["rule"], client["client_id"]) == ("node", None, "etl")


def test_where_a_trace_has_the_sensor_the_answer_is_exact(directory):
    def event(**values):
        rest = {"instance": "x", "epoch": 1, "sequence": 1, "at_ms": 1, "wall_ms": BEGIN * 1000 + 123}
        names = {"virtual_cluster": "main", "node_id": 1, "user": "alice", "client_id": "etl", "ip": ""}
        done = {"quota_type": "produce", "operation": "charge", "value": 1500.0, "throttle_ms": 500}
        done |= {"limit": 1000.0, "rule": "user=alice", "sensor": 1, "shadow": 0, "count": 1}
        return TraceEvent(**rest | names | done | values)

    others = [event(user="bob"), event(quota_type="fetch"), event(shadow=1)]
    trace = Trace([event(), *others])
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN, alice=1000))
    ring.put_seconds(throttled(BEGIN))
    form, of_quota = explained(Past(directory, KEEP_S, lambda cluster, second: trace), BEGIN)
    assert (form["precision"], of_quota["precision"]) == ("exact", "exact")
    [operation] = of_quota["operations"]
    assert (operation["at"], operation["value"], operation["throttle_time_ms"]) == (
        "2025-11-25T12:00:00.123Z",
        1500.0,
        500,
    )
    gaps = Past(directory, KEEP_S, lambda cluster, second: trace._replace(has_gaps=True))
    assert explained(gaps, BEGIN)[0]["precision"] == "second"


# -------------------------------------------------------------------- bounded


def test_the_directory_never_grows_beyond_its_size_and_the_newest_seconds_are_held(directory, past):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN, alice=1000))
    lines = [line(os.urandom(300).hex()) for _ in range(100)]
    size = 0
    for second in range(BEGIN, BEGIN + 400):
        ring.put_seconds(throttled(second, *lines))
        written_until(directory, second)
        size = max(size, sum(path.stat().st_size for path in directory.iterdir()))
        assert size <= 8 * MIB
        assert len(segments(directory)) <= SEGMENTS
    assert size > 6 * MIB
    assert ring.size_bytes == sum(path.stat().st_size for path in directory.iterdir())
    form, of_quota = explained(past, BEGIN + 399)
    assert len(form["quotas"]) == 4
    assert of_quota["rule"]["limit"] == 1000, "each segment has the quotas"
    with pytest.raises(NotHeld, match="the history has nothing of 2025-11-25T12:00:00Z; it has"):
        explained(past, BEGIN, now=BEGIN + 500)


def test_what_is_older_than_it_is_to_be_kept_goes(directory, past):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN, alice=1000))
    ring.put_seconds(throttled(BEGIN))
    written_until(directory, BEGIN)
    ring.put_seconds(throttled(BEGIN + KEEP_S // SEGMENTS))
    assert len(segments(directory)) == 2, "a segment is complete after an eighth of the time"
    written_until(directory, BEGIN + 20_000)
    with pytest.raises(NotHeld):
        explained(past, BEGIN, now=BEGIN + KEEP_S + 1)
    ring.put_seconds(throttled(BEGIN + 2 * KEEP_S))
    assert len(segments(directory)) == 1


@pytest.mark.timeout(60)
@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.parent)])
def test_what_has_the_name_of_a_segment_and_is_none_keeps_nobody_from_writing(directory, past, make):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN - KEEP_S, alice=1000))
    ring.put_seconds(throttled(BEGIN - KEEP_S))
    make(directory / f"past-1-{BEGIN - 2 * KEEP_S}-another-1.log")
    ring.put_seconds(throttled(BEGIN))
    assert past.throttled(["main"], second_text(BEGIN), 10, BEGIN + 10)["at"] == second_text(BEGIN)


def test_a_record_for_which_there_is_no_room_is_refused(directory):
    ring = ring_in(directory)
    with pytest.raises(TooLarge):
        ring.put_seconds(throttled(BEGIN, *(line(os.urandom(2_000).hex()) for _ in range(500))))


def test_quotas_that_need_more_than_half_a_segment_are_left_out_and_that_is_said(directory, past):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN, **{os.urandom(200).hex(): 1 for _ in range(4_000)}))
    ring.put_seconds(throttled(BEGIN))
    form = past.explained("main", Names("alice", "etl"), second_text(BEGIN), BEGIN + 9)
    assert form["quotas"] == []
    [note] = form["notes"]
    assert note.startswith("the quotas of this time were not kept")
    [client] = past.throttled(["main"], second_text(BEGIN), 10, BEGIN + 9)["throttled"]
    assert (client["rule"]["entity"], client["limit"]) == ({"user": "alice"}, 7)


# -------------------------------------------------------------------- damage


def test_two_processes_share_a_directory_and_both_are_asked(directory, past):
    old, new = ring_in(directory, "old"), ring_in(directory, "new")
    for ring in (old, new):
        ring.put_quotas(in_force(BEGIN, alice=1000))
    old.put_seconds(throttled(BEGIN, line("of-old")))
    new.put_seconds(throttled(BEGIN, line("of-new")))
    _, of_quota = explained(past, BEGIN)
    assert {client["client_id"] for client in of_quota["throttled"]} == {"of-old", "of-new"}

    lines = [line(os.urandom(300).hex()) for _ in range(100)]
    for second in range(BEGIN + 1, BEGIN + 400):
        new.put_seconds(throttled(second, *lines))
        written_until(directory, second)
        assert sum(path.stat().st_size for path in directory.iterdir()) < 8 * MIB
    assert any("-old-" in name for name in segments(directory)), "the other process still writes to it"
    old.put_seconds(throttled(BEGIN + 401, line("of-old")))
    assert explained(past, BEGIN + 401)[1]["throttled"][0]["client_id"] == "of-old"
    old.close_segment()
    for second in range(BEGIN + 402, BEGIN + 470):
        new.put_seconds(throttled(second, *lines))
    assert not any("-old-" in name for name in segments(directory)), "it is gone, and its segment was the oldest"


def test_a_process_that_is_started_again_and_again_leaves_the_past_and_a_bounded_number_of_files(
    directory, past, monkeypatch
):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN, alice=1000))
    ring.put_seconds(throttled(BEGIN))
    ring.close_segment()
    for number in range(1, 30):
        one = ring_in(directory, f"short{number}")
        one.put_seconds(throttled(BEGIN + number))
        one.close_segment()
    assert len(segments(directory)) == 30
    assert explained(past, BEGIN)[1]["rule"]["limit"] == 1000
    monkeypatch.setattr("kafka_throttle.proxy.observe.past.segments.MAX_SEGMENTS", 10)
    ring.put_seconds(throttled(BEGIN + 31))
    assert len(segments(directory)) == 10


def test_damaged_records_are_skipped_and_counted(directory, past):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN, alice=1000))
    for second in range(BEGIN, BEGIN + 10):
        ring.put_seconds(throttled(second))
    ring.close_segment()
    [segment] = directory.iterdir()
    content = bytearray(segment.read_bytes())
    lines = bytes(content).splitlines(keepends=True)
    content[len(b"".join(lines[:4])) + 40] ^= 4
    segment.write_bytes(bytes(content[:-5]))
    form, of_quota = explained(past, BEGIN + 5)
    assert (len(of_quota["throttled"]), of_quota["rule"]["limit"], form["skipped"]) == (1, 1000, 2)
    with pytest.raises(NotHeld):
        explained(past, BEGIN + 3)
    segment.write_bytes(os.urandom(5_000))
    with pytest.raises(NotHeld):
        explained(past, BEGIN + 5)


def test_kill_9_leaves_every_second_that_was_written(directory, past):
    script = f"""
import os, signal
from tests.proxy.observe.past.test_ring import *
ring = ring_in(Path({str(directory)!r}), "killed")
ring.put_quotas(in_force(BEGIN, alice=1000))
ring.put_seconds(throttled(BEGIN))
ring.put_seconds(throttled(BEGIN + 1))
os.pwrite(ring._segment._fd, b"0badc0de s {BEGIN + 2} {BEGIN + 2} z", ring._segment.size_bytes)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    ring = ring_in(directory, "successor")
    ring.put_quotas(in_force(BEGIN + 3, alice=500))
    ring.put_seconds(throttled(BEGIN + 3))
    assert explained(past, BEGIN + 1)[1]["rule"]["limit"] == 1000
    assert explained(past, BEGIN + 3)[1]["rule"]["limit"] == 500
    form, _ = explained(past, BEGIN + 1)
    assert (form["skipped"], form["notes"]) == (1, ["damaged records were skipped: the quotas may be incomplete"])


# ------------------------------------------------------------- the disk refuses


def test_a_full_disk_leaves_what_was_written_and_the_next_record_begins_anew(directory, past, monkeypatch):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN, alice=1000))
    ring.put_seconds(throttled(BEGIN))
    real, room = os.pwrite, [20]

    def pwrite(fd, data, at):
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = real(fd, bytes(data[: room[0]]), at)
        room[0] -= written
        return written

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", pwrite)
        for second in (BEGIN + 1, BEGIN + 2):
            with pytest.raises(OSError, match="No space left"):
                ring.put_seconds(throttled(second))
    assert len(segments(directory)) == 1, "nothing is left of a segment that could not be begun"
    ring.put_quotas(in_force(BEGIN + 3, alice=500))
    ring.put_seconds(throttled(BEGIN + 3))
    form, of_quota = explained(past, BEGIN)
    assert (of_quota["rule"]["limit"], form["skipped"]) == (1000, 0)
    assert explained(past, BEGIN + 3)[1]["rule"]["limit"] == 500
    with pytest.raises(NotHeld):
        explained(past, BEGIN + 1)


def test_a_limit_of_the_system_on_files_is_a_full_disk(directory):
    script = f"""
import resource, signal
from tests.proxy.observe.past.test_ring import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, 3_000))
ring = ring_in(Path({str(directory)!r}))
ring.put_quotas(in_force(BEGIN, alice=1000))
written = 0
try:
    for second in range(BEGIN, BEGIN + 1_000):
        ring.put_seconds(throttled(second))
        written += 1
except OSError as error:
    print(written, error.strerror)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    written, _, problem = done.stdout.strip().partition(" ")
    assert problem == os.strerror(errno.EFBIG)
    past = Past(directory, KEEP_S)
    assert explained(past, BEGIN + int(written) - 1)[0]["skipped"] == 0


def test_a_directory_that_cannot_be_made_or_that_others_may_read_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DirectoryUnusable, match="cannot be made: Not a directory"):
        ring_in(tmp_path / "file" / "past").put_seconds(throttled(BEGIN))
    (tmp_path / "open").mkdir(mode=0o755)
    with pytest.raises(DirectoryUnusable, match="expected mode 0700"):
        ring_in(tmp_path / "open").put_seconds(throttled(BEGIN))


def test_quiet_seconds_that_cannot_be_written_wait_and_are_written_once(directory, past, monkeypatch):
    ring = ring_in(directory)
    ring.put_quotas(in_force(BEGIN, alice=1000))
    for second in range(BEGIN, BEGIN + 5):
        ring.put_seconds(Seconds(second, second))
    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "full")))
        for second in range(BEGIN + 5, BEGIN + 10):
            ring.put_seconds(Seconds(second, second))
        with pytest.raises(OSError, match="full"):
            ring.put_seconds(Seconds(BEGIN + 10, BEGIN + 10))
    ring.put_seconds(throttled(BEGIN + 20))
    ring.close_segment()
    for second in (BEGIN, BEGIN + 9):
        assert explained(past, second)[1]["throttled"] == []
    with pytest.raises(NotHeld):
        explained(past, BEGIN + 10)
    assert explained(past, BEGIN + 20)[1]["throttled"]
    assert sum(path.read_bytes().count(b" s ") for path in directory.iterdir()) == 2


def test_without_locks_a_segment_that_is_still_written_is_not_deleted(directory, monkeypatch):
    def flock(*_):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", flock)
    old, new = ring_in(directory, "old"), ring_in(directory, "new")
    for ring in (old, new):
        ring.put_quotas(in_force(BEGIN, alice=1000))
    old.put_seconds(throttled(BEGIN))
    lines = [line(os.urandom(300).hex()) for _ in range(100)]

    def fill(begin):
        for second in range(begin, begin + 400):
            new.put_seconds(throttled(second, *lines))
            for path in directory.iterdir():
                if "-new-" in path.name:
                    os.utime(path, (second - 1_000, second - 1_000))

    written_until(directory, BEGIN + 400)
    fill(BEGIN + 1)
    assert any("-old-" in name for name in segments(directory)), "it was written to within the last minute"
    written_until(directory, BEGIN)
    fill(BEGIN + 1_001)
    assert not any("-old-" in name for name in segments(directory))
