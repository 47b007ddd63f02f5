"""Kafka's own cases of connection quotas (KIP-402, KIP-612), each as counts of connections that are answered."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tests.admission.sides import Limits, Side
from tests.admission.sockets import Batch, all_are_reported, connect

WindowUsage = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """What is tried; what counts come of it by Kafka's arithmetic, up to `slack` more if somebody stands still."""

    name: str
    run: Callable[[Side], WindowUsage]
    expected: WindowUsage
    slack: int = 0
    slow: bool = False

    def agrees(self, counts: WindowUsage) -> bool:
        """Whether these are the counts, but for what somebody who stood still has let in."""
        return len(counts) == len(self.expected) and all(
            wanted <= count <= wanted + self.slack for count, wanted in zip(counts, self.expected, strict=True)
        )


def results(case: Case, sides: Mapping[str, Side]) -> dict[str, WindowUsage]:
    """The counts of each side; none has limits while another one is tried."""
    counts = {}
    for name, side in sides.items():
        counts[name] = case.run(side)
        side.limit(Limits())
    return counts


def _ask(side: Side, address: str, count: int) -> int:
    """How many of so many are answered; all go away."""
    batch = connect(side.target, address, count).wait(all_are_reported)
    answered = len(batch.answered)
    batch.leave()
    return answered


def _rate(side: Side) -> WindowUsage:
    side.limit(Limits(rates={"127.0.4.1": 3}))
    return (_ask(side, "127.0.4.1", 45),)


def _default(side: Side) -> WindowUsage:
    side.limit(Limits(rates={None: 2, "127.0.4.11": 4, "127.0.4.250": 1_000}))
    return tuple(_ask(side, f"127.0.4.{i}", 60) for i in (10, 11, 12))


def _ban(side: Side) -> WindowUsage:
    side.limit(Limits(rates={"127.0.4.20": 0}))
    return _ask(side, "127.0.4.20", 5), _ask(side, "127.0.4.21", 5)


def _not_recorded(side: Side) -> WindowUsage:
    """Refused ones do not count: after the window as many come in as in the beginning."""
    side.limit(Limits(rates={"127.0.4.30": 3}))
    first = _ask(side, "127.0.4.30", 90)
    time.sleep(23)
    return first, _ask(side, "127.0.4.30", 45)


def _live(side: Side) -> WindowUsage:
    """A lower limit judges what is measured already, a higher one and its removal let in."""
    counts = []
    for rate, count in ((2, 10), (0, 5), (1_000, 30), (None, 30)):
        side.limit(Limits(rates={} if rate is None else {"127.0.4.40": rate}))
        counts.append(_ask(side, "127.0.4.40", count))
    return tuple(counts)


def _count(side: Side) -> WindowUsage:
    """At a time; who leaves makes place."""
    side.limit(Limits(counts={"127.0.4.50": 3, "127.0.4.51": 1}))
    first, second = (connect(side.target, f"127.0.4.{i}", 5).wait(all_are_reported) for i in (50, 51))
    counts = [len(first.answered), len(second.answered)]
    first.leave(2)
    while not (more := _ask(side, "127.0.4.50", 1)):
        time.sleep(0.05)
    first.leave()
    second.leave()
    return (*counts, more)


def _listener_count(side: Side) -> WindowUsage:
    """The others wait, and come in when some leave."""
    side.limit(Limits(listener_count=4))
    batch = connect(side.target, "127.0.4.60", 6).wait(lambda batch: len(batch.answered) >= 4)
    at_first, waiting = len(batch.answered), len(batch.waiting)
    batch.leave(2)
    batch.wait(all_are_reported)
    later = len(batch.answered)
    batch.leave()
    return at_first, waiting, later


def _listener_rate(side: Side) -> WindowUsage:
    """Over its rate nobody is lost."""
    side.limit(Limits(listener_rate=3))
    return (_ask(side, "127.0.4.70", 36),)


def _listener_and_address(side: Side) -> WindowUsage:
    """A banned address does not spend the listener's rate, nor does one over its own keep others from it."""
    side.limit(Limits(rates={"127.0.4.80": 0, "127.0.4.81": 1}, listener_rate=20))
    batches: list[Batch] = [connect(side.target, f"127.0.4.{i}", count) for i, count in ((80, 40), (81, 30), (82, 50))]
    counts = tuple(len(batch.wait(all_are_reported).answered) for batch in batches)
    for batch in batches:
        batch.leave()
    return counts


CASES = (
    Case("a rate of 3/s: of 45 at once", _rate, (30,), 3),
    Case("a default of 2/s, one address with 4/s: of 60 each at once", _default, (20, 40, 20), 4),
    Case("a rate of 0: of 5; another address: of 5", _ban, (0, 5)),
    Case("3/s: of 90 at once; 23 s later, of 45", _not_recorded, (30, 30), 3, slow=True),
    Case("live: 2/s, 0, 1000/s, none: of 10, 5, 30, 30", _live, (10, 0, 30, 30)),
    Case("3 and 1 connections at a time: of 5 each; one more when some have left", _count, (3, 1, 1)),
    Case("a listener with 4 connections: of 6, that wait, in all when 2 have left", _listener_count, (4, 2, 4)),
    Case("a listener with 3/s: of 36 at once, sooner or later", _listener_rate, (36,)),
    Case("a listener with 20/s; addresses with 0, 1/s, none: of 40, 30, 50", _listener_and_address, (0, 10, 50), 3),
)
