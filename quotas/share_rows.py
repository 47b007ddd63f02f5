"""The rows of one instance as its member of a fleet sees them: what they hold, and what a share does to them.

Numbers of connections are shared as well. Their keys are (CONNECTIONS, virtual cluster, "address" or "user", name). An
instance may have floor(share * limit) connections, and the shares of a key add up to at most 1, so that all instances
together never have more than the limit. What a member claims is never less than what is open. A limit that is too small
for all instances is for those that claim it: nobody else may have a connection until it has claimed one, too.
"""

from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import Final

from kafka_throttle.quotas.client_quotas import ClientQuotaManager, SensorKey
from kafka_throttle.quotas.connection_counts import ADDRESS, USER, CountKey
from kafka_throttle.quotas.connection_quotas import ConnectionQuotas, RateKey
from kafka_throttle.quotas.entities import QuotaType
from kafka_throttle.quotas.row_copies import key_of, values_of
from kafka_throttle.quotas.shares.member import Member
from kafka_throttle.quotas.shares.moves import EVERY_KEY, Key, Move, Use

CONNECTIONS: Final = "connections"
"""The kind of the keys of numbers of connections."""

RETRY_MS: Final = 2_000
"""After a refused connection a client counts as waiting for so long: clients of Kafka try again within 1 s or so."""

_LEAST: Final = 2e-6
"""By so much a share may be below the number of connections that it stands for, because documents round down."""

_REMEMBERED_MS: Final = 10_000

_Row = SensorKey | RateKey | CountKey

_ROWS_PER_STEP: Final = 100
"""How many rows one step of a move for all looks at: a few ms."""


def is_count(key: Key) -> bool:
    """Whether a key is of a number of connections."""
    return key[:1] == (CONNECTIONS,)


class SharedRows:
    """The rows of the clients and addresses of one virtual cluster, whose limits a fleet shares.

    From then on a row that is opened enforces the share of `member`. The keys of its `Use` and `Move` are those of
    quotas/row_copies.py.
    """

    def __init__(
        self, manager: ClientQuotaManager, connections: ConnectionQuotas, virtual_cluster: str, member: Member
    ) -> None:
        self._manager = manager
        self._connections = connections
        self._virtual_cluster = virtual_cluster
        self._member = member
        self._keys: dict[Key, _Row | None] = {}
        """The rows of the keys at the last look; None: this instance cannot have one."""
        self._totals: dict[Key, tuple[float, int]] = {}
        """What each row had recorded at the last look at it, and when."""
        self._unmoved: Iterator[SensorKey | RateKey] = iter(())
        """The rows that a move for all has not come to yet."""
        self._moving: tuple[Move, Collection[Key]] = Move(EVERY_KEY, 1.0, 1.0, (), 0.0), ()
        """That move, and the keys that had a move of their own beside it."""
        self._waiting: dict[Key, int] = {}
        """Until when clients wait, of keys that were pressed."""
        manager.share_of = lambda key: member.share_of(values_of(key))
        manager.pace_of = lambda key: member.pace_of(values_of(key))
        manager.watch_pressed()
        connections.share(virtual_cluster, lambda key: member.share_of(values_of(key)))
        self._counts = connections.counts(virtual_cluster)
        self._counts.share(self._allowed)

    def uses(self, now_ms: int) -> list[Use]:
        """The use of each key that the member watches, and of each that was pressed since the last call.

        Also that of each limited number of connections of which more are open than one member's equal part: a member
        that is about to join must find it claimed. A key without a row is not used.
        """
        pressed: dict[Key, int] = {}
        for key, until_ms in self._manager.take_pressed().items():
            pressed[values_of(key)] = until_ms
        for rate, until_ms in self._connections.take_pressed(self._virtual_cluster).items():
            pressed[values_of(rate)] = until_ms
        refused = {self._key_of_count(key) for key in self._counts.take_refused()}
        pressed.update(dict.fromkeys(refused, now_ms + RETRY_MS))
        self._waiting = {key: until_ms for key, until_ms in self._waiting.items() if until_ms > now_ms} | pressed
        keys = dict.fromkeys([*self._member.watched(), *pressed, *self._held()])
        self._keys = {key: self._keys[key] if key in self._keys else self._row_of(key) for key in keys}
        self._totals = {key: seen for key, seen in self._totals.items() if now_ms - seen[1] < _REMEMBERED_MS}
        return [self._use(key, key in pressed, now_ms) for key in keys]

    def _use(self, key: Key, is_pressed: bool, now_ms: int) -> Use:
        waits_ms = max(self._waiting.get(key, now_ms) - now_ms, 0)
        row = self._keys[key]
        if isinstance(row, CountKey):
            open_here, most = self._counts.open(row), self._counts.most_of(row)
            return Use(key, 0.0, is_pressed, (), open_here / most if most else 0.0, waits_ms, 1 / max(most, 1))
        found = self._history(row, now_ms)
        if found is None:
            return Use(key, 0.0, is_pressed, (), waits_ms=waits_ms)
        total, limit, history = found
        before = self._totals.get(key)
        self._totals[key] = total, now_ms
        if before is None:
            recorded, passed_ms = history[0], self._youngest_ms(row)
        else:
            recorded, passed_ms = total - before[0], max(now_ms - before[1], 1)
        rate = recorded / limit / (passed_ms / 1000)
        return Use(key, max(rate, 0.0), is_pressed, tuple(units / limit for units in history), waits_ms=waits_ms)

    def _youngest_ms(self, row: SensorKey | RateKey | None) -> int:
        """In how many ms the first amount of a history was recorded."""
        _, window_ms, bucket_samples, bucket_window_ms = self._manager.layout
        if isinstance(row, SensorKey) and row.quota_type is QuotaType.CONTROLLER_MUTATION:
            return bucket_samples * bucket_window_ms
        return window_ms

    def apply(self, moves: Iterable[Move], now_ms: int) -> None:
        """Do what these moves say with the rows. Of a move for all this is the first step; `go_on` takes the others."""
        while self.go_on(now_ms):
            pass
        by_key = {move.key: move for move in moves}
        of_all = by_key.pop(EVERY_KEY, None)
        for key, move in by_key.items():
            row = self._keys[key] if key in self._keys else self._row_of(key)
            if row is not None and not isinstance(row, CountKey):
                self._reshare(row, move, now_ms)
        if of_all is not None:
            self._moving = of_all, by_key.keys()
            self._unmoved = iter([*self._manager.sensor_keys, *self._connections.rate_keys(self._virtual_cluster)])
            self.go_on(now_ms)

    def go_on(self, now_ms: int) -> bool:
        """Take the next step of a move for all: a few ms. Returns whether there was one to take.

        Rows that are opened between the steps have their new shares.
        """
        rows = list(islice(self._unmoved, _ROWS_PER_STEP))
        for row in rows:
            move, others = self._moving
            key = values_of(row)
            if key not in others and not self._member.has_own_share(key):
                self._reshare(row, move, now_ms)
        return bool(rows)

    def _reshare(self, row: SensorKey | RateKey, move: Move, now_ms: int) -> None:
        if isinstance(row, RateKey):
            self._connections.reshare(row, move.share, move.keep, move.gain, now_ms)
        else:
            self._manager.reshare(row, move.share, move.keep, move.gain, move.pace, now_ms)

    def _history(self, row: SensorKey | RateKey | None, now_ms: int) -> tuple[float, float, tuple[float, ...]] | None:
        if row is None:
            return None
        if isinstance(row, RateKey):
            return self._connections.share_history(row, now_ms)
        return self._manager.share_history(row, now_ms)

    def _allowed(self, key: CountKey, most: int) -> int:
        """How many of `most` connections this instance may have."""
        member = self._member
        if not (member.is_known or member.is_cut_off):
            return 0  # The floor of a member that has just joined is not set aside of a number.
        return int(most * member.share_of(self._key_of_count(key)) + min(most * _LEAST, 0.9 / member.members))

    def _held(self) -> Iterator[Key]:
        members = self._member.members
        for key, (open_here, most) in self._counts.limited():
            if members > 1 and open_here * members > 0.9 * most:
                yield self._key_of_count(key)

    def _key_of_count(self, key: CountKey) -> Key:
        return CONNECTIONS, self._virtual_cluster, *key

    def _row_of(self, key: Key) -> _Row | None:
        """What a key stands for; None if it is nothing of a client, an address or a user of this virtual cluster."""
        if key[:2] == (CONNECTIONS, self._virtual_cluster):
            is_count = len(key) == 4 and key[2] in (ADDRESS, USER) and isinstance(key[3], str)
            return CountKey(key[2], key[3]) if is_count else None
        try:
            row = key_of(key)
        except (ValueError, TypeError, LookupError, AttributeError):
            return None
        if isinstance(row, RateKey):
            is_valid = isinstance(row.address, str) and row.listener == "" and isinstance(row.shadow, bool)
        else:
            is_valid = type(row.node_id) is int and all(
                isinstance(name, str) for name in (row.tags.user, row.tags.client_id)
            )
        return row if is_valid and row.virtual_cluster == self._virtual_cluster else None
