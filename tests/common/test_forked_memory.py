"""Values that processes share which were forked from one."""

import os

import pytest

from kafka_throttle.common.forked_memory import ForkedMemory


def put(memory, key, **fields):
    with memory.value(key) as value:
        value |= fields


def got(memory, key):
    with memory.value(key) as value:
        return dict(value)


def forked(work):
    """Do it in another process."""
    if not (pid := os.fork()):
        try:
            work()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)


@pytest.fixture
def memory():
    memory = ForkedMemory()
    yield memory
    os.close(memory._file)


def test_what_one_process_notes_all_know(memory):
    put(memory, "a", x=1)
    forked(lambda: put(memory, "a", y=got(memory, "a")["x"] + 1))
    forked(lambda: put(memory, "b", z="long" * 1000))
    assert got(memory, "a") == {"x": 1, "y": 2}
    forked(lambda: put(memory, "b", z=""))
    assert (got(memory, "a"), got(memory, "b")) == ({"x": 1, "y": 2}, {"z": ""})


def test_what_was_made_before_an_error_is_kept_and_the_next_has_its_turn(memory):
    def fail():
        with memory.value("a") as value:
            value["x"] = 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert got(memory, "a") == {"x": 1}


def test_what_a_process_left_half_written_is_forgotten(memory):
    put(memory, "a", x=1)
    os.ftruncate(memory._file, 5)
    assert got(memory, "a") == {}
    put(memory, "a", x=2)
    assert got(memory, "a") == {"x": 2}


def test_a_system_without_such_memory_has_values_of_each_process(monkeypatch):
    def refuse(_name):
        raise OSError

    monkeypatch.setattr(os, "memfd_create", refuse)
    memory = ForkedMemory()
    put(memory, "a", x=1)
    forked(lambda: put(memory, "a", x=2))
    assert got(memory, "a") == {"x": 1}
