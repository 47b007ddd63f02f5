"""One process takes over from another: its listening sockets, and what its sensors have measured.

The old process starts the new one with one end of a pair of Unix sockets, and sends all listening sockets through it at
once. Then messages go to and fro:

=========  =========  =====================================================================================
from       message    says
=========  =========  =====================================================================================
old        welcome    whether the old process is ready
old        about      the format, the windows and the clock of its sensors
new        ready      the configuration, the quotas and the nodes are known: it can serve
old        rows       copies of rows; the last ones after the old process has stopped to accept connections
old        go         all rows are sent
new        accepting  it accepts connections. From now on the old process closes its connections when they are idle
old        charges    what the connections that are left were charged with, again and again until the end
=========  =========  =====================================================================================

If either end fails before `accepting`, the old process goes on as before. If that was killed, the new one takes its
place, but without `welcome` it ends: the old one was stopped while it started the new one. As both have the listening
sockets, there is no moment at which nobody listens, and a connection that nobody has accepted yet waits for the one
that goes on.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Sequence

import structlog

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.installed import command_of_successor, environment_of_successor
from kafka_throttle.proxy.server.sensor_messages import ABOUT, HEAD, Message, SensorIntake, about, of_charges, of_rows
from kafka_throttle.quotas.row_copies import Copier, Sensing

PAIR = "KAFKA_THROTTLE_HANDOVER"
"""The environment variable with the descriptor of the new process's end, and the id of the old process."""

WELCOME, READY, GO, ACCEPTING = "welcome", "ready", "go", "accepting"

_FDS_AT_ONCE = 64
_MORE, _LAST = b"+", b"."
_SOCKETS_S = 10.0
_END_S = 5.0
_CHARGES_S = 0.25
_PAUSES = 3
"""How many times longer a pause is than a look at all sensors, if there are very many of them."""

log = structlog.get_logger()


class HandoverFailed(Exception):
    """The other process did not do its part; the text says what."""


class NoWelcome(HandoverFailed):
    """The old process has ended, or given up, before it was certain that it wants a successor."""


class Channel:
    """Messages between the two processes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, sock: socket.socket) -> "Channel":
        """The channel over one end of the pair of sockets."""
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock))

    async def send(self, message: Message) -> None:
        """Send a message; wait while the other process has not taken enough of the earlier ones."""
        self._writer.write(message.packed())
        await self._writer.drain()

    async def receive(self) -> Message:
        """The next message. Raises HandoverFailed when no more come."""
        try:
            text_size, size = HEAD.unpack(await self._reader.readexactly(HEAD.size))
            return Message.of(await self._reader.readexactly(text_size), await self._reader.readexactly(size))
        except (asyncio.IncompleteReadError, OSError):
            raise HandoverFailed("the other process has ended") from None

    async def expect(self, kind: str) -> Message:
        """The next message, which must be of this kind. Raises HandoverFailed."""
        message = await self.receive()
        if message.kind != kind:
            raise HandoverFailed(f"expected the message {kind!r}, got {message.kind!r}")
        return message

    async def close(self) -> None:
        """Send what is left, and close."""
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()


# ------------------------------------------------------------------ the old end


class Successor:
    """The process that takes over from this one."""

    def __init__(self, process: "subprocess.Popen[bytes]", channel: Channel) -> None:
        self.pid = process.pid
        self.channel = channel
        self._process = process

    @classmethod
    async def start(cls, sockets: Sequence[socket.socket]) -> "Successor":
        """Start the program that is installed now, with the arguments of this process, and send it these sockets.

        Raises HandoverFailed.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.to_thread(_start, theirs)
        except OSError as error:
            ours.close()
            raise HandoverFailed(f"the new process cannot be started: {error.strerror or error}") from error
        successor = cls(process, await Channel.over(ours.dup()))
        with ours, contextlib.suppress(OSError):  # if it has ended, nothing is received either
            await asyncio.to_thread(_send, ours, sockets)
        return successor

    async def status(self) -> int | None:
        """The exit status of the process, which has closed its end; None if it does not end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(self._process.wait, _END_S)
        return None

    async def end(self) -> None:
        """End the process at once."""
        self._process.kill()
        self._process.wait()
        await self.channel.close()


def _start(theirs: socket.socket) -> "subprocess.Popen[bytes]":
    fd = theirs.fileno()
    environment = {**environment_of_successor(), PAIR: f"{fd}:{os.getpid()}"}
    return subprocess.Popen(command_of_successor(), env=environment, pass_fds=[fd], stdin=subprocess.DEVNULL)


def _send(ours: socket.socket, sockets: Sequence[socket.socket]) -> None:
    ours.settimeout(_SOCKETS_S)
    batches = [sockets[at : at + _FDS_AT_ONCE] for at in range(0, len(sockets), _FDS_AT_ONCE)]
    for batch in batches:
        what = _LAST if batch is batches[-1] else _MORE
        socket.send_fds(ours, [what], [sock.fileno() for sock in batch])


class HandingOver:
    """Hands the sensors and the listening sockets of this process over.

    `suspend` has this process accept no more connections, `resume` has it accept them again.
    """

    def __init__(self, sensing: Sensing, clock: Clock, suspend: Callable[[], None], resume: Callable[[], None]) -> None:
        self.rows = 0
        """How many rows were sent."""
        self.suspended_ms = 0
        """For how long neither process accepted connections; they waited."""
        self._sensing = sensing
        self._copier = Copier(sensing)
        self._clock = clock
        self._suspend = suspend
        self._resume = resume

    async def to_successor(
        self, sockets: Sequence[socket.socket], timeout_s: float, *, is_ready: bool, is_activated: bool
    ) -> Successor:
        """Start a process, and return when it accepts connections instead of this one.

        `is_ready` says whether this process is, and `is_activated` whether systemd keeps the sockets open, too. Raises
        HandoverFailed; then this process goes on, and the other one has ended.
        """
        successor = await Successor.start(sockets)
        accepts = False
        try:
            async with asyncio.timeout(timeout_s):
                await successor.channel.send(Message(WELCOME, {"ready": is_ready, "activated": is_activated}, b""))
                await self._hand_over(successor.channel)
            accepts = True
        except TimeoutError:
            raise HandoverFailed(f"the new process did not accept connections within {timeout_s:.0f} s") from None
        except (HandoverFailed, OSError) as error:
            status = await successor.status()
            raise HandoverFailed(f"{error}" if status is None else f"{error}, with exit status {status}") from error
        finally:
            if not accepts:
                await successor.end()
        return successor

    async def _hand_over(self, channel: Channel) -> None:
        await channel.send(about(self._sensing, self._clock))
        await channel.expect(READY)
        await self._send_rows(channel)
        self._suspend()
        begin_ms = self._clock.now_ms()
        try:
            await self._send_rows(channel)
            await channel.send(Message(GO, {}, b""))
            await channel.expect(ACCEPTING)
        except BaseException:
            self._resume()
            raise
        self.suspended_ms = self._clock.now_ms() - begin_ms

    async def _send_rows(self, channel: Channel) -> None:
        """Send all rows that were not sent, or have changed since."""
        for copies in self._copier.changed():
            if copies:
                self.rows += len(copies)
                await channel.send(of_rows(copies))
            await asyncio.sleep(0)

    async def keep_charging(self, successor: Successor) -> None:
        """Tell the successor what the connections that are left are charged with, until cancelled."""
        try:
            pause_s = _CHARGES_S
            while True:
                await asyncio.sleep(pause_s)
                begin_ms = self._clock.now_ms()
                await self._send_charges(successor)
                pause_s = max(_CHARGES_S, (self._clock.now_ms() - begin_ms) * _PAUSES / 1000)
        except OSError:
            log.warning("successor_lost", successor_pid=successor.pid)

    async def finish(self, successor: Successor) -> None:
        """Tell the successor the last charges, when no connection is left."""
        with contextlib.suppress(OSError):
            await self._send_charges(successor)
        await successor.channel.close()

    async def _send_charges(self, successor: Successor) -> None:
        for charges in self._copier.charges():
            if charges:
                await successor.channel.send(of_charges(charges))
            await asyncio.sleep(0)


# ------------------------------------------------------------------ the new end


class Predecessor:
    """The process that this one takes over from, and its listening `sockets`."""

    def __init__(self, ours: socket.socket, pid: int) -> None:
        """`pid` is its number. Raises HandoverFailed if the sockets do not come."""
        ours.set_inheritable(False)
        ours.settimeout(_SOCKETS_S)
        self._ours = ours
        self._pid = pid
        self._channel: Channel | None = None
        self.sockets = list(_received(ours))
        self.is_activated = False
        """Whether systemd has passed these sockets to an earlier process, and keeps them open."""

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet: a process whose parent has ended gets another one."""
        return os.getppid() == self._pid

    async def take_over(self, intake: SensorIntake, until_ready: Callable[[], Awaitable[None]]) -> None:
        """Take over what it has measured, and return when it accepts no more connections.

        If it is ready, `until_ready` is waited for first. Raises NoWelcome if this process must not go on, and
        HandoverFailed if the other one has ended.
        """
        channel = self._channel = await Channel.over(self._ours)
        try:
            welcome = (await channel.expect(WELCOME)).fields
        except HandoverFailed as error:
            raise NoWelcome(str(error)) from None
        self.is_activated = welcome["activated"]
        intake.take(await channel.expect(ABOUT))
        first = asyncio.ensure_future(channel.receive())  # comes after `ready`; fails at once if the process ends
        if welcome["ready"]:
            readying = asyncio.ensure_future(until_ready())
            await asyncio.wait({first, readying}, return_when=asyncio.FIRST_COMPLETED)
            readying.cancel()
        if not first.done():
            await channel.send(Message(READY, {}, b""))
        message = await first
        while message.kind != GO:
            intake.take(message)
            message = await channel.receive()

    async def follow(self, intake: SensorIntake) -> None:
        """Say that this process accepts connections, and note what the other one charges until it has ended."""
        assert self._channel is not None
        with contextlib.suppress(HandoverFailed, OSError):
            await self._channel.send(Message(ACCEPTING, {}, b""))
            while True:
                intake.take(await self._channel.receive())
        await self._channel.close()


def predecessor() -> Predecessor | None:
    """The process that has started this one to take over from it; None if there is none. Call it once.

    Raises HandoverFailed if that process has ended.
    """
    fd, _, pid = os.environ.pop(PAIR, "").partition(":")
    if not fd:
        return None
    if int(pid) != os.getppid():
        raise HandoverFailed("the other process has ended")
    return Predecessor(socket.socket(fileno=int(fd)), int(pid))


def _received(ours: socket.socket) -> Iterator[socket.socket]:
    what = _MORE
    while what == _MORE:
        try:
            what, fds, _, _ = socket.recv_fds(ours, 1, _FDS_AT_ONCE)
        except OSError as error:
            raise HandoverFailed(f"the listening sockets do not come: {error.strerror or error}") from error
        for fd in fds:
            os.set_inheritable(fd, False)
            yield socket.socket(fileno=fd)
    if what != _LAST:
        raise HandoverFailed("the other process has ended")
