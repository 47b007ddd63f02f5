"""A fleet without a network: registers that are ordered one after the other, and views that lag behind them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kafka_throttle.quotas.shares.document import Document, parse
from kafka_throttle.quotas.shares.member import Member, State
from kafka_throttle.quotas.shares.moves import EVERY_KEY, Key, Move, Use

WINDOWS, WINDOW_MS = 11, 1000
SESSION_MS = 6000
CUT_OFF_MS = 5500
SPAN_S = (WINDOWS - 1) * WINDOW_MS / 1000


@dataclass
class Instance:
    """A member with its transport and its own clock."""

    member: Member
    offset_ms: int
    created: int = 0
    """What of the registers it has seen, by author."""
    seen: dict[str, int] = field(default_factory=dict)
    in_flight: Document | None = None
    is_ordered: bool = False
    contact_ms: int = 0
    """When the servers have heard of it last."""
    is_reached: bool = True
    is_frozen: bool = False
    has_record: bool = False
    is_unaware: bool = False
    """Its record is gone, and it has not been told yet."""
    looked_ms: int = 0


class Registers:
    """What each author has published, in order; None: its record is gone. Authors begin with nothing."""

    def __init__(self) -> None:
        self.histories: dict[str, list[Document | None]] = {}

    def put(self, author: str, document: Document | None) -> None:
        history = self.histories.setdefault(author, [None])
        history.append(None if document is None else parse(document.encoded(), author))

    def view(self, seen: dict[str, int], without: str) -> dict[str, Document | None]:
        contents = {author: history[seen.get(author, 0)] for author, history in self.histories.items()}
        return {author: document for author, document in contents.items() if document is not None and author != without}

    def latest(self) -> dict[str, int]:
        return {author: len(history) - 1 for author, history in self.histories.items()}


class Fleet:
    """Instances, registers and one time."""

    def __init__(self, is_count: Callable[[Key], bool] = lambda _: False) -> None:
        self._is_count = is_count
        self.now_ms = 1_000_000
        self.registers = Registers()
        self.instances: dict[str, Instance] = {}
        self.gone: list[Instance] = []
        """They have ended without leaving; their records stay until their sessions end."""
        self._names = 0

    def join(self, offset_ms: int = 0, cut_off_ms: int = CUT_OFF_MS) -> Instance:
        self._names += 1
        name = f"m{self._names}"
        now_ms = self.now_ms + offset_ms
        member = Member(name, WINDOWS, WINDOW_MS, now_ms, cut_off_ms=cut_off_ms, is_count=self._is_count)
        instance = Instance(member, offset_ms, contact_ms=self.now_ms, looked_ms=self.now_ms)
        self.instances[name] = instance
        self.hear(instance)
        return instance

    def local(self, instance: Instance) -> int:
        return self.now_ms + instance.offset_ms

    def hear(self, instance: Instance) -> None:
        """A request is answered; the first answer says that the record is gone, if it is."""
        if instance.is_reached and not instance.is_frozen:
            instance.contact_ms = self.now_ms
            if instance.is_unaware:
                instance.member.lost()
                instance.is_unaware = False
            instance.member.heard(self.local(instance))

    def deliver(
        self, instance: Instance, authors: Iterable[str] | None = None, upto: dict[str, int] | None = None
    ) -> None:
        latest = upto or self.registers.latest()
        for author in latest if authors is None else authors:
            instance.seen[author] = max(instance.seen.get(author, 0), latest[author])
        view = self.registers.view(instance.seen, instance.member.id)
        instance.member.view(view, self.local(instance))

    def look(self, instance: Instance, uses: Iterable[Use] = ()) -> None:
        instance.looked_ms = self.now_ms
        instance.member.look(uses, self.local(instance))

    def publish(self, instance: Instance) -> bool:
        """Ask for a document; True if there is one."""
        instance.in_flight = instance.member.document(self.local(instance))
        instance.is_ordered = False
        return instance.in_flight is not None

    def order(self, instance: Instance) -> None:
        assert instance.in_flight is not None
        self.registers.put(instance.member.id, instance.in_flight)
        instance.is_ordered = instance.has_record = True

    def confirm(self, instance: Instance) -> None:
        assert instance.in_flight is not None
        assert instance.is_ordered
        seq, instance.in_flight = instance.in_flight.seq, None
        self.deliver(instance)
        instance.member.published(seq, self.local(instance))

    def publish_at_once(self, instance: Instance) -> bool:
        if not self.publish(instance):
            return False
        self.order(instance)
        self.confirm(instance)
        return True

    def remove(self, instance: Instance) -> None:
        """Its record is gone: it has left, or its session has ended."""
        if instance.has_record:
            self.registers.put(instance.member.id, None)
            instance.is_unaware = True
        instance.has_record = False
        instance.in_flight = None

    def is_cut_off(self, instance: Instance) -> bool:
        """Whether it does not count: it is cut off, or has had no chance to find out that it is."""
        heard_ms = instance.member.heard_ms
        assert heard_ms is not None
        is_deaf = self.local(instance) - heard_ms > CUT_OFF_MS or self.now_ms - instance.looked_ms > CUT_OFF_MS
        return instance.is_frozen or instance.member.is_cut_off or is_deaf

    def excess(self, key: Key) -> float:
        """By how much the shares of a key are above 1, without members that are cut off or have never been known."""
        return (
            sum(
                instance.member.share_of(key)
                for instance in self.instances.values()
                if instance.member.state is not State.JOINING and not self.is_cut_off(instance)
            )
            - 1
        )


class Rows:
    """Rows of one instance: windowed rates in seconds of the whole limit, moved as moves say."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.amounts: dict[Key, list[float]] = {}
        self.shares: dict[Key, float] = {}
        self.gained = self.lost = 0.0

    def open(self, key: Key) -> None:
        self.amounts[key] = [0.0] * WINDOWS
        self.shares[key] = self.member.share_of(key)

    def apply(self, moves: list[Move]) -> None:
        own = {move.key for move in moves}
        for move in moves:
            if move.key != EVERY_KEY:
                self._move(move.key, move)
        for move in moves:
            if move.key == EVERY_KEY:
                for key in self.amounts:
                    if key not in own and not self.member.has_own_share(key):
                        self._move(key, move)

    def _move(self, key: Key, move: Move) -> None:
        if key in self.amounts:
            self.shares[key] = move.share
            self.lost += sum(self.amounts[key]) * (1 - move.keep)
            amounts = [amount * move.keep for amount in self.amounts[key]]
            for age, gained in enumerate(move.gain):
                amounts[age] += gained
            self.amounts[key] = amounts
            self.gained += sum(move.gain)
