"""The operator's file and its overlay on disk: changed through the source, by others, by hand, or not at all."""

import contextlib
import errno
import fcntl
import json
import os
import stat
import subprocess
import sys
import threading

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kafka_throttle.common import duties
from kafka_throttle.quotas.changes import Alteration, AlterationRefused, Limit, SourceUnavailable
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources import file as file_source
from kafka_throttle.quotas.sources.file import FileSource
from kafka_throttle.quotas.sources.overlay import Entry
from tests.support.places import ROOT

ALICE, BOB = Entity("alice"), Entity("bob")
PRODUCE, FETCH = QuotaKey(QuotaType.PRODUCE), QuotaKey(QuotaType.FETCH)
FILE = {ALICE: Entry({PRODUCE: 10.0, FETCH: 20.0})}
SET_BOB = Alteration(BOB, {PRODUCE: 7.0})
WAIT_S = 30.0


class Watched:
    """A source with a state file, and word of its changes."""

    def __init__(self, path, **options):
        self.source = FileSource(FILE, "proxy.yaml", path, **options)
        self._changed = threading.Semaphore(0)
        self.source.start(self._changed.release)

    def wait_until(self, condition):
        while not condition():
            assert self._changed.acquire(timeout=WAIT_S), (self.source.quotas, self.source.problems)


@pytest.fixture
def state(tmp_path):
    return tmp_path / "deep" / "state.json"


@pytest.fixture
def watched(state):
    made = Watched(state)
    yield made
    made.source.stop()


def altered(source, *alterations):
    results = source.alter(alterations)
    assert list(results) == [None] * len(alterations), results


def refused(source, kind=SourceUnavailable):
    """Why a change is refused; nothing of it is to be seen."""
    before = source.quotas
    first, second = source.alter([SET_BOB, Alteration(ALICE, {PRODUCE: None})])
    assert type(first) is type(second) is kind
    assert source.quotas is before
    return str(first)


def entities(state):
    return [tuple(entry["entity"].values()) for entry in json.loads(state.read_text())["overlay"]]


def test_without_a_state_file_there_is_what_the_operator_says():
    source = FileSource(FILE, "proxy.yaml")
    source.start(lambda: None)
    assert source.quotas == {ALICE: {PRODUCE: Limit(10.0, "proxy.yaml"), FETCH: Limit(20.0, "proxy.yaml")}}
    assert refused(source, AlterationRefused) == (
        "virtual_clusters[].quotas.state_file of proxy.yaml: expected a file to keep changes in, got nothing; "
        "setting it needs a restart (docs/reference/quotas.md)"
    )
    source.stop()


def test_several_instances_take_no_changes(state):
    source = FileSource(FILE, "proxy.yaml", state, shared_by="2 instances")
    reason = refused(source, AlterationRefused)
    assert reason == "source `file` of 2 instances takes no changes: each would have its own"
    with pytest.raises(AlterationRefused):
        source.unset(ALICE, [PRODUCE])


def test_what_is_altered_is_in_force_at_once_and_after_a_restart(watched, state):
    altered(watched.source, SET_BOB, Alteration(ALICE, {PRODUCE: None, FETCH: 21.0}))
    expected = {BOB: {PRODUCE: Limit(7.0, "state.json")}, ALICE: {FETCH: Limit(21.0, "state.json")}}
    assert watched.source.quotas == expected
    assert Watched(state).source.quotas == expected


def test_the_state_file_is_for_its_owner_only_and_nothing_is_left_beside_it(watched, state):
    altered(watched.source, SET_BOB)
    assert sorted(path.name for path in state.parent.iterdir()) == ["state.json", "state.json.lock"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in state.parent.iterdir()} == {0o600}


def test_a_temporary_file_of_a_killed_process_does_no_harm(watched, state):
    state.parent.mkdir()
    state.with_name("state.json.new").write_text("half of")
    altered(watched.source, SET_BOB)
    assert entities(state) == [("bob",)]


def test_a_state_file_behind_a_link_is_replaced_where_it_is(tmp_path):
    real = tmp_path / "real" / "state.json"
    link = tmp_path / "link.json"
    link.symlink_to(real)
    source = FileSource(FILE, "proxy.yaml", link)
    altered(source, SET_BOB)
    assert link.is_symlink()
    assert entities(real) == [("bob",)]


def test_what_changes_nothing_writes_nothing(watched, state):
    altered(watched.source, Alteration(BOB, {PRODUCE: None}))
    assert not state.exists()
    altered(watched.source, SET_BOB)
    before = state.stat()
    altered(watched.source, SET_BOB)
    assert state.stat() == before


def test_what_is_unset_follows_the_file_again(watched):
    altered(watched.source, Alteration(ALICE, {PRODUCE: 1.0, FETCH: None}))
    watched.source.unset(ALICE, [PRODUCE, FETCH])
    assert watched.source.quotas == FileSource(FILE, "proxy.yaml").quotas


def test_the_operators_file_is_read_below_the_overlay_and_an_edit_without_effect_is_reported(watched):
    altered(watched.source, Alteration(ALICE, {PRODUCE: 1.0}))
    watched.source.replace({ALICE: Entry({PRODUCE: 11.0, FETCH: 22.0})})
    assert watched.source.quotas == {ALICE: {PRODUCE: Limit(1.0, "state.json"), FETCH: Limit(22.0, "proxy.yaml")}}
    assert watched.source.problems == {
        "user=alice: producer_byte_rate": "11 in proxy.yaml now, and 1 in state.json, "
        "which stands over it until `kafka-throttle quotas unset`"
    }
    watched.source.unset(ALICE, [PRODUCE])
    assert watched.source.problems == {}
    assert watched.source.quotas[ALICE][PRODUCE] == Limit(11.0, "proxy.yaml")


def test_an_edit_while_no_proxy_ran_is_reported_at_the_next_start(watched, state):
    altered(watched.source, Alteration(ALICE, {PRODUCE: 1.0}))
    source = FileSource({ALICE: Entry({PRODUCE: 11.0})}, "proxy.yaml", state)
    source.start(lambda: None)
    assert list(source.problems) == ["user=alice: producer_byte_rate"]
    source.stop()


def test_the_same_entries_again_change_nothing(watched):
    before = watched.source.quotas
    watched.source.replace({ALICE: Entry(dict(FILE[ALICE].limits))})
    assert watched.source.quotas is before


# ---------------------------------------------------------------- other writers


def test_what_another_process_writes_is_noticed(watched, state):
    altered(FileSource(FILE, "proxy.yaml", state), SET_BOB)
    watched.wait_until(lambda: BOB in watched.source.quotas)
    altered(FileSource(FILE, "proxy.yaml", state), Alteration(BOB, {PRODUCE: None}))
    watched.wait_until(lambda: BOB not in watched.source.quotas)


def test_what_another_process_writes_is_noticed_after_an_error_of_the_thread_that_watches(state, monkeypatch):
    monkeypatch.setattr(duties, "_AGAIN_S", 0)
    is_another, failed = FileSource._is_another, []

    def look(source, path):
        if not failed:
            failed.append(path)
            raise ValueError("a bug")
        return is_another(source, path)

    monkeypatch.setattr(FileSource, "_is_another", look)
    watched = Watched(state)
    altered(FileSource(FILE, "proxy.yaml", state), SET_BOB)
    watched.wait_until(lambda: BOB in watched.source.quotas)
    assert failed
    watched.source.stop()


def test_changes_of_another_process_meanwhile_are_not_lost(watched, state):
    altered(FileSource(FILE, "proxy.yaml", state), SET_BOB, Alteration(ALICE, {PRODUCE: 1.0}))
    altered(watched.source, Alteration(ALICE, {FETCH: 2.0}))
    assert watched.source.quotas == {
        BOB: {PRODUCE: Limit(7.0, "state.json")},
        ALICE: {PRODUCE: Limit(1.0, "state.json"), FETCH: Limit(2.0, "state.json")},
    }


WRITER = """
import sys
from pathlib import Path
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources.file import FileSource
from kafka_throttle.quotas.changes import (Alteration)
source = FileSource({}, "proxy.yaml", Path(sys.argv[1]))
for i in range(25):
    [problem] = source.alter([Alteration(Entity("shared", f"{sys.argv[2]}-{i}"), {QuotaKey(QuotaType.FETCH): 1.0 + i})])
    assert problem is None, problem
"""


def test_processes_that_write_at_once_lose_nothing_of_each_other(state):
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, str(state), name], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for name in ("a", "b")
    ]
    source = FileSource({}, "proxy.yaml", state)
    for i in range(25):
        altered(source, Alteration(Entity("shared", f"c-{i}"), {QuotaKey(QuotaType.FETCH): 1.0 + i}))
    for writer in writers:
        _, errors = writer.communicate(timeout=60)
        assert writer.returncode == 0, errors
    assert sorted(entities(state)) == sorted(("shared", f"{name}-{i}") for name in "abc" for i in range(25))


def test_a_lock_that_is_never_released_is_reported(watched, state, monkeypatch):
    altered(watched.source, SET_BOB)
    monkeypatch.setattr(file_source, "_LOCK_WAIT_S", 0.05)
    lock = state.with_name("state.json.lock")
    with lock.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert refused(watched.source) == f"{lock}: held by another process for 0 s"


# ------------------------------------------------------------------ bad luck


@contextlib.contextmanager
def failing(monkeypatch, module, name, number, only=lambda *args: True):
    """`module.name` fails as if the disk did."""
    real = getattr(module, name)

    def fail(*args, **kwargs):
        if only(*args):
            raise OSError(number, os.strerror(number))
        return real(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, fail)
        yield


@pytest.mark.parametrize("existing", [True, False], ids=["with a state file", "without one"])
@pytest.mark.parametrize(
    ("step", "number"), [("open", errno.EROFS), ("fdopen", errno.ENOSPC), ("fsync", errno.ENOSPC), ("fsync", errno.EIO)]
)
def test_a_change_that_cannot_be_written_is_refused_whole(watched, state, monkeypatch, step, number, existing):
    if existing:
        altered(watched.source, Alteration(ALICE, {PRODUCE: 3.0}))
    content = state.read_bytes() if existing else None
    with failing(monkeypatch, file_source.os, step, number):
        assert f"cannot be {'opened' if step == 'open' else 'written'}: {os.strerror(number)}" in refused(
            watched.source
        )
    assert (state.read_bytes() if state.exists() else None) == content
    assert not state.with_name("state.json.new").exists()
    altered(watched.source, SET_BOB)
    assert BOB in watched.source.quotas


@pytest.mark.parametrize("error", [errno.EINVAL, errno.EIO])
def test_a_change_whose_file_has_its_name_is_made_though_the_directory_cannot_be_synced(
    watched, state, monkeypatch, error
):
    with failing(monkeypatch, os, "fsync", error, lambda file: stat.S_ISDIR(os.fstat(file).st_mode)):
        altered(watched.source, SET_BOB)
    assert entities(state) == [("bob",)]
    assert BOB in watched.source.quotas


def test_without_locks_changes_are_made(watched, state, monkeypatch):
    with failing(monkeypatch, fcntl, "flock", errno.ENOLCK):
        altered(watched.source, SET_BOB)
        altered(FileSource(FILE, "proxy.yaml", state), Alteration(ALICE, {PRODUCE: 3.0}))
    assert sorted(entities(state)) == [("alice",), ("bob",)]


def test_a_disk_that_is_full_half_way_leaves_the_old_state(state):
    """The kernel itself stops the write, at 100 bytes."""
    script = """
import resource, signal, sys
from pathlib import Path
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources.file import FileSource
from kafka_throttle.quotas.changes import (Alteration)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
source = FileSource({}, "proxy.yaml", Path(sys.argv[1]))
key = QuotaKey(QuotaType.FETCH)
print(source.alter([Alteration(Entity("a"), {key: 1.0})]))
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
print(source.alter([Alteration(Entity(f"b{i}"), {key: 1.0}) for i in range(3)])[2])
print(list(map(str, source.quotas)))
"""
    run = subprocess.run(
        [sys.executable, "-c", script, str(state)], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert run.stdout.splitlines() == ["[None]", f"{state}: cannot be written: File too large", "['user=a']"], (
        run.stderr
    )
    assert entities(state) == [("a",)]
    assert sorted(path.name for path in state.parent.iterdir()) == ["state.json", "state.json.lock"]


def test_a_folder_that_cannot_be_made_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    source = FileSource(FILE, "proxy.yaml", tmp_path / "file" / "state.json")
    assert refused(source) == f"{tmp_path}/file/state.json.lock: cannot be opened: File exists"


def test_a_state_that_would_grow_beyond_its_bound_is_refused(watched, monkeypatch):
    monkeypatch.setattr(file_source, "MAX_STATE_BYTES", 100)
    assert "would have more than 100 bytes" in refused(watched.source, AlterationRefused)


# ------------------------------------------------------------------- by hand


def test_a_damaged_state_file_leaves_the_last_good_in_force_and_is_not_written_to(watched, state):
    altered(watched.source, SET_BOB)
    good = watched.source.quotas
    state.write_text('{"version": 1, "overlay": [oops]}')
    watched.wait_until(lambda: watched.source.problems)
    [(place, problem)] = watched.source.problems.items()
    assert place == str(state)
    assert problem.startswith("expected JSON in UTF-8: Expecting value: line 1 column 28")
    assert watched.source.quotas is good
    assert watched.source.state[:2] == (True, False)
    assert "is not written to before that is repaired" in refused(watched.source)
    assert "oops" in state.read_text()
    state.write_text('{"version": 1, "overlay": []}')
    watched.wait_until(lambda: not watched.source.problems)
    assert watched.source.state[:2] == (True, True)
    assert 0 <= watched.source.state.age_s < 60
    assert BOB not in watched.source.quotas


def test_a_wrong_change_in_the_state_file_takes_no_other_away_and_nothing_is_written_until_it_is_repaired(state):
    state.parent.mkdir()
    limits = {"producer_byte_rate": {"limit": "5 MB", "over": None}, "consumer_byte_rate": {"limit": 7, "over": None}}
    entries = [{"entity": {"user": None}, "limits": limits}, {"entity": {"usr": "x"}, "limits": {}}]
    state.write_text(json.dumps({"version": 1, "overlay": entries}))
    source = Watched(state).source
    assert source.quotas[Entity(DEFAULT)] == {FETCH: Limit(7.0, state.name)}
    assert source.problems == {
        f"{state}: overlay[0]": "producer_byte_rate: expected a number or null, got '5 MB'",
        f"{state}: overlay[1]": "entity: expected user, client-id, ip, got 'usr'",
    }
    assert source.state[:2] == (True, True)
    assert "got '5 MB'; it is not written to before that is repaired" in refused(source)
    assert "5 MB" in state.read_text()
    source.stop()


def test_a_state_file_that_is_damaged_at_the_start_is_reported(state):
    state.parent.mkdir()
    state.write_text("{}")
    source = Watched(state).source
    assert list(source.problems) == [str(state)]
    assert source.quotas == FileSource(FILE, "proxy.yaml").quotas
    assert source.state == (True, False, None)
    assert "repaired" in refused(source)
    assert state.read_text() == "{}"
    source.stop()


def test_a_state_file_that_is_too_large_is_reported(watched, state, monkeypatch):
    monkeypatch.setattr(file_source, "MAX_STATE_BYTES", 1000)
    state.parent.mkdir()
    state.write_text('{"version": 1, "overlay": []' + " " * 1000 + "}")
    watched.wait_until(lambda: watched.source.problems)
    assert watched.source.problems == {str(state): "expected at most 1000 bytes"}


def test_a_state_file_that_cannot_be_read_is_reported_and_read_as_soon_as_it_can_be(watched, state):
    altered(watched.source, SET_BOB)
    good, content = watched.source.quotas, state.read_bytes()
    state.unlink()
    state.mkdir()
    watched.wait_until(lambda: watched.source.problems)
    assert watched.source.problems == {str(state): "cannot be read: Is a directory"}
    assert watched.source.quotas is good
    assert "cannot be read" in refused(watched.source)
    state.rmdir()
    state.write_bytes(content.replace(b"7.0", b"8.0"))
    watched.wait_until(lambda: not watched.source.problems)
    assert watched.source.quotas[BOB][PRODUCE].value == 8


def test_deleting_the_state_file_takes_its_changes_away(watched, state):
    altered(watched.source, SET_BOB)
    state.unlink()
    watched.wait_until(lambda: BOB not in watched.source.quotas)
    assert watched.source.problems == {}
    altered(watched.source, SET_BOB)
    assert entities(state) == [("bob",)]


def test_a_state_file_that_is_being_replaced_by_an_editor_is_not_taken_for_empty(state):
    source = FileSource(FILE, "proxy.yaml", state)
    altered(source, SET_BOB)
    state.rename(state.with_name("aside"))
    reason = source.alter([Alteration(ALICE, {PRODUCE: 1.0})])[0]
    assert str(reason) == f"{state}: is gone; it is made anew as soon as that is certain"
    state.with_name("aside").rename(state)
    altered(source, Alteration(ALICE, {PRODUCE: 1.0}))
    assert entities(state) == [("bob",), ("alice",)]


ENTITIES = (ALICE, BOB, Entity(client_id="c"), Entity(ip="10.0.0.1"))
ALTERATIONS = st.tuples(st.sampled_from(ENTITIES[:3]), st.sampled_from([PRODUCE, FETCH]), st.sampled_from([None, 1.0]))
FILES = st.dictionaries(
    st.sampled_from(ENTITIES[:3]), st.builds(Entry, st.dictionaries(st.just(PRODUCE), st.just(5.0)))
)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(st.one_of(st.lists(ALTERATIONS, min_size=1, max_size=2), FILES), max_size=6))
def test_what_is_in_force_after_changes_is_what_would_be_read_anew(tmp_path_factory, steps):
    path = tmp_path_factory.mktemp("state") / "state.json"
    source, entries = FileSource(FILE, "proxy.yaml", path), FILE
    source.start(lambda: None)
    try:
        for step in steps:
            if isinstance(step, dict):
                entries = step
                source.replace(entries)
            else:
                altered(source, *(Alteration(entity, {key: limit}) for entity, key, limit in step))
            anew = FileSource(entries, "proxy.yaml", path)
            with anew._disk:
                anew._read(path)
            anew._take_up()
            assert (source.quotas, source.problems) == (anew.quotas, anew.problems)
    finally:
        source.stop()


def test_a_file_that_no_other_process_has_changed_is_not_read_again(watched, state, monkeypatch):
    altered(watched.source, SET_BOB)
    read = []
    monkeypatch.setattr(file_source, "parse_overlay", lambda content: read.append(content) or {})
    altered(watched.source, Alteration(ALICE, {PRODUCE: 3.0}))
    assert read == []
    assert watched.source.quotas[BOB] == {PRODUCE: Limit(7.0, "state.json")}
