"""The interface of _sweep.c."""

from kafka_throttle.proxy.net.poller import OnBytes, OnReady, Ticket, Writer

class Sweep:
    """The descriptors that are watched, and one round over those that are ready."""

    def __init__(self, epoll: int, /) -> None:
        """`epoll` is the descriptor of the set, to which the caller adds descriptors."""

    def add(self, fd: int, on_ready: OnReady, on_bytes: OnBytes | None, /) -> None:
        """Call `on_ready(events)` when `fd` is ready, or `on_bytes` with what was read ahead: bytes, or an errno."""

    def discard(self, fd: int, /) -> None:
        """Do not call any more. Raises KeyError if `fd` is not watched."""

    def set_ahead(self, fd: int, most_bytes: int, /) -> None:
        """Up to so many bytes, at most 4,096, may be read ahead; once so many have come, none until the next call."""

    def begin(self, most: int, /) -> bool:
        """Ask which descriptors are ready, at most 256; whether any is."""

    def serve(self, most: int, /) -> bool:
        """Read ahead of the next descriptors, at most 64, then call for each; whether there are more.

        All are called though one raises; the first exception is raised at the end.
        """

    def write(self, tickets: list[Ticket], rest: list[tuple[Writer, int]], /) -> None:
        """Send the pieces of all tickets, no two of which have the same list. Lists of what was sent whole are emptied;
        the others are noted in `rest`, with how many bytes were sent, or -errno.

        If it raises, what is not noted in `rest` is as it was, or was sent, or its connection is shut down.
        """
