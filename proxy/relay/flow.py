"""Which side of a connection is read: one side is not read while the other side takes no more bytes."""

from typing import Final

from proxy.relay.actions import Pause, Resume
from proxy.relay.turn import Turn
from proxy.side import Side

_CHANGES: Final = {(side, paused): (Pause if paused else Resume)(side) for side in Side for paused in (True, False)}


class Flow:
    """What each side does now: `*_blocked` takes no more bytes, `*_paused` is not read."""

    __slots__ = ("_turn", "client_blocked", "client_paused", "node_blocked", "node_paused")

    def __init__(self, turn: Turn) -> None:
        self._turn = turn
        self.client_blocked = False
        self.client_paused = False
        self.node_blocked = False
        self.node_paused = False

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
