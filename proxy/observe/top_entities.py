"""The entities with the highest use of each quota and those that are throttled most; all others are summed up.

There may be very many entities. A scrape reads at most MOST_READ of them, and the next one goes on: a round over all
takes several scrapes then. Meanwhile the entities that the last round has chosen are read anew for each scrape, and
those that are throttled now are added, so that no throttled entity waits for its turn.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import islice

from kafka_throttle.common.printable import printable
from kafka_throttle.quotas.client_quotas import SensorKey

MOST_READ = 6_000
"""The most entities that a scrape reads for the first time: some 25 ms of CPU."""

_MOST_THROTTLED = 2_000
"""The most throttled entities that a scrape reads in the middle of a round."""

_PER_STEP = 500


@dataclass(slots=True)
class EntityUse:
    """What one entity uses of one quota, enforced or shadow, at one node, or for a `node_id` of None at all nodes.

    `rate` and `limit` are in the quota's unit per second; `limit` is None for an entity that is only measured. A token
    bucket has `tokens`; then `rate` is the number of tokens missing in the bucket. `throttled`: clients are throttled
    for it now. `sensor` is what measures it.
    """

    virtual_cluster: str
    node_id: int | None
    quota_type: str
    user: str
    client_id: str
    rate: float
    limit: float | None
    throttled_ms: int
    shadow: bool = False
    tokens: float | None = None
    throttled: bool = False
    sensor: SensorKey | None = None

    @property
    def rule(self) -> tuple[str, ...]:
        """The labels of the quota: virtual cluster, node and quota type."""
        return self.virtual_cluster, node_label(self.node_id), self.quota_type


@dataclass(frozen=True, slots=True)
class EntitySource:
    """Where entities come from: `every` one, those that are `throttled` now, and an entity read `again`.

    `every` yields None for an entity that is not exported; it counts as a step because reading it took time. `again`
    returns None for an entity that is not measured any more.
    """

    every: Callable[[], Iterable[EntityUse | None]]
    throttled: Callable[[], Iterable[EntityUse]] = lambda: ()
    again: Callable[[EntityUse], EntityUse | None] = lambda row: row


class UseOfRule:
    """The use of one quota type at one node: the `top` entities by use and by throttle time, and the sums of all."""

    def __init__(self, top: int) -> None:
        self.count = 0
        self.rate = 0.0
        self.throttled_ms = 0
        self.throttled = 0
        self.has_tokens = False
        self._top = top
        self._most: list[EntityUse] = []

    def add(self, row: EntityUse) -> None:
        """Add one entity."""
        self._count(row, 1)
        self._most.append(row)
        if len(self._most) > 4 * self._top + _PER_STEP:
            self._most = self._chosen()

    def _count(self, row: EntityUse, times: int) -> None:
        self.count += times
        self.rate += times * row.rate
        self.throttled_ms += times * row.throttled_ms
        self.throttled += times * row.throttled
        self.has_tokens = self.has_tokens or row.tokens is not None

    def renewed(self, again: Callable[[EntityUse], EntityUse | None], throttled: Sequence[EntityUse]) -> "UseOfRule":
        """The same, with the chosen entities read again, and those that are `throttled` now among them.

        The sums of all entities change by what has changed of the chosen ones.
        """
        made = UseOfRule(self._top)
        made.count, made.rate, made.throttled_ms, made.has_tokens = (
            self.count,
            self.rate,
            self.throttled_ms,
            self.has_tokens,
        )
        read = set()
        for row in self._chosen():
            read.add(row.sensor)
            made._count(row, -1)
            if (anew := again(row)) is not None:
                made.add(anew)
        made._most += [row for row in throttled if row.sensor not in read]
        made.throttled = len(throttled)
        return made

    def shown(self) -> dict[tuple[str, str], EntityUse]:
        """The rows that have series, by their labels; of rows with equal (shortened) labels, the highest."""
        chosen: dict[tuple[str, str], EntityUse] = {}
        for row in self._chosen():
            chosen.setdefault((printable(row.user), printable(row.client_id)), row)
        return chosen

    def _chosen(self) -> list[EntityUse]:
        """The rows with the highest rates, and as many that are throttled now, or else were throttled for longest."""
        used = nlargest(self._top, self._most, key=lambda row: (row.rate, row.throttled_ms))
        ever = (row for row in self._most if row.throttled or row.throttled_ms)
        throttled = nlargest(self._top, ever, key=lambda row: (row.throttled, row.throttled_ms, row.rate))
        return list({id(row): row for row in (*used, *throttled)}.values())


Rules = dict[tuple[str, ...], UseOfRule]


class _Round:
    """All entities, as far as they have been read: the use of each enforced quota, and of each shadow quota."""

    def __init__(self, sources: Sequence[EntitySource], top: int) -> None:
        self.rules: dict[bool, Rules] = {False: {}, True: {}}
        """By whether they are shadow quotas."""
        self._sources = sources
        self._source_of: dict[tuple[str, ...], EntitySource] = {}
        self._rows = ((source, row) for source in sources for row in source.every())
        self._top = top

    def go_on(self) -> Generator[None, None, bool]:
        """Read on, in steps; whether that was the rest."""
        number = 0
        for number, (source, row) in enumerate(islice(self._rows, MOST_READ), 1):
            if row is not None:
                self._rule(row, source).add(row)
            if not number % _PER_STEP:
                yield
        return number < MOST_READ

    def _rule(self, row: EntityUse, source: EntitySource) -> UseOfRule:
        labels, rules = row.rule, self.rules[row.shadow]
        if labels not in rules:
            rules[labels], self._source_of[labels] = UseOfRule(self._top), source
        return rules[labels]

    def renewed(self) -> Generator[None, None, dict[bool, Rules]]:
        """The quotas with what has changed since they were read, in steps."""
        throttled: dict[tuple[str, ...], list[EntityUse]] = {}
        rows = ((source, row) for source in self._sources for row in source.throttled())
        number = 0
        for number, (source, row) in enumerate(islice(rows, _MOST_THROTTLED), 1):
            self._rule(row, source)
            throttled.setdefault(row.rule, []).append(row)
            if not number % _PER_STEP:
                yield
        made: dict[bool, Rules] = {False: {}, True: {}}
        for shadow, rules in self.rules.items():
            for labels, rule in rules.items():
                now = () if shadow else throttled.get(labels, ())
                made[shadow][labels] = rule.renewed(self._source_of[labels].again, now)
                if number == _MOST_THROTTLED:
                    made[shadow][labels].throttled = max(len(now), rule.throttled)
                yield
        return made


class TopEntities:
    """The use of all quotas. `top` entities of each are chosen by use, and as many by throttle time."""

    def __init__(self, top: int) -> None:
        self.top = top
        self.enforced: Rules = {}
        self.shadow: Rules = {}
        self._sources: list[EntitySource] = []
        self._under_way: _Round | None = None
        self._last: _Round | None = None

    def add(self, source: EntitySource) -> None:
        """Read the entities of this source, too."""
        self._sources.append(source)

    def read(self) -> Generator[None, None, None]:
        """Find the present `enforced` and `shadow` use, in steps."""
        is_new = self._under_way is None
        under_way = self._under_way or _Round(self._sources, self.top)
        is_whole = yield from under_way.go_on()
        self._under_way = None if is_whole else under_way
        if is_whole or self._last is None:
            self._last = under_way
        rules = self._last.rules
        if not (is_new and is_whole):
            rules = yield from self._last.renewed()
        self.enforced, self.shadow = rules[False], rules[True]


def node_label(node_id: int | None) -> str:
    """A node in a label; `all` for all nodes together."""
    return "all" if node_id is None else str(node_id)
