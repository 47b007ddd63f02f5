"""What one instance of a fleet claims, and which share of each limit it enforces."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from kafka_throttle.quotas.shares.claim import OwnClaim
from kafka_throttle.quotas.shares.division import (
    COUNT,
    LEAST,
    RATE,
    Budget,
    Claim,
    Division,
    divide,
    fair_level,
    floor_share,
    implicit_share,
    is_ample,
)
from kafka_throttle.quotas.shares.document import MAX_BYTES, Document, rounded_down
from kafka_throttle.quotas.shares.history import ByAge, Windows, scaled
from kafka_throttle.quotas.shares.moves import Enforced, Key, Move, Use
from kafka_throttle.quotas.shares.publications import Publications
from kafka_throttle.quotas.shares.view import OtherMembers
from kafka_throttle.quotas.shares.whole import divide_whole

_UNUSED_MS: Final = 60_000
"""A claim without use for so long ends."""
_PRESSED_ALONE_MS: Final = 10_000
"""A member that was alone claims keys that were pressed within this time when another member comes."""
_OVER_MS: Final = 10_000
"""Claims of the same members that add up to too much for so long are an error of one of them, and no conflict of
raises."""
_ROUNDING: Final = 1e-6
_TURNS: Final = 4
"""A claim in which nothing happens is looked at in each 4th look."""
_MAX_SIZE: Final = MAX_BYTES * 3 // 4
"""What keys may take in a document; the rest is for what is freed and seen."""


class State(Enum):
    """Where a member stands. `Member` has the transitions."""

    JOINING = "joining"
    """Not yet acknowledged by all others: the floor, for every key."""
    MEMBER = "member"
    CUT_OFF = "cut off"
    """Not heard from the others, who have its record still: of no key more than an equal part."""
    LOST = "lost"
    """The others have no record of it any more: first as before, and after a while an equal part of every key."""
    RETURNING = "returning"
    """Heard again with a new record, and not yet acknowledged by all others: the floor for keys that others claim."""


class Why(Enum):
    """Why a key has the share it has."""

    ALONE = "this instance is alone"
    JOINING = "this instance has just joined, and the others do not know it yet"
    CUT_OFF = "this instance is cut off from the others"
    UNCLAIMED = "no instance claims the limit, so that each has the same part"
    FLOOR = "other instances claim the limit, and this one does not"
    ENTERING = "this instance has just begun to claim the limit, and not all others know it yet"
    SHORT = "this instance needs more, and others have not yet lowered their claims"
    CLAIMED = "the claim of this instance is in force"


class Explained(NamedTuple):
    """The share of a key, and why."""

    share: float
    claim: float | None
    """None: this member does not claim the key."""
    demand: float | None
    others: Mapping[str, Claim]
    """By member id."""
    why: Why


@dataclass(slots=True)
class Totals:
    """What has happened since the start."""

    raises: int = 0
    lowers: int = 0
    conflicts: int = 0
    """Claims that were taken back in part, because others did not lower theirs for long."""
    over: int = 0
    """Claims that were lowered because all claims added up to too much for long: an error of some member."""
    crowded_out: int = 0
    """Keys that did not fit into the document, and stay as they were."""


class Member:
    """An instance in the fleet of one virtual cluster.

    ===========  ========================================================  =========
    state        what happens                                              state
    ===========  ========================================================  =========
    JOINING      all others have acknowledged it, at a look                MEMBER
    JOINING      not heard for `cut_off_ms`                                LOST
    JOINING      heard, and not acknowledged by all for 2 `cut_off_ms`     RETURNING
    MEMBER       not heard for `cut_off_ms`                                CUT_OFF
    MEMBER       the record is lost                                        LOST
    CUT_OFF      heard again, at a look                                    MEMBER
    CUT_OFF      the record is lost, or not heard for 2 `cut_off_ms`       LOST
    LOST         heard again, at a look                                    RETURNING
    RETURNING    not heard for `cut_off_ms`, or the record is lost         LOST
    RETURNING    all others have acknowledged it, at a look                MEMBER
    ===========  ========================================================  =========

    All times are monotonic ms of this instance. `windows` and `window_ms` are those of the sensors. `assumed` is the
    number of members while nothing has ever been heard. `is_count` tells which keys are numbers of connections
    instead of rates: such a key has no floors, and one member can have all of it.
    """

    def __init__(
        self,
        member_id: str,
        windows: int,
        window_ms: int,
        now_ms: int,
        *,
        cut_off_ms: int,
        assumed: int = 1,
        is_count: Callable[[Key], bool] = lambda _: False,
    ) -> None:
        self.id = member_id
        self.state = State.JOINING
        self.totals = Totals()
        self._windows = Windows(windows, window_ms)
        self._cut_off_ms = cut_off_ms
        self._others = OtherMembers(self._windows)
        self._fleet: set[str] = set()
        """Members in the view that may use shares of unclaimed keys: this one has acknowledged them, or is about to."""
        self._is_count = is_count
        self._known_others = assumed - 1
        """The number of others when this member was cut off."""
        self._claims: dict[Key, OwnClaim] = {}
        self._touched: set[Key] = set()
        """Keys that others have claimed otherwise since the last look."""
        self._turn = 0
        self._size = 0
        """What the claims take in a document, in bytes."""
        self._fresh: set[Key] = set()
        """Keys that others claim, which this member has neither claimed nor gone down to the floor for."""
        self._enforced = Enforced(floor_share(2))
        self._publications = Publications()
        self._heard_ms: int | None = None
        self._lost_heard_ms: int | None = None
        """What was heard last before the record was lost."""
        self._started_ms = now_ms
        self._pressed_alone: dict[Key, int] = {}

    # What is known of the fleet

    @property
    def members(self) -> int:
        """How many members the fleet has, this one included; while it is cut off how many it had."""
        others = len(self._others.documents)
        return 1 + (max(others, self._known_others) if self.is_cut_off else others)

    @property
    def is_known(self) -> bool:
        """Whether this member is acknowledged by all others, and so has more than the floor."""
        return self.state is State.MEMBER

    @property
    def is_cut_off(self) -> bool:
        """Whether this member does not hear the others, or they have not yet acknowledged that it is back."""
        return self.state in (State.CUT_OFF, State.LOST, State.RETURNING)

    @property
    def heard_ms(self) -> int | None:
        """The latest time given to `heard`."""
        return self._heard_ms

    @property
    def keys(self) -> int:
        """How many keys this member claims."""
        return len(self._claims)

    @property
    def claimed(self) -> float:
        """The enforced claims of all keys together, in limits."""
        return sum(claim.enforced for claim in self._claims.values())

    @property
    def moves(self) -> int:
        """How many moves were taken."""
        return self._enforced.moved

    # What comes in

    def heard(self, sent_ms: int) -> None:
        """The transport is alive: when the last answered request was sent."""
        self._heard_ms = sent_ms if self._heard_ms is None else max(self._heard_ms, sent_ms)

    def lost(self) -> None:
        """The record of this member is gone, so that the others may divide its shares among them. The caller says so
        before it calls `heard` for a request that was answered after that."""
        self._lost_heard_ms = self._heard_ms
        if self.state is State.JOINING:
            self._publications.restart()
        else:
            self._lose()

    def view(self, documents: Mapping[str, Document | None], now_ms: int) -> None:
        """All other members with their last good documents; None: it has none yet."""
        changes = self._others.update(documents, now_ms)
        if self.state not in (State.MEMBER, State.CUT_OFF):
            self._set_default()
            self._limit_own()
            if self.state is State.RETURNING:
                self._go_to_floors()
            return
        self._touched |= changes.touched
        self._fresh -= changes.lost
        self._fresh |= {key for key in changes.found if not self._enforced.has_own(key)}
        for key in changes.lost:
            if self._enforced.has_own(key) and key not in self._claims:
                self._enforced.release(key, self._gain(key, self._enforced.default - self._enforced.of(key), now_ms))
        if not self._fleet <= documents.keys():
            self._fleet &= documents.keys()
            self._set_default()
            if self._fleet:
                self._refresh_floors()
            else:
                self._be_alone(now_ms)
        self._take_shares(now_ms)

    def look(self, uses: Iterable[Use], now_ms: int) -> None:
        """Decide anew, about each 250 ms to 1 s: `uses` has the keys of `watched`, and all that are pressed."""
        self._listen(now_ms)
        by_key = {use.key: use for use in uses}
        if self.state in (State.JOINING, State.RETURNING) and self._is_acknowledged():
            self._become_known(by_key, now_ms)
        if self.state is State.MEMBER:
            self._look_at(by_key, now_ms)
        self._publications.look(self._others.documents, self._fresh)

    def published(self, seq: int, now_ms: int) -> None:
        """The document `seq` was ordered, after all that `document` returned before and before all that it returns
        later. The last view contains everything that was ordered before it."""
        made = self._publications.made
        if made is None or seq != made.seq:
            return
        self._publications.confirmed = seq
        self._take_shares(now_ms)

    # What comes out

    def document(self, now_ms: int) -> Document | None:
        """What has to be published now; None: nothing. The caller keeps to one write a second (the first one at once),
        and does not call this while it publishes. Whatever is returned has to be published, or asked for again."""
        publications = self._publications
        if self.state in (State.CUT_OFF, State.LOST) or not publications.are_wanted():
            return None
        if self.state is State.MEMBER:
            self._acknowledge_others()
        seq = publications.next_seq
        keys = {key: claim.entry(self._windows, now_ms) for key, claim in self._claims.items()}
        asks = 0 if self.is_known else publications.joined
        for claim in self._claims.values():
            claim.joined = claim.joined or seq
            if not claim.is_acknowledged:
                asks = max(asks, claim.joined)
        publications.made = Document(self.id, seq, asks, publications.applied, keys)
        publications.is_due = False
        return publications.made

    def take_moves(self) -> list[Move]:
        """The moves since the last call, to be applied to the rows at once."""
        return self._enforced.take()

    def share_of(self, key: Key) -> float:
        """The share that a row of this key enforces, after all moves."""
        return self._enforced.of(key)

    def pace_of(self, key: Key) -> float:
        """The part of the limit that clients of this key go on with while they wait for a larger share, after all
        moves; 0: they do not wait."""
        return self._enforced.pace(key)

    def has_own_share(self, key: Key) -> bool:
        """Whether moves for EVERY_KEY do not concern this key."""
        return self._enforced.has_own(key)

    def watched(self) -> Collection[Key]:
        """The keys whose Use the next look needs, if there is a row. A claimed key is in each 4th look at least."""
        if self.state not in (State.MEMBER, State.CUT_OFF):
            return set(self._others.keys)
        was_alone = self._others.documents and not self._fleet
        return self._due() | self._fresh | (self._pressed_alone.keys() if was_alone else set())

    def explain(self, key: Key) -> Explained:
        """The share of a key, and why."""
        others = {member: Claim(entry.claim, entry.demand) for member, entry in self._others.claims_of(key).items()}
        claim: OwnClaim | None = self._claims.get(key)
        share = self._enforced.of(key)
        if claim is None:
            return Explained(share, None, None, others, self._why(claim, key))
        return Explained(share, claim.enforced, claim.demand.value, others, self._why(claim, key))

    def _why(self, claim: OwnClaim | None, key: Key) -> Why:
        if self.is_cut_off:
            return Why.CUT_OFF
        if self.state is State.JOINING:
            return Why.JOINING
        if not self._fleet:
            return Why.ALONE
        if claim is None:
            return Why.FLOOR if self._enforced.has_own(key) else Why.UNCLAIMED
        if claim.short_since_ms is None:
            return Why.CLAIMED
        return Why.SHORT if claim.is_acknowledged else Why.ENTERING

    # Members

    @property
    def _n(self) -> int:
        return 1 + len(self._fleet)

    def _is_acknowledged(self) -> bool:
        least = self._others.acknowledged(self.id, self._others.documents)
        return self._publications.has_joined and (least is None or least >= self._publications.joined)

    def _set_default(self, was_joining: bool = False) -> None:
        """The share of all keys without a share of their own. What others have used of them is taken to be as much as
        here, unless this member has not used anything yet."""
        if self.state is State.JOINING:
            self._enforced.set_default(floor_share(self.members), 1.0)
            return
        share = implicit_share(self.members if self.is_cut_off else self._n)
        self._enforced.set_default(share, 1.0 if was_joining else share / self._enforced.default)

    def _listen(self, now_ms: int) -> None:
        """Find out whether this member is cut off, or hears the others again."""
        silent_ms = now_ms - (self._started_ms if self._heard_ms is None else self._heard_ms)
        if silent_ms <= self._cut_off_ms:
            if self.state is State.CUT_OFF:
                self.state = State.MEMBER
                self._set_default()
                self._refresh_floors()
            elif self.state is State.LOST and self._heard_ms != self._lost_heard_ms:
                self.state = State.RETURNING
                self._publications.restart()
            elif self.state is State.JOINING and now_ms - self._started_ms > 2 * self._cut_off_ms:
                # Records of the dead are gone by now: what does not acknowledge may never do so.
                self._lose()
                self.state = State.RETURNING
        elif self.state is State.MEMBER:
            self._cut_off(now_ms)
        elif self.state is not State.CUT_OFF or silent_ms > 2 * self._cut_off_ms:
            self._lose()
            if silent_ms > 2 * self._cut_off_ms:
                self._release_all()

    def _cut_off(self, now_ms: int) -> None:
        self.state = State.CUT_OFF
        self._known_others = len(self._others.documents)
        self._set_default()
        for claim in self._claims.values():
            claim.claim = claim.enforced
            equal = rounded_down(claim.budget.total / self.members)
            if claim.enforced > equal:
                claim.lower(equal, self._n, self._windows, now_ms)
            self._enforced.set(claim.key, self._own_share(claim.key), self._kept_pace(claim.key))

    def _lose(self) -> None:
        """Forget the claims. No share grows, and none is more than an equal part."""
        before, self.state = self.state, State.LOST
        if before is State.LOST:
            return
        if before is not State.RETURNING:
            others = len(self._others.documents)
            self._known_others = max(others, self._known_others) if before is State.JOINING else others
            self._set_default(before is State.JOINING)
        self._limit_own()
        self._claims.clear()
        self._size = 0
        self._fresh.clear()
        self._pressed_alone.clear()

    def _limit_own(self) -> None:
        for key in self._enforced.own:
            share = min(self._enforced.of(key), self._enforced.default)
            self._enforced.set(key, share, self._kept_pace(key))

    def _release_all(self) -> None:
        """Every key has the implicit share. What is more than before comes without a burst."""
        for key in self._enforced.own:
            if not self._others.is_claimed(key) or self.state is State.LOST:
                more = self._enforced.default - self._enforced.of(key)
                self._enforced.release(key, self._windows.full(more) if more > 0 else ())

    def _go_to_floors(self) -> None:
        for key in self._others.keys:
            self._go_to_floor(key)

    def _become_known(self, uses: Mapping[Key, Use], now_ms: int) -> None:
        was_joining = self.state is State.JOINING
        self.state = State.MEMBER
        self._fleet = set(self._others.documents)
        self._set_default(was_joining)
        self._fresh.clear()
        self._release_all()
        self._go_to_floors()
        for key, use in uses.items():
            if self._others.is_claimed(key) and _is_in_use(use):
                self._enter(key, now_ms)

    def _acknowledge_others(self) -> None:
        """Before a document acknowledges the others: have no share that they do not expect."""
        applied = self._publications.applied
        fleet = {member for member, known in self._others.documents.items() if known is None or member in applied}
        if not fleet <= self._fleet:
            self._fleet |= fleet
            self._set_default()
            self._refresh_floors()
        for key in self._publications.offered:
            if key in self._fresh:
                self._go_to_floor(key)

    def _refresh_floors(self) -> None:
        """The number of members is another one. Claims stay: a member that joins after them finds them."""
        for key in self._enforced.own:
            self._enforced.set(key, self._own_share(key), self._enforced.pace(key))

    def _own_share(self, key: Key) -> float:
        """The share of a key that this member claims, or that it has gone down to the floor for."""
        claim = self._claims.get(key)
        return self._budget(key).floor(self._n) + (0.0 if claim is None else claim.enforced)

    def _pace(self, key: Key) -> float:
        """The fair part of a member that could use all of a key, by what the others have published. While it is not
        certain that they know this member, an equal part."""
        if self.state is not State.MEMBER:
            return implicit_share(self.members)
        demands = [entry.demand for entry in self._others.claims_of(key).values()]
        return min(fair_level([1.0, *demands], self._budget(key).total), 1.0)

    def _kept_pace(self, key: Key) -> float:
        """That of clients that wait when this member is cut off: never more than an equal part."""
        return min(self._enforced.pace(key), implicit_share(self.members))

    def _budget(self, key: Key) -> Budget:
        return COUNT if self._is_count(key) else RATE

    def _be_alone(self, now_ms: int) -> None:
        """All others have left: every limit is whole."""
        for key, claim in self._claims.items():
            if now_ms - claim.used_ms < _PRESSED_ALONE_MS:
                self._pressed_alone[key] = now_ms
        for key in self._enforced.own:
            self._enforced.release(key, self._gain(key, self._enforced.default - self._enforced.of(key), now_ms))
        self._publications.is_due = self._publications.is_due or bool(self._claims)
        self._claims.clear()
        self._size = 0
        self._fresh = set(self._others.keys)

    # Claims

    def _look_at(self, uses: Mapping[Key, Use], now_ms: int) -> None:
        if not self._fleet:
            self._look_alone(uses, now_ms)
        if not self._others.documents:
            return
        for key, use in uses.items():
            if key not in self._claims and self._has_to_enter(use):
                self._enter(key, now_ms)
        self._acknowledge_claims()
        for key in self._due() | (uses.keys() & self._claims.keys()):
            self._update(self._claims[key], uses.get(key) or Use(key, 0.0, False, ()), now_ms)
        self._touched.clear()
        self._turn += 1

    def _due(self) -> set[Key]:
        """The claims that the next look divides anew: all in which something happens, and a part of the others."""
        turn, touched = self._turn % _TURNS, self._touched
        return {key for key, claim in self._claims.items() if claim.turn == turn or key in touched or claim.is_busy}

    def _has_to_enter(self, use: Use) -> bool:
        """Whether this member has to claim a key: clients are throttled, or others begin to claim what it uses, or it
        holds more than its part will be in a fleet with the members that it has not acknowledged yet."""
        holds_more = use.held > 0 and use.held > implicit_share(self.members)
        return use.is_pressed or holds_more or (use.key in self._fresh and _is_in_use(use))

    def _look_alone(self, uses: Mapping[Key, Use], now_ms: int) -> None:
        """Nobody else may use anything yet: claims begin with all, so that a member that comes finds them."""
        self._pressed_alone = {
            key: pressed_ms
            for key, pressed_ms in self._pressed_alone.items()
            if now_ms - pressed_ms < _PRESSED_ALONE_MS
        } | {key: now_ms for key, use in uses.items() if use.is_pressed}
        if self._others.documents:
            for key in self._pressed_alone:
                if key in uses and key not in self._claims:
                    self._enter(key, now_ms)

    def _enter(self, key: Key, now_ms: int) -> None:
        """Claim what this member may use of the key anyway."""
        budget = self._budget(key)
        share = 0.0 if self._enforced.has_own(key) else rounded_down(budget.total / self._n)
        claim = OwnClaim(key, budget, share, len(self._claims) % _TURNS, now_ms)
        if self._size + claim.size > _MAX_SIZE:
            self.totals.crowded_out += 1
            if self._enforced.has_own(key):
                self._enforced.set(key, self._enforced.of(key), 0.0)  # a larger share does not come
            return
        claim.is_acknowledged = not self._fleet
        self._claims[key] = claim
        self._size += claim.size
        self._fresh.discard(key)
        self._publications.is_due = True
        self._enforced.set(key, self._own_share(key), self._enforced.pace(key))

    def _leave(self, claim: OwnClaim, now_ms: int) -> None:
        del self._claims[claim.key]
        self._size -= claim.size
        self._publications.is_due = True
        if self._others.is_claimed(claim.key):
            self._go_to_floor(claim.key)
        else:
            self._enforced.release(claim.key)

    def _go_to_floor(self, key: Key) -> None:
        self._fresh.discard(key)
        self._enforced.set(key, self._own_share(key), self._pace(key))

    def _acknowledge_claims(self) -> None:
        least = self._others.acknowledged(self.id, self._fleet)
        for claim in self._claims.values():
            if not claim.is_acknowledged and claim.joined:
                claim.is_acknowledged = least is None or least >= claim.joined

    def _update(self, claim: OwnClaim, use: Use, now_ms: int) -> None:
        passed_ms, claim.looked_ms = max(now_ms - claim.looked_ms, 1), now_ms
        claim.use = use
        if _is_in_use(use):
            claim.used_ms = now_ms
        elif now_ms - claim.used_ms >= _UNUSED_MS:
            self._leave(claim, now_ms)
            return
        implicit = claim.budget.total / self._n
        claim.demand.update(use, self._own_share(claim.key), implicit, passed_ms, now_ms)
        division = self._division(claim)
        claim.give_freed(division.free, self._windows, now_ms)
        self._divide(claim, division, now_ms)
        claim.is_contended = division.is_contended
        if claim.has_to_be_published(division):
            self._publications.is_due = True
        elif self._publications.is_confirmed:
            self._take_share(claim, now_ms)  # it is published, and was enforced in part while this member was cut off
        pace = self._pace(claim.key) if claim.waits(implicit, now_ms) else 0.0
        self._enforced.set(claim.key, self._own_share(claim.key), pace)

    def _division(self, claim: OwnClaim) -> Division:
        mine = Claim(claim.enforced, claim.demand.value)
        entries = self._others.claims_of(claim.key)
        others = {member: Claim(entry.claim, entry.demand) for member, entry in entries.items()}
        if claim.use.unit:
            return divide_whole(self.id, mine, others, claim.use.unit)
        return divide(mine, others.values(), claim.budget.total)

    def _divide(self, claim: OwnClaim, division: Division, now_ms: int) -> None:
        """Lower or raise the claim, if it has to be."""
        target = rounded_down(min(max(division.target, claim.use.held), claim.budget.total))
        if division.free >= -_ROUNDING:
            claim.over_since_ms = None
        elif claim.over_since_ms is None or not self._claimants(claim.key) <= claim.claimants:
            # A new member only announces its claim; it has no part while a dead member still has its claim.
            claim.over_since_ms, claim.claimants = now_ms, self._claimants(claim.key)
        elif now_ms - claim.over_since_ms >= _OVER_MS and claim.enforced > 0:
            self.totals.over += 1
            least = max(claim.enforced + division.free, claim.use.held)
            claim.lower(rounded_down(min(least, claim.enforced)), self._n, self._windows, now_ms)
            return
        is_wanted = division.free < -LEAST or division.lacking > max(division.free, 0.0) + LEAST
        if is_wanted and is_ample(claim.enforced, target):
            self.totals.lowers += 1
            claim.lower(target, self._n, self._windows, now_ms)
            return
        claim.note(division.fair, now_ms)
        wanted = claim.wanted(target, division.free, now_ms)
        if claim.is_refused(now_ms) and wanted < claim.claim - LEAST:
            self.totals.conflicts += 1
        if abs(wanted - claim.claim) > LEAST or wanted == claim.enforced:
            claim.claim = wanted

    def _claimants(self, key: Key) -> set[str]:
        """The others that claim a part of the key, and not only that they use it."""
        return {member for member, entry in self._others.claims_of(key).items() if entry.claim > LEAST}

    def _take_shares(self, now_ms: int) -> None:
        """Enforce the larger claims that were ordered and are acknowledged, as far as all others leave them."""
        if self.state is not State.MEMBER or not self._publications.is_confirmed:
            return
        self._acknowledge_claims()
        for claim in self._claims.values():
            self._take_share(claim, now_ms)

    def _take_share(self, claim: OwnClaim, now_ms: int) -> None:
        if claim.is_raised and claim.is_acknowledged and claim.published is not None:
            room = rounded_down(claim.budget.total - self._others.claimed(claim.key) + _ROUNDING / 2)
            to = min(claim.published.claim, claim.claim, room)
            if to > claim.enforced:
                self._raise(claim, to, now_ms)

    def _raise(self, claim: OwnClaim, to: float, now_ms: int) -> None:
        self.totals.raises += 1
        free = claim.budget.total - self._others.claimed(claim.key) - claim.enforced
        gain = self._gain(claim.key, to - claim.enforced, now_ms, claim)
        claim.retake_freed(min((to - claim.enforced) / max(free, _ROUNDING), 1.0), self._windows, now_ms)
        claim.enforced = to
        self._enforced.set(claim.key, self._own_share(claim.key), self._enforced.pace(claim.key), gain)

    def _gain(self, key: Key, more: float, now_ms: int, claim: OwnClaim | None = None) -> ByAge:
        """What belongs to `more` share of what was given away of the key."""
        freed = self._others.freed(key, now_ms)
        if claim is not None:
            freed.append(claim.freed)
        pool = self._windows.together(freed, now_ms)
        if more <= 0 or pool.share <= 0:
            return ()
        free = self._budget(key).total - self._others.claimed(key) - (claim.enforced if claim is not None else 0.0)
        return scaled(pool.by_age, more / max(free, pool.share))


def _is_in_use(use: Use) -> bool:
    return use.is_pressed or use.rate > 0 or use.held > 0 or any(use.used)
