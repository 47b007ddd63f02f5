"""A stream over TLS, which also handles the bytes that a `TlsSocket` still has in either direction."""

import asyncio
from collections.abc import Sequence

from kafka_throttle.proxy.net.poller import READABLE, WRITABLE
from kafka_throttle.proxy.net.stream import Stream, StreamListener, StreamSettings
from kafka_throttle.proxy.net.tls_socket import TlsSocket


class TlsStream(Stream):
    """Reads on while bytes are pending that epoll does not report, and flushes encrypted bytes."""

    def __init__(self, settings: StreamSettings, sock: TlsSocket, owner: StreamListener) -> None:
        """The handshake of `sock` is done."""
        self._tls = sock
        self._looks_again = False
        super().__init__(settings, sock, owner)
        self._watch()
        self._look_again()

    @property
    def unsent_bytes(self) -> int:
        """How many bytes the kernel has not taken yet, encrypted or not."""
        return self._unsent_bytes + self._tls.unsent_bytes

    @property
    def taken_bytes(self) -> int:
        """A number that changes whenever the peer's system takes bytes that had to wait, encrypted or not."""
        return super().taken_bytes - self._tls.unsent_bytes

    @property
    def unread(self) -> bool:
        """Whether bytes of the peer are here that were not read, encrypted or not."""
        return super().unread or (self._tls.pending and not self._closed)

    def resume_reading(self) -> None:
        """Read again, pending bytes first."""
        super().resume_reading()
        self._look_again()

    def turn_came(self, most_bytes: int) -> int:
        """Read now, at most `most_bytes`, if the stream still reads; return how many bytes were read."""
        read = super().turn_came(most_bytes)
        self._look_again()
        return read

    def _read(self, room: int) -> int:
        read = super()._read(room)
        if self._tls.unsent_bytes:
            self._watch()
        self._look_again()
        return read

    def _look_again(self) -> None:
        if not self._looks_again and self._wants_pending():
            self._looks_again = True
            asyncio.get_running_loop().call_soon(self._read_pending)

    def _read_pending(self) -> None:
        self._looks_again = False
        if self._wants_pending():
            self._on_ready(READABLE)

    def _wants_pending(self) -> bool:
        return self._tls.pending and self._reading and not self._waits and not self._closed

    def _wanted(self) -> int:
        unsent = self._fault is None and self._tls.unsent_bytes  # after an error they are never sent
        return super()._wanted() | (WRITABLE if unsent else 0)

    def _write(self, pieces: Sequence[bytes | memoryview]) -> None:
        super()._write(pieces)
        if self._tls.unsent_bytes:
            self._watch()

    def _write_later(self) -> None:
        self._poller.soon(self.write_batch)  # pieces must be encrypted

    def _flush(self) -> None:
        try:
            flushed = self._tls.flush()
        except OSError as error:
            self._give_up_writing(error)
            return
        if flushed:
            super()._flush()

    def hang_up(self) -> None:
        """Every peer must get a close_notify, so this is the same as `close`."""
        self.close()

    def _say_goodbye(self) -> None:
        try:
            said = self._fault is not None or self._tls.say_goodbye()
        except OSError as error:
            self._fault = error
            said = True
        if said:
            super()._say_goodbye()
        else:
            self._watch()
