"""The supervisor's side of the process that forks workers: each reply belongs to its request."""

import asyncio
import json
import os
import signal
import socket
import subprocess
from contextlib import suppress

import pytest

from kafka_throttle.proxy.server.workers import forker as forkers
from kafka_throttle.proxy.server.workers.forker import Forker
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import until


class ForkingProcess:
    """In place of the process: takes requests, and replies when the test says so."""

    def __init__(self, sock):
        self._sock = sock
        sock.setblocking(False)

    async def request(self):
        """The number of the next request, and that of its worker."""
        data = await asyncio.wait_for(asyncio.get_running_loop().sock_recv(self._sock, 1_000), TIMEOUT_S)
        return json.loads(data)

    def reply(self, request, fds=(), **message):
        socket.send_fds(self._sock, [json.dumps({"request": request, **message}).encode()], fds)

    def reply_with(self, request, process):
        """Say that this process is the worker."""
        pidfd = os.pidfd_open(process.pid)
        self.reply(request, [pidfd], pid=process.pid)
        os.close(pidfd)

    def tell_end(self, pid):
        """Say that this process has ended."""
        self._sock.send(json.dumps({"ended": pid, "status": 0}).encode())

    def end(self):
        self._sock.close()


@pytest.fixture
async def both():
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    forker, process = Forker(ours), ForkingProcess(theirs)
    forker.watch()
    yield forker, process
    forker.close()
    process.end()


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield process
        process.kill()


async def test_a_late_reply_to_a_request_that_was_given_up_is_not_taken_for_the_next_one(both, sleeper):
    forker, process = both
    ended = []
    forker.ended = lambda pid, status: ended.append((pid, status))
    first = asyncio.create_task(forker.fork(1))
    request, worker = await process.request()
    assert worker == 1
    first.cancel()
    with suppress(asyncio.CancelledError):
        await first
    second = asyncio.create_task(forker.fork(2))
    next_request, worker = await process.request()
    assert worker == 2
    process.reply_with(request, sleeper)
    process.reply(next_request, pid=4_000_000)
    forked = await asyncio.wait_for(second, TIMEOUT_S)
    assert (forked.pid, forked.pidfd) == (4_000_000, None)
    forked.sock.close()
    status = await asyncio.to_thread(sleeper.wait, TIMEOUT_S)
    assert status == -signal.SIGKILL, "nobody waits for that worker any more"
    for pid in (sleeper.pid, forked.pid):
        process.tell_end(pid)
    await until(lambda: ended)
    assert ended == [(forked.pid, 0)]


async def test_two_requests_may_be_under_way(both):
    forker, process = both
    forking = [asyncio.create_task(forker.fork(number)) for number in (1, 2)]
    requests = [await process.request() for _ in forking]
    for request, worker in reversed(requests):
        process.reply(request, pid=1_000 + worker)
    forked = await asyncio.gather(*forking)
    assert [each.pid for each in forked] == [1_001, 1_002]
    for each in forked:
        each.sock.close()


async def test_a_worker_comes_with_a_descriptor_of_its_process_that_no_child_inherits(both, sleeper):
    forker, process = both
    forking = asyncio.create_task(forker.fork(1))
    request, _ = await process.request()
    process.reply_with(request, sleeper)
    forked = await forking
    assert not os.get_inheritable(forked.pidfd)
    forkers.kill(forked.pid, forked.pidfd)
    await asyncio.to_thread(sleeper.wait, TIMEOUT_S)
    forkers.kill(forked.pid, forked.pidfd)  # it has ended: nobody else is
    os.close(forked.pidfd)
    forked.sock.close()


async def test_a_process_that_stands_still_is_a_failure_in_time(both, monkeypatch):
    monkeypatch.setattr(forkers, "_FORK_S", 0.01)
    forker, _ = both
    with pytest.raises(OSError):
        await forker.fork(1)


async def test_all_that_wait_know_when_it_has_ended(both):
    forker, process = both
    lost = []
    forker.lost = lambda: lost.append(1)
    forking = [asyncio.create_task(forker.fork(number)) for number in (1, 2)]
    for _ in forking:
        await process.request()
    process.end()
    results = await asyncio.gather(*forking, return_exceptions=True)
    assert [str(error) for error in results] == ["the process that forks workers has ended"] * 2
    assert lost == [1]
