"""A stream that keeps what is written to it."""


class FakeStream:
    """Notes writes, pauses and how it was closed; never calls anybody back."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.reading = True
        self.closed = False
        self.hung_up = False
        self.aborted = False
        self.unsent_bytes = 0
        self.taken_bytes = 0
        self.lost_bytes = 0
        self.unread = False
        self.peer_ended = False
        self.noticed = 0

    def notice_loss(self) -> None:
        self.noticed += 1

    def write(self, pieces) -> None:
        self.written += b"".join(pieces)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    def hang_up(self) -> None:
        self.closed = self.hung_up = True

    def abort(self) -> None:
        self.aborted = True
