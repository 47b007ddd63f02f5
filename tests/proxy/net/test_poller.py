"""One sweep over the sockets that are ready: what goes out when, and which descriptor is whose."""

import asyncio
import contextlib
import os
import socket

import pytest

from kafka_throttle.proxy.net import poller, swept_poller
from kafka_throttle.proxy.net.poller import READABLE, WRITABLE
from kafka_throttle.proxy.net.swept_poller import new_poller


class Sockets:
    """Pairs, of which ours are watched by the poller and read when it calls back."""

    def __init__(self, stack):
        self.poller = new_poller()
        self.stack = stack
        self.happened = []

    def pair(self):
        return [self.stack.enter_context(sock) for sock in socket.socketpair()]

    def ready(self, count):
        """So many that are ready; each notes its turn, and what it has had done soon and at the end."""
        for number in range(count):
            ours, theirs = self.pair()
            theirs.send(b"x")
            self.poller.add(ours.fileno(), READABLE, lambda _, number=number, ours=ours: self.note(number, ours))

    def note(self, number, ours):
        ours.recv(1)
        self.happened.append(f"turn {number}")
        self.poller.soon(lambda: self.happened.append(f"soon {number}"))
        self.poller.at_end(lambda: self.happened.append(f"end {number}"))


@pytest.fixture
async def sockets():
    with contextlib.ExitStack() as stack:
        yield Sockets(stack)


@pytest.mark.pure
async def test_what_is_to_be_done_soon_is_done_when_a_batch_is_over_and_the_rest_at_the_end(sockets, monkeypatch):
    for module in (poller, swept_poller):
        monkeypatch.setattr(module, "BATCH", 2)
    sockets.ready(3)
    sockets.poller._serve()
    turns = [int(what.split()[1]) for what in sockets.happened if what.startswith("turn")]
    first, second, third = turns
    assert sockets.happened == [
        f"turn {first}",
        f"turn {second}",
        f"soon {first}",
        f"soon {second}",
        f"turn {third}",
        f"soon {third}",
        *[f"end {number}" for number in turns],
    ]


async def test_outside_of_a_sweep_soon_is_later_and_the_end_is_now(sockets):
    sockets.poller.soon(lambda: sockets.happened.append("soon"))
    sockets.poller.at_end(lambda: sockets.happened.append("end"))
    assert sockets.happened == ["end"]
    await asyncio.sleep(0)
    assert sockets.happened == ["end", "soon"]


async def test_what_others_have_had_done_is_done_though_one_of_them_fails(sockets):
    sockets.ready(1)
    broken, theirs = sockets.pair()
    theirs.send(b"x")

    def fail(_events):
        broken.recv(1)
        raise RuntimeError("a bug")

    sockets.poller.add(broken.fileno(), READABLE, fail)
    with pytest.raises(RuntimeError):
        sockets.poller._serve()
    assert sockets.happened == ["turn 0", "soon 0", "end 0"]
    assert not sockets.poller.sweeps


async def test_a_failure_at_the_end_of_a_batch_is_logged_and_the_calls_of_others_are_made(sockets):
    reported = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: reported.append(context["exception"]))
    failure = RuntimeError("a bug")

    def fail():
        raise failure

    broken, theirs = sockets.pair()
    theirs.send(b"x")

    def have_it_fail(_events):
        broken.recv(1)
        sockets.poller.soon(fail)
        sockets.poller.at_end(fail)

    sockets.poller.add(broken.fileno(), READABLE, have_it_fail)
    sockets.ready(1)
    sockets.poller._serve()
    assert sockets.happened == ["turn 0", "soon 0", "end 0"]
    assert reported == [failure, failure]


async def test_a_descriptor_that_is_handed_on_is_watched_for_what_the_next_owner_wants(sockets):
    ours, theirs = sockets.pair()

    def receive(sock):
        sockets.poller.add(sock.fileno(), READABLE, lambda events: sockets.happened.append(events))

    sockets.poller.add(ours.fileno(), WRITABLE, lambda _events: sockets.poller.hand_on(ours, receive))
    sockets.poller._serve()
    sockets.poller._serve()
    assert sockets.happened == []  # it is writable still, but that is not asked for any more
    theirs.send(b"x")
    sockets.poller._serve()
    assert sockets.happened == [READABLE]


async def test_the_number_of_a_descriptor_that_was_handed_on_and_closed_can_be_watched_anew(sockets):
    ours, _ = sockets.pair()
    number = ours.fileno()

    sockets.poller.add(number, WRITABLE, lambda _events: sockets.poller.hand_on(ours, lambda sock: sock.close()))
    sockets.poller._serve()
    new, theirs = sockets.pair()
    sockets.poller.add(new.fileno(), READABLE, lambda events: sockets.happened.append(events))  # mostly the same number
    theirs.send(b"x")
    sockets.poller._serve()
    assert sockets.happened == [READABLE]


async def test_the_number_is_free_though_the_callback_has_failed(sockets):
    ours, theirs = sockets.pair()
    number = ours.fileno()

    def fail(sock):
        sock.close()
        raise RuntimeError("a bug")

    sockets.poller.add(number, WRITABLE, lambda _events: sockets.poller.hand_on(ours, fail))
    with pytest.raises(RuntimeError):
        sockets.poller._serve()
    os.dup2(theirs.fileno(), number)
    try:
        sockets.poller.add(number, WRITABLE, lambda events: sockets.happened.append(number))
        sockets.poller._serve()
        sockets.poller.remove(number)
    finally:
        os.close(number)
    assert sockets.happened == [number]


@pytest.mark.pure
async def test_only_so_many_wait_for_the_end(sockets, monkeypatch):
    monkeypatch.setattr(poller, "_MOST_AT_END", 1)
    sockets.ready(2)
    sockets.poller._serve()
    first, second = (int(what.split()[1]) for what in sockets.happened if what.startswith("turn"))
    assert sockets.happened[:3] == [f"turn {first}", f"turn {second}", f"end {second}"]
    assert sockets.happened[-1] == f"end {first}"


async def test_one_sweep_in_so_many_has_the_time_at_which_it_began(sockets):
    times = []
    sockets.poller.sample(3, lambda: 7)
    for _ in range(7):
        ours, theirs = sockets.pair()
        theirs.send(b"x")
        sockets.poller.add(
            ours.fileno(), READABLE, lambda _, ours=ours: times.append((sockets.poller.sampled_us, ours.recv(1)))
        )
        sockets.poller._serve()
        assert sockets.poller.sampled_us == 0
    assert [since_us for since_us, _ in times] == [0, 0, 7, 0, 0, 7, 0]
