"""What a relay is to everything around it: the contract for a second implementation of it."""

from collections.abc import Sequence
from typing import Protocol

from kafka_throttle.proxy.relay.actions import Action, CloseReason, Decision
from kafka_throttle.proxy.relay.connection_timeouts import WaitingFor
from kafka_throttle.proxy.side import Side


class ConnectionRelay(Protocol):
    """Decides for one client connection and its upstream connection. Does no I/O and reads no clock.

    Each `on_*` method takes what happened and when (`now_us`, monotonic), and returns what to do, in order. No method
    is called while the actions of an earlier call are being carried out. After a Close the relay only charges what
    is charged at responses that are in flight, and corrects the charges of mutations: by DecisionRequests, and a HangUp
    in the end.
    """

    ended_idle: bool
    """Whether, at the Close, nothing was in flight or incomplete: neither side owed the other anything."""
    client_sent_nothing: bool
    """Whether, until the Close, not one byte came from the client: no request, nor a part of one."""

    def on_bytes(self, side: Side, data: bytes, now_us: int) -> list[Action]:
        """Bytes from the client or the node."""

    def on_decision(self, ticket: int, decision: Decision, now_us: int) -> list[Action]:
        """The decision about a DecisionRequest. One that is no longer waited for is dropped."""

    def on_time(self, now_us: int) -> list[Action]:
        """The time of a WakeAt has come: the throttle is over, unless it was prolonged meanwhile."""

    def on_writable(self, side: Side, now_us: int) -> list[Action]:
        """A side takes bytes (again). For the node, the first call means that it is connected."""

    def on_blocked(self, side: Side, unsent_bytes: int = 0) -> list[Action]:
        """A side takes no more bytes, and so many wait for it: the other side is not read until that is over."""

    def on_eof(self, side: Side, now_us: int) -> list[Action]:
        """No more bytes come from `side`. What a muted client sent before is still carried, as a broker does."""

    def on_lost(self, reason: CloseReason, detail: str = "", now_us: int = 0) -> list[Action]:
        """The connection to a side is lost, could not be made, or must be given up. After a Close: no responses of the
        node can be waited for any longer.
        """

    def on_memory(self, now_us: int) -> list[Action]:
        """The relay has got room in the memory for which it has waited."""

    def on_held_up(self) -> None:
        """Something other than the node delays its responses: their time does not show what the requests cost."""

    def take_no_more(self) -> None:
        """Take no further request of the client. A request that has come in part, or is asked about, goes on."""

    def on_left(self) -> None:
        """The client has ended its stream, though not all that it sent may have been read. The owner of a muted relay
        finds out before `on_time`.
        """

    def note_unsent(self, unsent_bytes: int, now_us: int) -> None:
        """Count bytes that were handed over for the client and never written, because its connection ended first."""

    @property
    def requests(self) -> int:
        """How many requests have come whole. After a Close, one that has ended incomplete counts, too."""

    @property
    def request_bytes(self) -> int:
        """How many bytes the requests have, with their length prefixes."""

    @property
    def responses(self) -> int:
        """How many responses have begun to go out."""

    @property
    def first_bytes(self) -> bytes:
        """How the first request of the client begins, as far as it is stored; empty before it is here."""

    @property
    def requests_by_api(self) -> Sequence[int]:
        """How many requests have come whole, by API key, over all connections to the node of this listener."""

    @property
    def oldest_api_key(self) -> int:
        """The API of the response that comes next; -1 if none is waited for."""

    @property
    def response_bytes(self) -> int:
        """How many bytes the responses have, with their length prefixes."""

    @property
    def throttled_ms(self) -> int:
        """For how long in all the client was muted by throttles."""

    @property
    def muted(self) -> bool:
        """True while the client is read only to see its next request head; not after a Close."""

    @property
    def unsettled(self) -> bool:
        """True while responses of the node are still needed after a Close."""

    @property
    def lacks_room(self) -> bool:
        """True while a request waits because its quota of request time has no room beside what is in flight."""

    @property
    def missing_bytes(self) -> int:
        """How many bytes are still to come of a request that is collected whole."""

    @property
    def unread_bytes(self) -> int:
        """How many bytes of the client the relay holds, of requests that are not taken yet."""

    @property
    def held_bytes(self) -> int:
        """How many bytes the relay holds."""

    @property
    def idle(self) -> bool:
        """True between requests: nothing is in flight, and no frame is incomplete."""

    @property
    def answered(self) -> bool:
        """True when every request that the node has whole has its response, and none is asked about."""

    @property
    def waiting_for(self) -> WaitingFor:
        """What the proxy waits for the client to do."""
