"""One member's own claim of one key."""

from collections.abc import Set
from typing import Final

from kafka_throttle.quotas.shares.demand import Demand
from kafka_throttle.quotas.shares.division import Budget, Claim, Division, is_short
from kafka_throttle.quotas.shares.document import Entry, rounded_down, size_of
from kafka_throttle.quotas.shares.history import NOTHING, Freed, Windows, added, scaled
from kafka_throttle.quotas.shares.moves import Key, Use

_WAITS_FOR_MS: Final = 10_000
_CLAIM_TIMEOUT_MS: Final = 5_000
_OFFERED_MS: Final = 2_000
_LOW: Final = 0.9


class OwnClaim:
    """A key that this member claims. `enforced` is never more than `claim`, nor than any published claim that others
    may see now or later."""

    __slots__ = (
        "budget",
        "claim",
        "claimants",
        "demand",
        "enforced",
        "freed",
        "is_acknowledged",
        "is_contended",
        "joined",
        "key",
        "looked_ms",
        "offered_ms",
        "over_since_ms",
        "published",
        "short_since_ms",
        "size",
        "turn",
        "use",
        "used_ms",
    )

    def __init__(self, key: Key, budget: Budget, claim: float, turn: int, now_ms: int) -> None:
        self.key = key
        self.turn = turn
        self.budget = budget
        self.claim = claim
        """What the next document says."""
        self.enforced = claim
        self.joined = 0
        """The seq of the document in which it appeared first; 0: not yet in one."""
        self.is_acknowledged = False
        """Every other member knows that this one claims the key."""
        self.published: Claim | None = None
        """As in the last document that was made."""
        self.demand = Demand()
        self.freed: Freed = NOTHING
        self.offered_ms: int | None = None
        """When all of `freed` was published."""
        self.is_contended = False
        self.use = Use(key, 0.0, False, ())
        self.looked_ms = now_ms
        """When it was looked at last."""
        self.used_ms = now_ms
        """When there was use last."""
        self.short_since_ms: int | None = None
        """Since when this member has been short."""
        self.over_since_ms: int | None = None
        """Since when all claims have added up to too much, with no member among them that was not there before."""
        self.claimants: Set[str] = frozenset()
        """The other members that have claimed the key since then."""
        self.size = size_of(key)
        """Bytes in a document."""

    def share(self, members: int) -> float:
        """What the rows enforce, in a fleet of so many members."""
        return self.enforced + self.budget.floor(members)

    @property
    def is_raised(self) -> bool:
        """Whether a larger claim is published, or about to be, and not yet enforced."""
        return self.claim > self.enforced

    @property
    def is_busy(self) -> bool:
        """Whether something is about to change."""
        return self.is_contended or self.is_raised or self.demand.is_uncertain or self.published is None

    def lower(self, to: float, members: int, windows: Windows, now_ms: int) -> None:
        """Enforce less. What the window loses is freed."""
        lost = (self.enforced - to) / self.share(members)
        freed = windows.now(self.freed, now_ms)
        by_age = added(freed.by_age, scaled(self.use.used, lost))
        self.freed = Freed(min(freed.share + self.enforced - to, 1.0), by_age, now_ms)
        self.use = self.use._replace(used=scaled(self.use.used, 1 - lost))
        self.enforced = self.claim = to
        self.offered_ms = None

    def retake_freed(self, part: float, windows: Windows, now_ms: int) -> None:
        """This part of all that was freed of the key comes back to this member."""
        freed = windows.now(self.freed, now_ms)
        self.freed = Freed(freed.share * (1 - part), scaled(freed.by_age, 1 - part), freed.since_ms)

    def give_freed(self, free: float, windows: Windows, now_ms: int) -> None:
        """Keep as freed only what belongs to the share that is still free, when the others have had time to take it."""
        freed = windows.now(self.freed, now_ms)
        is_offered = self.offered_ms is not None and now_ms - self.offered_ms > _OFFERED_MS
        if is_offered and freed.share > 0 and free < freed.share:
            part = max(free, 0.0) / freed.share
            freed = Freed(max(free, 0.0), scaled(freed.by_age, part), freed.since_ms) if part > 0.01 else NOTHING
        self.freed = freed

    def is_refused(self, now_ms: int) -> bool:
        """Whether this member has been short for so long that others do not seem to lower their claims."""
        return self.short_since_ms is not None and now_ms - self.short_since_ms >= _CLAIM_TIMEOUT_MS

    def wanted(self, target: float, free: float, now_ms: int) -> float:
        """What this member claims: its target when it is short, so that the others see it and lower theirs. If they do
        not for long, what is free."""
        if self.short_since_ms is None:
            return self.enforced
        if not self.is_refused(now_ms):
            return max(target, self.enforced)
        return max(rounded_down(min(target, self.enforced + free)), self.enforced)

    def note(self, fair: float, now_ms: int) -> None:
        """Remember since when this member has been short."""
        if not is_short(self.enforced, fair):
            self.short_since_ms = None
        elif self.short_since_ms is None:
            self.short_since_ms = now_ms

    def waits(self, implicit: float, now_ms: int) -> bool:
        """Whether throttles are cut, because a larger share may be about to come: this member is short, and has not
        been for long, or it is unknown whether it will be, or the claim has been lowered and clients come back."""
        if self.short_since_ms is not None:
            return now_ms - self.short_since_ms < _WAITS_FOR_MS
        return self.demand.is_uncertain or self.enforced < _LOW * implicit

    def has_to_be_published(self, division: Division) -> bool:
        """Whether others have to know: the claim has changed, or the demand has and somebody demands more."""
        if self.published is None or self.claim != self.published.claim:
            return True
        before, now = min(self.published.demand, division.level), min(self.demand.value, division.level)
        is_short_now = is_short(self.claim, self.demand.value) and not is_short(self.claim, self.published.demand)
        return is_short_now or (division.is_contended and abs(now - before) > 0.1 * max(before, 0.01))

    def entry(self, windows: Windows, now_ms: int) -> Entry:
        """What the next document says."""
        freed = windows.now(self.freed, now_ms)
        by_age = tuple(round(amount, 3) for amount in freed.by_age)
        demand = round(self.demand.value, 4)
        self.published = Claim(self.claim, demand)
        if self.offered_ms is None:
            self.offered_ms = now_ms
        return Entry(self.claim, demand, round(freed.share, 4) if any(by_age) else 0.0, by_age if any(by_age) else ())
