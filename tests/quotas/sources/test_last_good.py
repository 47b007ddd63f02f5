"""The file of last good quotas: there after a restart, whole after a crash, harmless if it cannot be read."""

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from contextlib import contextmanager
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.changes import NO_QUOTAS, Limit
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.sources.last_good import LastGood, content, parse
from kafka_throttle.quotas.sources.source import SourceState
from tests.support.places import ROOT
from tests.support.waiting import wait_until

PRODUCE = QuotaKey(QuotaType.PRODUCE)
AT_ONCE = 0.0
NEVER_AGAIN = 3600.0
NAMES = st.text(min_size=1, max_size=8) | st.sampled_from(["<default>", "\ud800", "a/b", "ü\n\0"])


def limits(rate, layer="cluster"):
    return MappingProxyType({PRODUCE: Limit(rate, layer)})


ALICE = {Entity("alice"): limits(5.0)}
BOB = {Entity("bob"): limits(6.0)}


class Inner:
    """A source that gives what a test puts into it."""

    name = "upstream"

    def __init__(self, quotas=None):
        self.quotas = NO_QUOTAS
        self.problems = {}
        self.state = SourceState(known=False, up=False, age_s=None)
        self.started_with = None
        self.stopped = False
        self.changed = None
        self._first = quotas

    def start(self, changed, last_good=NO_QUOTAS):
        self.started_with, self.changed = last_good, changed
        self.quotas = last_good if self._first is None else self._first

    def stop(self):
        self.stopped = True

    def alter(self, alterations):
        return [None] * len(alterations)

    def give(self, quotas):
        self.quotas = quotas
        self.changed()


class Changes:
    """Waits for what calls of `changed` bring."""

    def __init__(self):
        self._news = threading.Condition()

    def __call__(self):
        with self._news:
            self._news.notify_all()

    def until(self, condition):
        with self._news:
            assert self._news.wait_for(condition, timeout=60)


@contextmanager
def started(inner, path, changes=lambda: None, write_every_s=AT_ONCE, last_good=NO_QUOTAS):
    source = LastGood(inner, path, write_every_s)
    source.start(changes, last_good)
    try:
        yield source
    finally:
        source.stop()


def kept(path):
    """What a new process would start with."""
    inner = Inner()
    with started(inner, path) as source:
        assert source.problems == {}
    return inner.started_with


def run_once(quotas, path):
    """A process that is given these quotas, and ends."""
    inner = Inner(quotas)
    with started(inner, path):
        pass
    assert inner.stopped


@pytest.fixture
def path(tmp_path):
    return tmp_path / "last-good.json"


# ---------------------------------------------------------------- a restart


@pytest.mark.rule("last good")
def test_the_next_process_starts_with_the_last_quotas(path):
    run_once(ALICE, path)
    assert kept(path) == ALICE
    run_once(BOB, path)
    assert kept(path) == BOB


def test_the_quotas_of_an_earlier_process_are_known_though_the_source_was_not_read(path):
    with started(Inner(), path) as source:
        assert source.state == (False, False, None)
    run_once(ALICE, path)
    with started(Inner(), path) as source:
        assert source.state == (True, False, None)
    path.write_text("{}")
    with started(Inner(), path) as source:
        assert not source.state.known


def test_that_a_source_has_no_quotas_is_known_to_the_next_process_too(path):
    inner = Inner({})
    inner.state = SourceState(known=True, up=True, age_s=0.0)
    with started(inner, path):
        pass
    assert path.exists()
    with started(Inner(), path) as source:
        assert source.state == (True, False, None)
        assert source.quotas == {}


def test_that_no_quotas_are_left_is_remembered_too(path):
    run_once(ALICE, path)
    run_once({}, path)
    assert kept(path) == {}


def test_without_a_file_it_starts_with_nothing_and_no_problem(path):
    assert kept(path) == {}
    assert list(path.parent.iterdir()) == []


def test_quotas_given_at_the_start_count_where_there_is_no_file(path):
    inner = Inner()
    with started(inner, path, last_good=BOB):
        assert inner.started_with == BOB
    assert kept(path) == BOB
    with started(inner, path, last_good=ALICE):
        assert inner.started_with == BOB


def test_it_is_otherwise_the_source_itself(path):
    inner = Inner(ALICE)
    with started(inner, path) as source:
        inner.problems = {"the cluster": "gone"}
        assert source.name == "upstream"
        assert source.quotas == ALICE
        assert source.problems == {"the cluster": "gone"}
        assert source.alter([1, 2]) == [None, None]


def test_only_the_owner_may_read_the_file_and_nothing_else_is_left(path):
    old = os.umask(0)
    try:
        run_once(ALICE, path)
    finally:
        os.umask(old)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(path.parent.iterdir()) == [path]


def entities():
    name = NAMES | st.just(DEFAULT)
    return (
        st.builds(Entity, user=name)
        | st.builds(Entity, client_id=name)
        | st.builds(Entity, user=name, client_id=name)
        | st.builds(Entity, ip=name)
    )


@st.composite
def values(draw, entity):
    rate = st.integers(1, 2**53).map(float)
    if entity.ip is not None:
        return {QuotaKey(QuotaType.CONNECTION): Limit(0.0, "a znode")}
    scope = draw(st.sampled_from(Scope))
    share = st.floats(0, 1e300, exclude_min=True)
    key = st.builds(QuotaKey, st.just(QuotaType.FETCH), st.booleans())
    others = draw(st.dictionaries(key, st.builds(Limit, rate, st.text(), st.just(scope))))
    return {**others, QuotaKey(QuotaType.REQUEST): Limit(draw(share), "ö", scope)}


@given(st.data())
def test_all_quotas_of_all_entities_survive_bit_for_bit(data):
    quotas = {entity: data.draw(values(entity)) for entity in data.draw(st.sets(entities(), max_size=4))}
    text = b"".join(content(quotas, "upstream"))
    assert parse(text, "upstream") == (quotas, [])
    json.loads(text)


# ------------------------------------------------------------------- writing


def test_a_change_is_written_without_an_end(path):
    inner = Inner(ALICE)
    with started(inner, path):
        inner.give(BOB)
        wait_until(lambda: path.exists() and parse(path.read_bytes(), "upstream") == (BOB, []))


def test_what_changes_again_at_once_is_written_later_and_at_the_end(path, monkeypatch):
    written = count_replaces(monkeypatch)
    inner = Inner(ALICE)
    with started(inner, path, write_every_s=NEVER_AGAIN):
        wait_until(lambda: written)
        for rate in range(1, 100):
            inner.give({Entity("alice"): limits(float(rate))})
    assert len(written) == 2
    assert kept(path) == {Entity("alice"): limits(99.0)}


def test_the_same_is_not_written_twice(path, monkeypatch):
    run_once(ALICE, path)
    written = count_replaces(monkeypatch)
    inner = Inner(ALICE)
    with started(inner, path):
        inner.give(dict(ALICE))
    assert written == []


def count_replaces(monkeypatch):
    replace, written = os.replace, []

    def counted(source, target):
        replace(source, target)
        written.append(target)

    monkeypatch.setattr(os, "replace", counted)
    return written


# ------------------------------------------------------ damaged, or not ours


DAMAGED = [
    (b"", "no JSON"),
    (b"\xff\xfe", "no JSON"),
    (b'{"version": 1, "source": "upstream", "quotas": [', "no JSON"),
    (b"[" * 100_000, "no JSON"),
    (b"[]", "expected version 1"),
    (b'{"version": 2, "source": "upstream", "quotas": []}', "expected version 1"),
    (b'{"version": 1, "source": "upstream"}', "KeyError"),
    (b'{"version": 1, "source": "upstream", "quotas": 5}', "TypeError"),
    (b'{"version": 1, "source": "upstream", "quotas": [{"entity": {"group": "g"}, "limits": {}}]}', "group"),
    (b'{"version": 1, "source": "upstream", "quotas": [{"entity": {"user": 5}, "limits": {}}]}', "expected a string"),
    (b'{"version": 1, "source": "upstream", "quotas": [{"entity": {}, "limits": {}}]}', "got nothing"),
]
LIMIT = '{"version": 1, "source": "upstream", "quotas": [{"entity": {"user": "a"}, "limits": {%s}}]}'
BAD_LIMITS = [
    ('"colour": {"value": 1, "layer": "x"}', "unknown quota 'colour'"),
    ('"producer_byte_rate": {"value": NaN, "layer": "x"}', "expected a whole number"),
    ('"producer_byte_rate": {"value": "5", "layer": "x"}', "TypeError"),
    ('"producer_byte_rate": 5', "TypeError"),
    ('"request_percentage": {"value": 1%s, "layer": "x"}' % ("0" * 400), "OverflowError"),
]


@pytest.mark.parametrize(
    ("text", "why"), [*DAMAGED, *(((LIMIT % limit).encode(), why) for limit, why in BAD_LIMITS)], ids=str
)
def test_an_invalid_file_is_moved_aside_and_reported(path, text, why):
    path.write_bytes(text)
    inner = Inner()
    aside = path.with_name("last-good.json.damaged")
    with started(inner, path) as source:
        assert inner.started_with == {}
        assert list(source.problems) == [str(aside)]
        assert why in source.problems[str(aside)]
    assert aside.read_bytes() == text
    assert not path.exists()


@pytest.mark.parametrize(("limit", "why"), BAD_LIMITS, ids=str)
def test_of_a_file_with_mistakes_all_else_is_used_and_the_file_is_kept_aside(path, limit, why):
    run_once(ALICE, path)
    [(alice, limits)] = ALICE.items()
    good = path.read_text().removesuffix("\n]}\n")
    wrong = f'{{"entity": {{"user": "a"}}, "limits": {{{limit}, "consumer_byte_rate": {{"value": 7, "layer": "x"}}}}}}'
    path.write_text(f'{good},\n{wrong},\n{{"entity": {{"group": "g"}}, "limits": {{}}}}\n]}}\n')
    content, inner = path.read_bytes(), Inner()
    aside = path.with_name("last-good.json.damaged")
    with started(inner, path) as source:
        assert inner.started_with == {alice: limits, Entity("a"): {QuotaKey(QuotaType.FETCH): Limit(7.0, "x")}}
        assert source.state.known
        [(place, problem)] = source.problems.items()
        assert place == str(aside)
        assert problem.startswith("the last good quotas lack what cannot be read: ")
        assert why in problem
        assert problem.endswith(", and 1 more; kept from last-good.json")
    assert aside.read_bytes() == content


@pytest.mark.parametrize(
    "text",
    [
        b'{"version": 1, "source": "zookeeper", "quotas": []}',
        b'{"version": 1, "overlay": []}',
    ],
)
def test_a_file_of_another_source_is_left_alone(path, text):
    path.write_bytes(text)
    run_once(ALICE, path)
    assert path.read_bytes() == text
    with started(Inner(), path) as source:
        assert "choose another state_file" in source.problems[str(path)]
    assert [found.name for found in path.parent.iterdir()] == [path.name]


def test_several_damaged_files_are_kept_under_different_names(path):
    for text in (b"one", b"two"):
        path.write_bytes(text)
        run_once(ALICE, path)
    aside = path.with_name(f"{path.name}.damaged")
    assert aside.read_bytes() == b"one"
    assert aside.with_name(f"{aside.name}-2").read_bytes() == b"two"


def test_after_a_damaged_file_a_good_one_is_written(path):
    path.write_bytes(b"rubbish")
    run_once(ALICE, path)
    assert kept(path) == ALICE


def test_a_file_that_cannot_be_read_is_a_problem_and_stays(path):
    path.mkdir()
    inner = Inner()
    with started(inner, path) as source:
        assert inner.started_with == {}
        assert "cannot be read: Is a directory" in source.problems[str(path)]
    assert path.is_dir()


# ---------------------------------------------------- a disk that does not do


def failing(name, error):
    """The name of a function of `os`, one that fails in its place, and why it says so."""

    def fail(*_):
        raise OSError(error, os.strerror(error))

    return name, fail, os.strerror(error)


@pytest.mark.parametrize(
    ("name", "fail", "why"),
    [
        failing("replace", errno.EACCES),
        failing("fsync", errno.EIO),
        failing("fstat", errno.EIO),
        failing("fsync", errno.ENOSPC),
        failing("open", errno.EROFS),
    ],
)
def test_a_disk_that_fails_is_a_problem_that_goes_with_it_and_quotas_stay(path, monkeypatch, name, fail, why):
    run_once(ALICE, path)
    inner, changes = Inner(), Changes()
    with started(inner, path, changes) as source:
        with monkeypatch.context() as broken:
            broken.setattr(os, name, fail)
            inner.give(BOB)
            changes.until(lambda: source.problems)
            assert source.problems == {str(path): f"the last good quotas cannot be written: {why}"}
            assert source.quotas == BOB
            assert parse(path.read_bytes(), "upstream")[0] in (ALICE, BOB)
        changes.until(lambda: not source.problems)
    assert kept(path) == BOB
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_leaves_the_old_file(path):
    """A limit to the size of files stands for the disk: the write itself fails half-way."""
    run_once(ALICE, path)
    done = in_another_process(path, "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))", rounds=1)
    assert done.communicate(timeout=60)[0].splitlines()[-1].endswith("cannot be written: File too large")
    assert kept(path) == ALICE
    assert list(path.parent.iterdir()) == [path]


def test_a_missing_folder_is_a_problem(tmp_path):
    path = tmp_path / "nowhere" / "last-good.json"
    changes = Changes()
    with started(Inner(ALICE), path, changes) as source:
        changes.until(lambda: source.problems)
        assert source.problems == {str(path): "the last good quotas cannot be written: No such file or directory"}
        assert source.quotas == ALICE
        path.parent.mkdir()
        changes.until(lambda: not source.problems)
    assert kept(path) == ALICE


def test_a_file_that_is_removed_is_written_again(tmp_path, monkeypatch):
    monkeypatch.setattr("kafka_throttle.quotas.sources.last_good._LOOK_EVERY_S", 0.01)
    path = tmp_path / "deep" / "last-good.json"
    path.parent.mkdir()
    run_once(ALICE, path)
    changes = Changes()
    with started(Inner(), path, changes) as source:
        path.unlink()
        wait_until(path.exists)
        path.parent.rename(tmp_path / "gone")  # at once, as the source may be writing
        changes.until(lambda: source.problems)
        path.parent.mkdir()
        changes.until(lambda: not source.problems)
    assert kept(path) == ALICE


@pytest.mark.parametrize("name", ["open", "fsync"])
@pytest.mark.parametrize("error", [errno.EINVAL, errno.EIO])
def test_a_directory_that_cannot_be_synced_is_no_problem_as_the_file_is_there(path, monkeypatch, name, error):
    real = getattr(os, name)

    def fail(what, *args):
        flags = args[0] if args else 0
        if flags & os.O_DIRECTORY or (isinstance(what, int) and stat.S_ISDIR(os.fstat(what).st_mode)):
            raise OSError(error, os.strerror(error))
        return real(what, *args)

    monkeypatch.setattr(os, name, fail)
    changes = Changes()
    inner = Inner(ALICE)
    with started(inner, path, changes) as source:
        wait_until(path.exists)
        inner.give(BOB)
    assert source.problems == {}
    assert kept(path) == BOB


WRITER = """
import resource, signal, sys
from pathlib import Path
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources.last_good import content
from kafka_throttle.quotas.changes import (Limit)
from kafka_throttle.common.atomic_file import write_whole

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
{setup}
for round in range({rounds}):
    limits = {{QuotaKey(QuotaType.PRODUCE): Limit(round + 1.0, "cluster")}}
    try:
        write_whole(path, content({{Entity(f"user-{{n}}"): limits for n in range(300)}}, "upstream"))
        print("written", flush=True)
    except OSError as error:
        print("cannot be written:", error.strerror, flush=True)
"""


def in_another_process(path, setup="", rounds=1_000_000):
    """Writes 300 quotas again and again, another rate each time."""
    script = WRITER.format(setup=setup, rounds=rounds)
    command = [sys.executable, "-c", script, str(path)]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def test_a_process_killed_at_any_moment_leaves_a_whole_file(path):
    for kill_after_s in (0.0, 0.001, 0.003, 0.007, 0.012, 0.02):
        with in_another_process(path) as writer:
            assert writer.stdout.readline() == "written\n"
            threading.Event().wait(kill_after_s)
            writer.kill()
        quotas, _ = parse(path.read_bytes(), "upstream")
        assert len(quotas) == 300
        assert len({str(limits) for limits in quotas.values()}) == 1
    run_once(ALICE, path)
    assert list(path.parent.iterdir()) == [path]
