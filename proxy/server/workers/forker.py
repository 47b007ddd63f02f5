"""A process whose only work is to fork workers: it has imported everything, has one thread, and no event loop.

A worker starts within milliseconds so, without the imports of a new interpreter, and shares memory with the others. The
process also has all listening sockets of the workers: connections that come while a worker is replaced wait in its
socket.
"""

import asyncio
import gc
import json
import os
import select
import signal
import socket
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from kafka_throttle.proxy.observe import logs

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
"""Signals to the process group are for the supervisor: it says what happens to the others."""

_CLOSE = b"close"
_FORK_S = 10.0
"""How long the process may take to fork."""


class Forked(NamedTuple):
    """A new worker: its process, the socket to it, and a descriptor of the process where the system has such."""

    pid: int
    sock: socket.socket
    pidfd: int | None = None


def kill(pid: int, pidfd: int | None) -> None:
    """End a worker at once. Its number may be another process's as soon as it has ended; its descriptor never is."""
    with suppress(ProcessLookupError):
        if pidfd is None:
            os.kill(pid, signal.SIGKILL)
        else:
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)


class Forker:
    """The end of the supervisor. `ended` is called with the process and the exit status of each worker that ended.

    `lost` is called if the forking process itself has ended.
    """

    def __init__(self, control: socket.socket) -> None:
        self.ended: Callable[[int, int], None] = lambda pid, status: None
        self.lost: Callable[[], None] = lambda: None
        self._control = control
        self._requests = 0
        self._forking: dict[int, asyncio.Future[tuple[int, int | None]]] = {}
        """The future of each reply that is waited for, by the number of the request."""
        self._given_up: set[int] = set()
        """Processes that nobody waits for, until they have ended."""

    @classmethod
    def start(
        cls,
        sockets: Sequence[Sequence[socket.socket]],
        be_worker: Callable[[int, socket.socket], int],
        close_others: Callable[[], object],
    ) -> "Forker":
        """Fork the process. Call it while this process has one thread.

        `sockets` has the listening sockets of each worker. A new worker is `be_worker`, with its number and the socket
        to the supervisor, which returns its exit status. `close_others` closes what only the supervisor needs.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.collect()
        gc.freeze()
        if os.fork():
            theirs.close()
            gc.unfreeze()
            return cls(ours)
        ours.close()
        close_others()
        _leave(_ForkingProcess(theirs, sockets, be_worker).run)
        raise AssertionError("not reached")

    def watch(self) -> None:
        """Take what the process sends, on the running event loop."""
        self._control.setblocking(False)
        asyncio.get_running_loop().add_reader(self._control, self._take)

    async def fork(self, number: int) -> Forked:
        """Start the worker of this number. Raises OSError if that fails, or takes longer than 10 s."""
        self._requests += 1
        request = self._requests
        ours, theirs = socket.socketpair()
        forking = self._forking[request] = asyncio.get_running_loop().create_future()
        try:
            with theirs:
                socket.send_fds(self._control, [json.dumps([request, number]).encode()], [theirs.fileno()])
            async with asyncio.timeout(_FORK_S):
                pid, pidfd = await forking
        except BaseException:
            ours.close()
            raise
        finally:
            del self._forking[request]
        return Forked(pid, ours, pidfd)

    def close_listening(self) -> None:
        """Have the process close its listening sockets: no worker will be started any more."""
        with suppress(OSError):
            self._control.send(_CLOSE)

    def close(self) -> None:
        """Have the process end."""
        asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()

    def _take(self) -> None:
        try:
            data, pidfds, _, _ = socket.recv_fds(self._control, 1_000, 1)
        except BlockingIOError:
            return
        except OSError:
            data, pidfds = b"", []
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            for forking in self._forking.values():
                if not forking.done():
                    forking.set_exception(OSError("the process that forks workers has ended"))
            self.lost()
            return
        message = json.loads(data)
        if "ended" in message:
            if message["ended"] in self._given_up:
                self._given_up.remove(message["ended"])
            else:
                self.ended(message["ended"], message["status"])
        else:
            self._take_reply(message, pidfds[0] if pidfds else None)

    def _take_reply(self, message: dict[str, Any], pidfd: int | None) -> None:
        forking = self._forking.get(message["request"])
        if pidfd is not None:
            os.set_inheritable(pidfd, False)
        if forking is not None and not forking.done():
            if "pid" in message:
                forking.set_result((message["pid"], pidfd))
            else:
                forking.set_exception(OSError(message["problem"]))
        elif "pid" in message:  # its request was given up
            self._given_up.add(message["pid"])
            kill(message["pid"], pidfd)
            if pidfd is not None:
                os.close(pidfd)


class _ForkingProcess:
    """The process itself."""

    def __init__(
        self,
        control: socket.socket,
        sockets: Sequence[Sequence[socket.socket]],
        be_worker: Callable[[int, socket.socket], int],
    ) -> None:
        self._control = control
        self._sockets = sockets
        self._be_worker = be_worker
        self._woken, self._wake = socket.socketpair()

    def run(self) -> int:
        """Fork workers until the supervisor has ended."""
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno())
        while True:
            ready, _, _ = select.select([self._control, self._woken], [], [])
            if self._woken in ready:
                with suppress(BlockingIOError):
                    self._woken.recv(1_000)
                self._reap()
            if self._control in ready:
                data, fds, _, _ = socket.recv_fds(self._control, 100, 1)
                if not data:
                    return 0
                if data == _CLOSE:
                    self._close_all_but(None)
                else:
                    request, number = json.loads(data)
                    self._fork(request, number, socket.socket(fileno=fds[0]))

    def _fork(self, request: int, number: int, link: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._say({"request": request, "problem": error.strerror})
            link.close()
            return
        if pid:
            link.close()
            self._say_forked(request, pid)
            return
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for sock in (self._control, self._woken, self._wake):
            sock.close()
        self._close_all_but(number)
        _leave(lambda: self._be_worker(number, link))

    def _close_all_but(self, number: int | None) -> None:
        for i, sockets in enumerate(self._sockets):
            if i != number:
                for sock in sockets:
                    sock.close()

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._say({"ended": pid, "status": os.waitstatus_to_exitcode(status)})

    def _say_forked(self, request: int, pid: int) -> None:
        """The process is a child that nobody has waited for yet, so the descriptor is of no other."""
        pidfds = []
        with suppress(OSError):  # the kernel or a sandbox has none, or there are too many descriptors
            pidfds.append(os.pidfd_open(pid))
        self._say({"request": request, "pid": pid}, pidfds)
        for pidfd in pidfds:
            os.close(pidfd)

    def _say(self, message: dict[str, object], fds: Sequence[int] = ()) -> None:
        with suppress(OSError):
            socket.send_fds(self._control, [json.dumps(message).encode()], fds)


def _leave(run: Callable[[], int]) -> None:
    """Run a forked process, and end it without what its parent would do at its end."""
    status = 1
    try:
        status = run()
    except BaseException:
        logs.write_in_thread()
        traceback.print_exc()
    finally:
        logs.flush()
        os._exit(status)
