"""A TCP socket of one side of a connection: non-blocking reads, buffered writes, back-pressure."""

import asyncio
import contextlib
import errno
import os
import socket
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fcntl import ioctl
from itertools import islice
from typing import Final, Protocol

from kafka_throttle.proxy.net.poller import READABLE, WRITABLE, Poller
from kafka_throttle.proxy.net.tls_socket import AnySocket, TlsSocket
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas.byte_caps import Turnstile
from kafka_throttle.quotas.fair_queue import Whose

NO_CAPS: Final = Turnstile()

READ_BYTES: Final = 256 * 1024
"""How many bytes one read takes at most."""

_CLIENT_AHEAD_BYTES: Final = 512
_NODE_AHEAD_BYTES: Final = 4 * 1024
"""How many bytes the poller may read ahead, of a client no more than if it were muted. Byte caps count them as well."""

_SMALL_READS: Final = 2
"""After so many reads in a row that are smaller than that, the poller reads ahead."""

_BATCHED_BYTES: Final = 8 * 1024
"""Larger pieces are written at once, while they are in the processor's caches: that saves more than fewer wake-ups."""

_PIECES_AT_ONCE: Final = 64
"""How many buffered pieces are written in one call; the kernel takes 1,024 (IOV_MAX)."""

_IOV_MAX: Final = 1024
_CLOSE_WAIT: Final = 8
"""From <netinet/tcp.h>: the state of a connection whose peer has ended its side."""
_SIOCOUTQ: Final = 0x5411
"""From <linux/sockios.h>: how many bytes the peer has not acknowledged."""
_SIOCINQ: Final = 0x541B
"""How many bytes of the peer are unread."""

_NOTHING: Final[deque[bytes | memoryview]] = deque(maxlen=0)
"""The empty buffer that all streams share until they have to wait, as most never do: an empty deque takes 600 bytes."""

_read_buffer: Final = memoryview(bytearray(READ_BYTES))
"""One buffer for all streams: it is filled and emptied within one callback."""


class StreamListener(Protocol):
    """Gets a call for each event of a stream."""

    def bytes_came(self, side: Side, data: bytes) -> None:
        """Bytes were read."""

    def sampled_bytes_came(self, side: Side, data: bytes, since_us: int) -> Callable[[], object]:
        """Bytes were read that the poller has seen at `since_us`. Returns a call to make when all is written."""

    def eof_came(self, side: Side) -> None:
        """The peer will send no more."""

    def lost(self, side: Side, error: Exception | None) -> None:
        """The socket is closed: after an error, or because `close` or `abort` was called."""

    def writing_paused(self, side: Side) -> None:
        """More bytes are buffered than `high_water_bytes`."""

    def writing_resumed(self, side: Side) -> None:
        """The buffer has room again."""

    def read_bytes(self) -> int:
        """How many bytes the next read of the client may take."""

    @property
    def hears_client_out(self) -> bool:
        """Whether a client that is not read now and is lost will be read again: what it sent before is still here."""

    def reading_waits(self, side: Side) -> None:
        """There is something to read, but a byte cap makes it wait."""

    def whose(self) -> Whose:
        """Whose turns a read takes that waits."""


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """What streams of one side have in common. Their reads pass `turnstile`, which counts in `now_ms`."""

    poller: Poller
    side: Side
    high_water_bytes: int
    turnstile: Turnstile = NO_CAPS
    now_ms: Callable[[], int] = lambda: 0


class Stream:
    """Reads when bytes are here; writes small pieces in batches, and the rest as the kernel takes more.

    An error while writing is not reported until reading has come to its end, so that what the peer sent before is
    delivered.
    """

    __deletable__ = ("_ticket",)  # for mypyc

    def __init__(self, settings: StreamSettings, sock: AnySocket, owner: StreamListener) -> None:
        self._settings = settings
        self._poller = settings.poller
        self._side = settings.side
        self._turnstile = settings.turnstile
        self._socket = sock
        self._recv_into = sock.recv_into
        self._send = sock.send
        self._fd = sock.fileno()
        self._owner = owner
        self._waits = False
        self._reading = True
        self._ended = False
        self._to_send: list[bytes | memoryview] = []
        """Pieces that go out when the poller's batch is over. It stays the same list, that of the ticket."""
        self._ticket = (self._fd, self._to_send, self)
        """Deleted at the end, so that nothing keeps a closed stream: it refers back to it."""
        self._ahead: bytes | int | None = None
        """What the poller has read ahead and the stream has not taken, because it stopped reading meanwhile; or an
        errno."""
        self._ahead_bytes = 0
        """0: nothing is read ahead, as of TLS."""
        if settings.poller.reads_ahead and not isinstance(sock, TlsSocket):
            self._ahead_bytes = _CLIENT_AHEAD_BYTES if settings.side is Side.CLIENT else _NODE_AHEAD_BYTES
        self._small_reads = _SMALL_READS
        self._unsent = _NOTHING
        self._unsent_bytes = 0
        self.written_late_bytes = 0
        """Bytes that the kernel did not take at once and has taken since."""
        self.lost_bytes = 0
        """Bytes that were to be written and never will be."""
        self._write_paused = False
        self._fault: OSError | None = None
        self._closing = False
        self._closed = False
        self._watched: int | None = READABLE
        self._poller.add(self._fd, READABLE, self._on_ready, self._on_bytes)
        self._allow_ahead()

    @property
    def unsent_bytes(self) -> int:
        """How many bytes the kernel has not taken yet."""
        return self._unsent_bytes

    @property
    def taken_bytes(self) -> int:
        """A number that changes whenever the peer's system takes bytes that had to wait; asks the kernel."""
        if self._closed:
            return self.written_late_bytes
        in_kernel = int.from_bytes(ioctl(self._fd, _SIOCOUTQ, bytes(4)), sys.byteorder)
        return self.written_late_bytes - in_kernel

    @property
    def unread(self) -> bool:
        """Whether bytes of the peer are here that were not delivered; asks the kernel."""
        return not self._closed and (self._ahead is not None or any(ioctl(self._fd, _SIOCINQ, bytes(4))))

    @property
    def peer_ended(self) -> bool:
        """Whether the peer has ended its side, though perhaps not all that it sent was delivered; asks the kernel."""
        if self._closed:
            return True
        state = self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO)
        return state.to_bytes(4, sys.byteorder)[0] == _CLOSE_WAIT

    # ----------------------------------------------------------------- reading

    def pause_reading(self) -> None:
        """Leave bytes that come in the kernel. Epoll is changed only when some do come, as most pauses are short."""
        self._reading = False
        self._forbid_ahead()

    def resume_reading(self) -> None:
        """Read again, unless the peer has ended its side."""
        if not self._ended:
            self._reading = True
            self._watch()
            if self._ahead is not None:
                asyncio.get_running_loop().call_soon(self._read_ahead)
            self._allow_ahead()

    def notice_loss(self) -> None:
        """Report it again if the peer is lost: its owner hears it out no longer."""
        if self._watched is None:
            self._watch()

    def _on_ready(self, events: int) -> None:
        if events != READABLE:
            if events & WRITABLE:
                self._flush()
            if not events & ~WRITABLE:
                return
        if not self._reading or self._waits:
            self._stop_watching(events)
        elif self._turnstile.caps:
            self._ask_for_a_turn()
        else:
            self._read(READ_BYTES)

    def _ask_for_a_turn(self) -> None:
        """Read as much as the caps allow, or wait until they allow something."""
        turnstile, now_ms = self._turnstile, self._settings.now_ms
        room = turnstile.ask(self, now_ms())
        if room:
            turnstile.took(room, self._read(room), now_ms())
        else:
            self._waits = True
            self._owner.reading_waits(self._side)
            self._watch()

    def whose(self) -> Whose:
        """Whose turns the reads take."""
        return self._owner.whose()

    def turn_came(self, most_bytes: int) -> int:
        """Read now, at most `most_bytes`, if the stream still reads; return how many bytes were read."""
        self._waits = False
        if self._closed:
            return 0
        read = self._read(most_bytes) if self._reading else 0
        self._watch()
        return read

    def _read(self, room: int) -> int:
        """Read once and report what came; return how many bytes were read."""
        try:
            data = self._receive(room) if self._ahead is None else self._take_ahead()
        except BlockingIOError:
            return 0
        except OSError as error:
            self._end(error)
            return 0
        if data:
            if self._ahead_bytes:
                self._note_size(len(data))
            if not self._closing:
                since_us = self._poller.sampled_us
                if since_us:
                    self._poller.soon(self._owner.sampled_bytes_came(self._side, data, since_us))
                else:
                    self._owner.bytes_came(self._side, data)
        elif self._fault is not None or (self._closing and not self._unsent):
            self._end(self._fault)
        else:
            self._ended = True
            self._reading = False
            if not self._closing:
                self._owner.eof_came(self._side)
            self._watch()
        return len(data)

    def _receive(self, room: int) -> bytes:
        if self._side is Side.CLIENT:
            room = min(room, self._owner.read_bytes())
        count = self._recv_into(_read_buffer, room)
        return bytes(_read_buffer[:count])

    def _stop_watching(self, events: int) -> None:
        """Stop watching for bytes while the stream does not read.

        A client that has disconnected is reported at once, because its connection slot may be needed, unless its owner
        will hear it out. For a node, the bytes that it sent before must be delivered first.
        """
        is_lost = events & ~(READABLE | WRITABLE) and self._side is Side.CLIENT and not self._closed
        if is_lost and self._owner.hears_client_out:
            self._poller.remove(self._fd)
            self._watched = None
        elif is_lost:
            number = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            self._end(ConnectionResetError(number, os.strerror(number)) if number else ConnectionResetError())
        else:
            self._watch()

    # The poller reads ahead only while the stream reads, no byte cap delays it, and nothing read ahead is left.

    def _allow_ahead(self) -> None:
        if (
            self._ahead_bytes
            and self._small_reads >= _SMALL_READS
            and self._ahead is None
            and self._reading
            and self._watched is not None
            and not self._turnstile.caps
            and not self._closed
        ):
            self._poller.set_ahead(self._fd, self._ahead_bytes)

    def _forbid_ahead(self) -> None:
        if self._ahead_bytes and self._watched is not None and not self._closed:
            self._poller.set_ahead(self._fd, 0)

    def _note_size(self, size: int) -> None:
        if size >= self._ahead_bytes:
            self._small_reads = 0
        elif self._small_reads < _SMALL_READS:
            self._small_reads += 1
            self._allow_ahead()

    def _on_bytes(self, data: bytes | int) -> None:
        """Take what the poller has read ahead, or an errno."""
        if self._closed:
            return
        self._ahead = data
        if self._turnstile.caps:
            self._forbid_ahead()
        self._read_ahead()

    def _read_ahead(self) -> None:
        """Take what was read ahead, if the stream reads; caps count it as well."""
        if self._ahead is not None and self._reading and not self._waits and not self._closed:
            read = self._read(READ_BYTES)
            if self._turnstile.caps:
                self._turnstile.took(0, read, self._settings.now_ms())

    def _take_ahead(self) -> bytes:
        data, self._ahead = self._ahead, None
        if isinstance(data, bytes):
            return data
        assert data is not None
        raise OSError(data, os.strerror(data))

    # ----------------------------------------------------------------- writing

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        """Send the pieces in order, after what is buffered."""
        if self._fault is not None or self._closing:
            self.lost_bytes += sum(map(len, pieces))
            return
        if self._unsent:
            self._keep(pieces, 0)
        elif self._to_send:
            self._to_send += pieces
            if sum(map(len, pieces)) > _BATCHED_BYTES:
                self.write_batch()
        elif self._poller.sweeps and sum(map(len, pieces)) <= _BATCHED_BYTES:
            self._to_send += pieces
            self._write_later()
        else:
            self._write(pieces)

    def _write_later(self) -> None:
        self._poller.write_later(self._ticket)

    def write_batch(self) -> None:
        """Write what waits for the end of the batch, if it was not written since."""
        if self._to_send:
            self._write(self._take_waiting())

    def _take_waiting(self) -> list[bytes | memoryview]:
        pieces = self._to_send[:]
        self._to_send.clear()
        return pieces

    def keep_rest(self, sent: int) -> None:
        """See Writer."""
        pieces = self._take_waiting()
        if sent >= 0 or sent == -errno.EAGAIN:
            self._buffer(pieces, max(sent, 0))
        else:
            self.lost_bytes += sum(map(len, pieces))
            self._fault = OSError(-sent, os.strerror(-sent))

    def rest_was_kept(self) -> None:
        """See Writer."""
        if self._closed:
            return
        if self._fault is not None:
            self._give_up_writing(self._fault)
        elif self._unsent:
            self._wait_for_room()

    def _write(self, pieces: Sequence[bytes | memoryview]) -> None:
        try:
            if len(pieces) == 1:
                sent = self._send(pieces[0])
                if sent == len(pieces[0]):
                    return
            else:
                sent = self._socket.sendmsg(pieces if len(pieces) <= _IOV_MAX else pieces[:_IOV_MAX])
                if sent == sum(map(len, pieces)):
                    return
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self.lost_bytes += sum(map(len, pieces))
            self._give_up_writing(error)
            return
        self._keep(pieces, sent)

    def _keep(self, pieces: Sequence[bytes | memoryview], sent: int) -> None:
        self._buffer(pieces, sent)
        self._wait_for_room()

    def _buffer(self, pieces: Sequence[bytes | memoryview], sent: int) -> None:
        if self._unsent is _NOTHING:
            self._unsent = deque()
        for piece in pieces:
            if sent >= len(piece):
                sent -= len(piece)
                continue
            rest = memoryview(piece)[sent:] if sent else piece
            sent = 0
            self._unsent.append(rest)
            self._unsent_bytes += len(rest)

    def _wait_for_room(self) -> None:
        self._watch()
        if self._unsent_bytes > self._settings.high_water_bytes and not self._write_paused:
            self._write_paused = True
            self._owner.writing_paused(self._side)

    def _flush(self) -> None:
        unsent = self._unsent
        while unsent:
            pieces = list(islice(unsent, _PIECES_AT_ONCE))
            try:
                sent = self._socket.sendmsg(pieces)
            except BlockingIOError:
                break
            except OSError as error:
                self._give_up_writing(error)
                return
            self._unsent_bytes -= sent
            self.written_late_bytes += sent
            for piece in pieces:
                if sent < len(piece):
                    unsent[0] = memoryview(piece)[sent:]
                    break
                sent -= len(piece)
                unsent.popleft()
            if sent:
                break
        self._watch()
        if self._write_paused and self._unsent_bytes <= self._settings.high_water_bytes // 4:
            self._write_paused = False
            self._owner.writing_resumed(self._side)
        if self._closing and not unsent:
            self._say_goodbye()

    def _give_up_writing(self, error: OSError) -> None:
        """Write no more. Reading soon finds the end; if the stream does not read, the error is reported after all
        actions of this moment.
        """
        self._fault = error
        self._drop_unsent()
        self._watch()
        if not self._reading:
            asyncio.get_running_loop().call_soon(self._end, error)

    # ----------------------------------------------------------------- closing

    def close(self) -> None:
        """Write out what is buffered and end the sending side; what the peer still sends is read and dropped.

        If a socket is closed with unread bytes, the connection is reset, and the peer may lose what it has not read
        yet.
        """
        if self._closing or self._closed:
            return
        if self._to_send:
            self.write_batch()
        self._closing = True
        if not self._unsent:
            self._say_goodbye()

    def hang_up(self) -> None:
        """Close at once, if nothing is buffered: the peer has sent all its responses, and nothing more will come."""
        if self._to_send:
            self.write_batch()
        if self._unsent or self._closing:
            self.close()
        else:
            self._end(None)

    def _say_goodbye(self) -> None:
        if self._ended or self._fault is not None:
            self._end(None)
            return
        with contextlib.suppress(OSError):  # the peer is gone: reading finds that
            self._socket.shutdown(socket.SHUT_WR)
        self.resume_reading()

    def abort(self) -> None:
        """Close now; buffered bytes are lost."""
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._to_send and not self._closed:
            self.write_batch()
        if self._closed:
            return
        self._closed = self._closing = True
        del self._ticket
        self._reading = False
        if self._waits:
            self._turnstile.call_off(self, self._settings.now_ms())
        if self._unsent:
            self._drop_unsent()
        try:
            if self._watched is not None:
                self._poller.forget(self._fd)
            self._poller.at_end(self._socket.close)
        finally:
            self._owner.lost(self._side, error)

    def _drop_unsent(self) -> None:
        self.lost_bytes += self._unsent_bytes
        self._unsent.clear()
        self._unsent_bytes = 0

    def _watch(self) -> None:
        """Have epoll report the events that matter now. It always reports that a client has disconnected."""
        if self._closed:
            return
        wanted = self._wanted()
        if wanted == self._watched or (not wanted and self._watched is None and self._side is Side.NODE):
            return
        if not wanted and self._side is Side.NODE:
            self._poller.remove(self._fd)
            self._watched = None
            return
        if self._watched is None:
            self._poller.add(self._fd, wanted, self._on_ready, self._on_bytes)
            self._watched = wanted
            self._allow_ahead()
        else:
            self._poller.change(self._fd, wanted)
            self._watched = wanted

    def _wanted(self) -> int:
        return (READABLE if self._reading and not self._waits else 0) | (WRITABLE if self._unsent else 0)
