"""The connection between the supervisor and one of its workers: messages and questions, both ways, in order.

Both ends are processes of one program, forked from each other, over a pair of Unix sockets that nobody else can reach.
So the messages are pickles of the program's own types.
"""

import asyncio
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import structlog

_HEAD = struct.Struct(">I")
_MOST_WAITING_BYTES = 256 << 20
"""With more than this unsent, the other end reads nothing any more: it is given up."""

_TELL, _ASK, _ANSWER, _FAILURE = range(4)

log = structlog.get_logger()

Handler = Callable[..., Any]
"""What a message calls, with the arguments of the message. For a question it is a coroutine function."""


class LinkLost(Exception):
    """The other process has ended, or reads nothing any more."""


class Link:
    """One end. `tells` are called for messages, at once and in the order of their arrival; `asks` answer questions.

    An exception that is raised for a question is raised again where it was asked.
    """

    def __init__(
        self, sock: socket.socket, tells: Mapping[str, Handler], asks: Mapping[str, Callable[..., Awaitable[Any]]]
    ) -> None:
        self._sock = sock
        self._tells = tells
        self._asks = asks
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._number = 0
        self._questions: dict[int, asyncio.Future[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self.is_lost = False
        """Whether the other end has closed."""
        self.received = 0
        """How many messages have come. Each shows that the other process still runs."""

    async def open(self) -> None:
        """From now on messages can be sent."""
        self._sock.setblocking(False)
        self._reader, self._writer = await asyncio.open_unix_connection(sock=self._sock)

    async def run(self) -> None:
        """Take what the other end sends, until it closes."""
        assert self._reader is not None
        try:
            while True:
                [size] = _HEAD.unpack(await self._reader.readexactly(_HEAD.size))
                content = await self._reader.readexactly(size)
                self.received += 1
                self._take(*pickle.loads(content))
        except (asyncio.IncompleteReadError, OSError):
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Close this end. Questions that are open raise LinkLost."""
        self.is_lost = True
        for question in self._questions.values():
            if not question.done():
                question.set_exception(LinkLost())
        self._questions.clear()
        if self._writer is not None:
            self._writer.close()

    def abort(self) -> None:
        """The same without waiting until the other end has read what was sent."""
        if self._writer is not None:
            self._writer.transport.abort()
        self.close()

    def tell(self, what: str, *args: Any) -> None:
        """Send a message. It is lost if the other end is."""
        self._send(_TELL, 0, what, args)

    async def ask(self, what: str, *args: Any, timeout_s: float | None = None) -> Any:
        """Ask a question. Raises LinkLost, TimeoutError, or what was raised at the other end."""
        if self.is_lost:
            raise LinkLost
        self._number += 1
        number = self._number
        question = self._questions[number] = asyncio.get_running_loop().create_future()
        self._send(_ASK, number, what, args)
        try:
            async with asyncio.timeout(timeout_s):
                return await question
        finally:
            self._questions.pop(number, None)

    def _send(self, kind: int, number: int, what: str, content: Any) -> None:
        if self.is_lost or self._writer is None:
            return
        data = pickle.dumps((kind, number, what, content), pickle.HIGHEST_PROTOCOL)
        self._writer.write(_HEAD.pack(len(data)) + data)
        if self._writer.transport.get_write_buffer_size() > _MOST_WAITING_BYTES:
            log.error("worker_link_given_up", problem="the other process reads nothing any more")
            self.abort()

    def _take(self, kind: int, number: int, what: str, content: Any) -> None:
        if kind == _TELL:
            self._tells[what](*content)
        elif kind == _ASK:
            task = asyncio.get_running_loop().create_task(self._answer(number, what, content))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif (question := self._questions.get(number)) is not None and not question.done():
            if kind == _ANSWER:
                question.set_result(content)
            else:
                question.set_exception(content)

    async def _answer(self, number: int, what: str, args: Any) -> None:
        try:
            answer = await self._asks[what](*args)
        except Exception as error:
            self._send(_FAILURE, number, "", _portable(error))
        else:
            self._send(_ANSWER, number, "", answer)


def _portable(error: Exception) -> Exception:
    """The exception if it can be sent, else its text."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(repr(error))
    return error
