"""Which side of a connection is read, and what the connection holds in memory meanwhile."""

from typing import Final

from kafka_throttle.proxy.relay.actions import AwaitMemory, Pause, Resume
from kafka_throttle.proxy.relay.memory import SMALL_BYTES, Holding, Memory, Owner
from kafka_throttle.proxy.relay.turn import Turn
from kafka_throttle.proxy.side import Side

_CHANGES: Final = {(side, paused): (Pause if paused else Resume)(side) for side in Side for paused in (True, False)}


class Flow:
    """What each side does now: `*_blocked` takes no more bytes, `*_paused` is not read.

    One side is not read while the other side takes no more bytes.

    - `unsent_bytes` is what a client that is blocked is still to get, beyond what any connection may buffer.
    - `holding` is what the connection holds of the memory that all share; None until it holds something.
    """

    __slots__ = (
        "_memory",
        "_most_unsent_bytes",
        "_owner",
        "_turn",
        "client_blocked",
        "client_paused",
        "holding",
        "node_blocked",
        "node_paused",
        "unsent_bytes",
    )

    def __init__(self, turn: Turn, write_buffer_bytes: int, memory: Memory, owner: Owner) -> None:
        self.unsent_bytes = 0
        self.holding: Holding | None = None
        self._memory = memory
        self._owner = owner
        self._most_unsent_bytes = 2 * write_buffer_bytes
        self._turn = turn
        self.client_blocked = False
        self.client_paused = False
        self.node_blocked = False
        self.node_paused = False

    def hold(self) -> Holding:
        """What the connection holds; made when first needed, as most connections never hold anything."""
        if self.holding is None:
            self.holding = Holding(self._memory, self._owner)
        return self.holding

    def may_hold_request(self, size_bytes: int) -> bool:
        """Whether there is room to collect a request of this size; if not, the relay waits for it."""
        return size_bytes <= SMALL_BYTES or self._has_room(self.hold().may_hold_request(size_bytes))

    def may_hold_response(self, size_bytes: int) -> bool:
        """Whether there is room to collect so many bytes of a response; if not, the relay waits for it."""
        return size_bytes <= SMALL_BYTES or self._has_room(self.hold().may_hold_response(size_bytes))

    def _has_room(self, is_here: bool) -> bool:
        if not is_here:
            self._turn.after.append(AwaitMemory(self.hold()))
        return is_here

    def block_client(self, unsent_bytes: int) -> None:
        """The client takes no more bytes for now; so many wait for it."""
        self.client_blocked = True
        if unsent_bytes > self._most_unsent_bytes:
            self.unsent_bytes = unsent_bytes - self._most_unsent_bytes
            self.hold()

    def unblock_client(self) -> None:
        """The client takes bytes again."""
        self.client_blocked = False
        self.unsent_bytes = 0

    def pause_client(self, pause: bool) -> None:
        """Read the client or do not; nothing happens if that is so already."""
        if pause != self.client_paused:
            self.client_paused = pause
            self._turn.actions.append(_CHANGES[Side.CLIENT, pause])

    def pause_node(self, pause: bool) -> None:
        """Read the node or do not; nothing happens if that is so already."""
        if pause != self.node_paused:
            self.node_paused = pause
            self._turn.actions.append(_CHANGES[Side.NODE, pause])
