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
from typing import NamedTuple

from proxy.observe import logs

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR2)
"""Signals to the process group are for the supervisor: it says what happens to the others."""

_CLOSE = b"close"


class Forked(NamedTuple):
    """A new worker: its process, and the socket to it."""

    pid: int
    sock: socket.socket


class Forker:
    """The end of the supervisor. `ended` is called with the process and the exit status of each worker that ended.

    `lost` is called if the forking process itself has ended.
    """

    def __init__(self, control: socket.socket) -> None:
        self.ended: Callable[[int, int], None] = lambda pid, status: None
        self.lost: Callable[[], None] = lambda: None
        self._control = control
        self._forking: asyncio.Future[int] | None = None

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
        """Start the worker of this number. Raises OSError if that fails. One call at a time."""
        ours, theirs = socket.socketpair()
        with theirs:
            self._forking = asyncio.get_running_loop().create_future()
            socket.send_fds(self._control, [str(number).encode()], [theirs.fileno()])
        try:
            return Forked(await self._forking, ours)
        except BaseException:
            ours.close()
            raise

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
            data = self._control.recv(1_000)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            if self._forking is not None and not self._forking.done():
                self._forking.set_exception(OSError("the process that forks workers has ended"))
            self.lost()
            return
        message = json.loads(data)
        if "ended" in message:
            self.ended(message["ended"], message["status"])
        elif self._forking is not None and not self._forking.done():
            if "pid" in message:
                self._forking.set_result(message["pid"])
            else:
                self._forking.set_exception(OSError(message["problem"]))


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
                    self._fork(int(data), socket.socket(fileno=fds[0]))

    def _fork(self, number: int, link: socket.socket) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            self._say({"problem": error.strerror})
            link.close()
            return
        if pid:
            link.close()
            self._say({"pid": pid})
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

    def _say(self, message: dict[str, object]) -> None:
        with suppress(OSError):
            self._control.send(json.dumps(message).encode())


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
