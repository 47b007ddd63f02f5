"""Which APIs cost a node alike, which of them wait by design, and what they cost until that is learned."""

from collections.abc import Mapping
from typing import Final

from quotas.request_costs import Cost

_PRODUCE, _FETCH, _HEARTBEAT, _SHARE_FETCH = 0, 1, 12, 78

_LIKE: Final = {
    **dict.fromkeys((11, 13, 14, 68, 76, 88), _HEARTBEAT),
    _SHARE_FETCH: _FETCH,
}
"""JoinGroup, LeaveGroup, SyncGroup and the heartbeats of later kinds of groups are taken for a Heartbeat."""

_DATA_BYTES: Final = 1024
"""A response to a Fetch with fewer bytes may have waited for data."""

_WAITING: Final = frozenset(
    # ListOffsets of tiered storage, OffsetCommit, JoinGroup, SyncGroup, Create- and DeleteTopics, DeleteRecords
    {2, 8, 11, 14, 19, 20, 21}
    # what is appended to the transaction log
    | {22, 24, 25, 26, 27, 28}
    # CreatePartitions, ElectLeaders, reassignments, UpdateFeatures, ShareFetch, ShareAcknowledge, Raft voters
    | {37, 43, 45, 46, 57, 78, 79, 80, 81, 82, 84, 85}
    # what a node of KRaft hands on to the controller
    | {30, 31, 33, 38, 39, 40, 44, 48, 49, 50, 51, 55, 58}
)
"""APIs whose response may wait for something: the time that it took tells nothing."""


def cost_kind(api_key: int) -> int:
    """The API whose cost holds for this one."""
    return _LIKE.get(api_key, api_key)


def least_telling_bytes(api_key: int) -> int | None:
    """From how many bytes on a response that took long tells what such requests cost; None: it never does."""
    if api_key in _WAITING:
        return None
    return _DATA_BYTES if api_key == _FETCH else 0


_THROUGH_CONTROLLER: Final = (19, 20, 37, 43, 45)
"""CreateTopics, DeleteTopics, CreatePartitions, ElectLeaders, AlterPartitionReassignments."""

_APPENDING: Final = (8, 22, 24, 25, 26, 28)
"""OffsetCommit, InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, TxnOffsetCommit."""

SHIPPED: Final[Mapping[int, Cost]] = {
    _PRODUCE: Cost(70.0, 3.0),
    _FETCH: Cost(75.0, 0.4),
    _HEARTBEAT: Cost(50.0, 0.25),
    **dict.fromkeys(_APPENDING, Cost(120.0, 1.0)),
    **dict.fromkeys(_THROUGH_CONTROLLER, Cost(300.0, 1.0)),
}
"""By API key; a node of 4.3.1 on two cores has about these. For the others UNKNOWN holds."""

BUSY_SHARES: Final[Mapping[int, float]] = {_PRODUCE: 0.5, _FETCH: 0.4}
"""Handlers are busy with records for longer."""
