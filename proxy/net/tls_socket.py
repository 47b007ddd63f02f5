"""A TCP socket with TLS, which is read and written like one without."""

import contextlib
import socket
import ssl
from collections.abc import Iterator, Sequence

_MOST_AT_ONCE = 64 * 1024
"""How many bytes pass OpenSSL's buffers in one piece. A connection's two buffers grow to the largest piece so far."""

_LEAST_READ = 16 * 1024 + 1024
"""The least that is read from the kernel, even if fewer bytes are needed now: one record and more."""

_ciphertext = memoryview(bytearray(_MOST_AT_ONCE))
"""One buffer for all sockets, on the event loop's thread: it is filled and emptied within one call."""


class TlsSocket:
    """Has the methods of a socket that a stream needs. They never wait, but raise BlockingIOError.

    The handshake may be computed on another thread, one step at a time: it does not touch the socket.

    Two things differ from a plain socket. Bytes that were taken from the kernel may be `pending`, and epoll does not
    report them. Bytes that a `send` has taken may be unsent until `flush` has found room for them in the kernel.
    """

    def __init__(self, sock: socket.SocketType, context: ssl.SSLContext, server_hostname: str | None = None) -> None:
        """With a `server_hostname` it is the client's end, and the server's certificate must be for that name."""
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
        """Take what the kernel has. Raises BlockingIOError if it has nothing."""
        if not self._take(_LEAST_READ):
            self._incoming.write_eof()
        self.pending = True

    def step(self) -> bool:
        """Continue the handshake as far as the bytes allow; True when it is done. Raises SSLError."""
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    # ----------------------------------------------------------------- reading

    def recv_into(self, buffer: memoryview, size: int) -> int:
        """Read at least one byte and at most `size`; 0 when the peer has ended, with a TLS close_notify or without."""
        if self._said_goodbye:  # what comes now is dropped, so it need not be decrypted
            return self._socket.recv_into(buffer, size)
        if self.pending and (got := self._decrypted_into(buffer, size)):
            return got
        while not self._ended:
            # OpenSSL does not learn of an end without close_notify: it would then encrypt nothing more, although the
            # peer may still read. A frame that is cut short is noticed in any case, as each begins with its length.
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
        """Decrypt what is here, record by record. An error is raised only after the bytes before it were returned."""
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
        with contextlib.suppress(OSError):  # responses to a key update, alerts; reading notices if the peer is gone
            self.flush()
        if self._error is not None and not got:
            raise self._error
        self.pending = got == size or bool(got and (self._ended or self._error))
        return got

    # ----------------------------------------------------------------- writing

    def send(self, piece: bytes | memoryview) -> int:
        """Encrypt and send until the kernel is full; return how many plain bytes that took.

        Raises BlockingIOError while bytes of an earlier call are unsent.
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
        """As `send`, for several pieces; small ones are joined into records."""
        taken = 0
        for joined in _joined(pieces):
            taken += self.send(joined)
            if self.unsent_bytes:
                break
        return taken

    @property
    def unsent_bytes(self) -> int:
        """How many encrypted bytes the kernel has not taken yet."""
        return len(self._unsent) + self._outgoing.pending

    def flush(self) -> bool:
        """Give the kernel the encrypted bytes; False if it does not take all."""
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
        """Send close_notify to the peer; False if the kernel does not take all yet."""
        if not self._said_goodbye:
            self._said_goodbye = True
            self.pending = False
            with contextlib.suppress(ssl.SSLError, ValueError):  # the peer's close_notify is not waited for
                self.tls.unwrap()
        return self.flush()

    def shutdown(self, how: int) -> None:
        """Shut down the TCP socket, without close_notify."""
        self._socket.shutdown(how)

    def close(self) -> None:
        """Close the TCP socket."""
        self._socket.close()

    def fileno(self) -> int:
        """The descriptor of the TCP socket."""
        return self._socket.fileno()

    def getsockopt(self, level: int, name: int) -> int:
        """An option of the TCP socket."""
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
