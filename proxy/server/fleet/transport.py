"""What carries the claims of a fleet's members to each other."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol


class RefusedRecord(NamedTuple):
    """A record among the claims that no member writes: where it is, and what is wrong with it."""

    place: str
    problem: str


class TransportLost(Exception):
    """What was to be published is not known to be ordered; the text says why."""


class FleetTransport(Protocol):
    """Carries one document of each member to all others. Belongs to the event loop.

    What is published is ordered: of two documents each member that sees the later one sees the earlier one too, or a
    newer one of the same member.
    """

    @property
    def cut_off_ms(self) -> int:
        """How long this member may go without being heard before the others may have dropped it, with a margin."""

    @property
    def heard_ms(self) -> int | None:
        """When the last request that was answered was sent, by the monotonic clock; None: none was."""

    @property
    def losses(self) -> int:
        """How often the others have dropped this member after it had published: they may use its shares.

        The next document that it publishes must be made with that in mind. It stays the same between two turns of the
        event loop, and `publish` refuses a document if it has increased since the call.
        """

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong now, in words: at "" with the transport, else with what a member has published."""

    async def start(self, member_id: str, changed: Callable[[], None]) -> None:
        """Begin to connect; from now on `changed` is called, in the event loop, when anything here has changed."""

    def take_refused(self) -> Sequence[RefusedRecord]:
        """The records that were refused since the last call."""

    def view(self) -> Mapping[str, bytes]:
        """All other members with what they have published last; b"" of one that has not yet, or cannot be read."""

    async def publish(self, content: bytes) -> None:
        """Publish a document; with the first one this member joins.

        Returns when it is ordered, and `view` has everything that was ordered before it. Raises TransportLost.
        """

    async def stop(self) -> None:
        """Leave the fleet: the others may use this member's shares from now on."""
