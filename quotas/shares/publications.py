"""Which document a member has made last, and whether another one is due."""

from collections.abc import Iterable, Mapping

from kafka_throttle.quotas.shares.document import Document
from kafka_throttle.quotas.shares.moves import Key


class Publications:
    """The documents of one member, and the documents of others that the next one acknowledges."""

    __slots__ = ("_asked", "applied", "confirmed", "is_due", "joined", "made", "offered")

    def __init__(self) -> None:
        self.made: Document | None = None
        self.confirmed = 0
        """The seq of the last document that was ordered."""
        self.joined = 1
        """The seq of the document that others have to acknowledge before this member has more than the floor."""
        self.is_due = True
        """Something has changed that others have to know."""
        self.applied: dict[str, int] = {}
        """The seq of each other member's document, as of the last look."""
        self.offered: list[Key] = []
        """Keys that others have begun to claim and that this member does not use, as of the last look."""
        self._asked: dict[str, int] = {}

    @property
    def next_seq(self) -> int:
        """The seq of the next document."""
        return 1 if self.made is None else self.made.seq + 1

    @property
    def is_confirmed(self) -> bool:
        """Whether the last document was ordered."""
        return self.made is not None and self.confirmed == self.made.seq

    @property
    def has_joined(self) -> bool:
        """Whether the document that others have to acknowledge was ordered."""
        return self.confirmed >= self.joined

    def restart(self) -> None:
        """Others may have lost the record of this member, and have to acknowledge it again."""
        self.joined = self.next_seq
        self.is_due = True

    def look(self, documents: Mapping[str, Document | None], offered: Iterable[Key]) -> None:
        """The next document takes these documents into account."""
        self.applied = {member: document.seq for member, document in documents.items() if document is not None}
        self._asked = {member: document.asks for member, document in documents.items() if document is not None}
        self.offered = list(offered)

    def are_wanted(self) -> bool:
        """Whether a document has to be published now."""
        if self.is_due or self.made is None or not self.is_confirmed:
            return True
        seen = self.made.seen
        return any(member not in seen or seen[member] < asks for member, asks in self._asked.items())
