"""The poller with its loops over system calls in C (_sweep.c), where that was compiled.

The system calls are those of `Poller`, in another order: a batch of sockets is read, then handled, then written. So the
kernel's code and the deciding code stay in the processor's caches, and the interpreter is left and entered less often.
"""

import importlib
from collections import deque
from typing import TYPE_CHECKING

from kafka_throttle.proxy.net.poller import BATCH, SWEEP, OnBytes, OnReady, Poller, Ticket, Writer, do_all

if TYPE_CHECKING:
    from kafka_throttle.proxy.net._sweep import Sweep


class SweptPoller(Poller):
    """Does what `Poller` does, and reads ahead."""

    def __init__(self, make_sweep: "type[Sweep]") -> None:
        super().__init__()
        self.reads_ahead = True
        self._sweep = make_sweep(self._epoll.fileno())
        self._to_write: dict[int, Ticket] = {}
        """By descriptor: a stream that has written a large piece in between asks twice, and is to be sent once."""

    def add(self, fd: int, events: int, on_ready: OnReady, on_bytes: OnBytes | None = None) -> None:
        """See Poller."""
        self._register(fd, events)
        self._sweep.add(fd, on_ready, on_bytes)

    def set_ahead(self, fd: int, most_bytes: int) -> None:
        """See Poller. When so many bytes have come at once, none are read ahead until the next call."""
        self._sweep.set_ahead(fd, most_bytes)

    def forget(self, fd: int) -> None:
        """See Poller."""
        self._sweep.discard(fd)

    def write_later(self, ticket: Ticket) -> None:
        """See Poller."""
        self._to_write[ticket[0]] = ticket

    def _serve_ready(self) -> None:
        more = self._sweep.begin(SWEEP)
        self._sample_some()
        while more:
            more = self._sweep.serve(BATCH)
            if more:
                self._end_batch()

    def _end_batch(self) -> None:
        if self._to_write:
            self._soon.appendleft(self._write)
        super()._end_batch()

    def _write(self) -> None:
        tickets = list(self._to_write.values())
        self._to_write.clear()
        rest: list[tuple[Writer, int]] = []
        try:
            self._sweep.write(tickets, rest)
        except BaseException:
            self._keep(rest)
            do_all(deque([writer.write_batch for _, _, writer in tickets]))
            raise
        if rest:
            self._keep(rest)

    def _keep(self, rest: list[tuple[Writer, int]]) -> None:
        for writer, sent in rest:
            writer.keep_rest(sent)
        do_all(deque([writer.rest_was_kept for writer, _ in rest]))


def new_poller() -> Poller:
    """The poller of this build: with the sweep in C where that was compiled, else in Python."""
    try:
        module = importlib.import_module("kafka_throttle.proxy.net._sweep")
    except ImportError:
        return Poller()
    return SweptPoller(module.Sweep)
