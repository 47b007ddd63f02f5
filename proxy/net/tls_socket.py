"""A TCP socket that speaks TLS, to be read and written like one that does not."""

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence

_MOST_AT_ONCE = 64 * 1024
"""Of bytes that go through OpenSSL's buffers in one piece: a connection keeps two as large as the largest that came."""

_LEAST_READ = 16 * 1024 + 1024
"""A record and more, however little of it is wanted now."""

_ciphertext = memoryview(bytearray(_MOST_AT_ONCE))
"""One for all, on the event loop's thread: it is filled and emptied within one call."""


class TlsSocket:
    """Has those of a socket's methods that a stream needs: they never wait, but raise BlockingIOError.

    The handshake may be computed on another thread, one step at a time: it does not touch the socket.

    Beyond a socket: what was taken from the kernel can be `pending`, epoll does not tell of it; and what a `send` has
    taken can be `unsent`, until `flush` has found room for it in the kernel.
    """

    def __init__(self, sock: socket.SocketType, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        """As the client's end if there is a `server_hostname`, whose certificate is then wanted."""
        self._socket = sock
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=server_hostname is None, server_hostname=server_hostname
        )
        self.pending = False
        self.first_bytes = b""
        self._unsent: bytes | memoryview = b""
        self._ended = False
        self._said_goodbye = False
        self._error: ssl.SSLError | None = None

    # --------------------------------------------------------------- handshake

    def receive(self) -> None:
        """Take what the kernel has; BlockingIOError if that is nothing."""
        if not self._take(_LEAST_READ):
            self._incoming.write_eof()
        self.pending = True

    def step(self) -> bool:
        """Go on with the handshake as far as the bytes allow; True when it is done. Raises SSLError."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    # ----------------------------------------------------------------- reading

    def recv_into(self, buffer: memoryview, size: int) -> int:
        """At least one byte and at most `size`; 0 when the peer has ended, with a goodbye or without."""
        if self._said_goodbye:  # what comes now is dropped: it need not be understood
            return self._socket.recv_into(buffer, size)
        if self.pending and (got := self._decrypted_into(buffer, size)):
            return got
        while not self._ended:
            # An end without a goodbye is kept from OpenSSL, which would encrypt nothing more: the peer may still read.
            # No frame that is cut short passes for a whole one, as each says how long it is.
            self._ended = not self._take(max(size, _LEAST_READ))
            if got := self._decrypted_into(buffer, size):
                return got
        return 0

    def _take(self, size: int) -> bool:
        """Take what the kernel has; False at the end."""
        taken = self._socket.recv_into(_ciphertext, min(size, _MOST_AT_ONCE))
        if taken:
            self.first_bytes = self.first_bytes or bytes(_ciphertext[: min(taken, 8)])
            self._incoming.write(_ciphertext[:taken])
        return taken > 0

    def _decrypted_into(self, buffer: memoryview, size: int) -> int:
        """What there is, record by record; a fault behind it is told when there is nothing more before it."""
        if self._error is not None:
            raise self._error
        got = 0
        self.pending = False
        try:
            while got < size:
                read = self.tls.read(size - got, buffer[got:])
                if not read:
                    self._ended = True
                    break
                got += int(read)
        except ssl.SSLWantReadError:
            pass
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            self._ended = True
        except ssl.SSLError as error:
            self._error = error
        with contextlib.suppress(OSError):  # answers to a change of keys, alerts; reading finds a peer that is gone
            self.flush()
        if self._error is not None and not got:
            raise self._error
        self.pending = got == size or bool(got and (self._ended or self._error))
        return got

    # ----------------------------------------------------------------- writing

    def send(self, piece: bytes | memoryview) -> int:
        """Encrypt and send until the kernel is full; how many plain bytes that took.

        BlockingIOError while something of before is unsent.
        """
        if not self.flush():
            raise BlockingIOError
        if len(piece) <= _MOST_AT_ONCE:
            if piece:
                self.tls.write(piece)
            self.flush()
            return len(piece)
        taken = 0
        while taken < len(piece) and not self.unsent_bytes:
            chunk = memoryview(piece)[taken : taken + _MOST_AT_ONCE]
            self.tls.write(chunk)
            taken += len(chunk)
            self.flush()
        return taken

    def sendmsg(self, pieces: Sequence[bytes | memoryview]) -> int:
        """The same for pieces; small ones become records together."""
        taken = 0
        for joined in _joined(pieces):
            taken += self.send(joined)
            if self.unsent_bytes:
                break
        return taken

    @property
    def unsent_bytes(self) -> int:
        """How much the kernel has not taken yet of what was sent, encrypted."""
        return len(self._unsent) + self._outgoing.pending

    def flush(self) -> bool:
        """Give the kernel what is encrypted; False if it does not take all."""
        while self._unsent or self._outgoing.pending:
            rest = self._unsent or self._outgoing.read()
            try:
                sent = self._socket.send(rest)
            except BlockingIOError:
                sent = 0
            self._unsent = memoryview(rest)[sent:] if sent < len(rest) else b""
            if self._unsent:
                return False
        return True

    # ----------------------------------------------------------------- closing

    def say_goodbye(self) -> bool:
        """Tell the peer that no more comes; False if the kernel does not take all yet."""
        if not self._said_goodbye:
            self._said_goodbye = True
            self.pending = False
            with contextlib.suppress(ssl.SSLError, ValueError):  # the peer's own goodbye is not waited for
                self.tls.unwrap()
        return self.flush()

    def shutdown(self, how: int) -> None:
        """Of the TCP socket."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Of the TCP socket."""
        self._socket.close()

    def fileno(self) -> int:
        """Of the TCP socket."""
        return self._socket.fileno()

    def getsockopt(self, level: int, name: int) -> int:
        """Of the TCP socket."""
        return self._socket.getsockopt(level, name)


def _joined(pieces: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes in fewer pieces."""
    small: list[bytes | memoryview] = []
    size = 0
    for piece in pieces:
        if small and size + len(piece) > _MOST_AT_ONCE:
            yield b"".join(small)
            small, size = [], 0
        if len(piece) >= _MOST_AT_ONCE:
            yield piece
        else:
            small.append(piece)
            size += len(piece)
    if small:
        yield b"".join(small)


AnySocket = socket.SocketType | TlsSocket


_PEM_LIB = 524297
"""All that OpenSSL tells of a key that it cannot decrypt."""


def why_tls_failed(error: ssl.SSLError) -> str:
    """What OpenSSL says, without where in its source."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    reason: str | None = getattr(error, "reason", None)
    if reason is None and error.args == (_PEM_LIB, *error.args[1:]):
        return "a key that cannot be read, or another password than its own"
    return (reason or str(error.args[0] if error.args else error)).lower().replace("_", " ")
