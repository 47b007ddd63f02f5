"""Which APIs cost a node about the same, which ones wait by design, and what each costs until that is learned."""

from collections.abc import Mapping
from typing import Final

from kafka_throttle.protocol import api_key as apis
from kafka_throttle.quotas.request_costs import Cost

_LIKE: Final = {
    **dict.fromkeys(
        (
            apis.JOIN_GROUP,
            apis.LEAVE_GROUP,
            apis.SYNC_GROUP,
            apis.CONSUMER_GROUP_HEARTBEAT,
            apis.SHARE_GROUP_HEARTBEAT,
            apis.STREAMS_GROUP_HEARTBEAT,
        ),
        apis.HEARTBEAT,
    ),
    apis.SHARE_FETCH: apis.FETCH,
}
"""JoinGroup, LeaveGroup, SyncGroup and the heartbeats of newer kinds of groups are counted as a Heartbeat."""

_DATA_BYTES: Final = 1024
"""A response to a Fetch that has fewer bytes may have waited for data."""

_WAITING: Final = frozenset(
    # ListOffsets waits where storage is tiered
    {
        apis.LIST_OFFSETS,
        apis.OFFSET_COMMIT,
        apis.JOIN_GROUP,
        apis.SYNC_GROUP,
        apis.CREATE_TOPICS,
        apis.DELETE_TOPICS,
        apis.DELETE_RECORDS,
    }
    # what is appended to the transaction log
    | {
        apis.INIT_PRODUCER_ID,
        apis.ADD_PARTITIONS_TO_TXN,
        apis.ADD_OFFSETS_TO_TXN,
        apis.END_TXN,
        apis.WRITE_TXN_MARKERS,
        apis.TXN_OFFSET_COMMIT,
    }
    | {
        apis.CREATE_PARTITIONS,
        apis.ELECT_LEADERS,
        apis.ALTER_PARTITION_REASSIGNMENTS,
        apis.LIST_PARTITION_REASSIGNMENTS,
        apis.UPDATE_FEATURES,
        apis.SHARE_FETCH,
        apis.SHARE_ACKNOWLEDGE,
        apis.ADD_RAFT_VOTER,
        apis.REMOVE_RAFT_VOTER,
        apis.UPDATE_RAFT_VOTER,
        apis.READ_SHARE_GROUP_STATE,
        apis.WRITE_SHARE_GROUP_STATE,
    }
    # what a node of KRaft hands on to the controller
    | {
        apis.CREATE_ACLS,
        apis.DELETE_ACLS,
        apis.ALTER_CONFIGS,
        apis.CREATE_DELEGATION_TOKEN,
        apis.RENEW_DELEGATION_TOKEN,
        apis.EXPIRE_DELEGATION_TOKEN,
        apis.INCREMENTAL_ALTER_CONFIGS,
        apis.DESCRIBE_CLIENT_QUOTAS,
        apis.ALTER_CLIENT_QUOTAS,
        apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
        apis.ALTER_USER_SCRAM_CREDENTIALS,
        apis.DESCRIBE_QUORUM,
        apis.ENVELOPE,
    }
)
"""APIs whose response may wait for something: its time does not show what the request cost."""


def cost_kind(api_key: int) -> int:
    """The API whose cost is used for this one."""
    return _LIKE.get(api_key, api_key)


def min_learning_bytes(api_key: int) -> int | None:
    """From how many bytes on the time of a response shows what these requests cost; None: it never does."""
    if api_key in _WAITING:
        return None
    return _DATA_BYTES if api_key == apis.FETCH else 0


_THROUGH_CONTROLLER: Final = (
    apis.CREATE_TOPICS,
    apis.DELETE_TOPICS,
    apis.CREATE_PARTITIONS,
    apis.ELECT_LEADERS,
    apis.ALTER_PARTITION_REASSIGNMENTS,
)

_APPENDING: Final = (
    apis.OFFSET_COMMIT,
    apis.INIT_PRODUCER_ID,
    apis.ADD_PARTITIONS_TO_TXN,
    apis.ADD_OFFSETS_TO_TXN,
    apis.END_TXN,
    apis.TXN_OFFSET_COMMIT,
)

SHIPPED: Final[Mapping[int, Cost]] = {
    apis.PRODUCE: Cost(70.0, 3.0),
    apis.FETCH: Cost(75.0, 0.4),
    apis.HEARTBEAT: Cost(50.0, 0.25),
    **dict.fromkeys(_APPENDING, Cost(120.0, 1.0)),
    **dict.fromkeys(_THROUGH_CONTROLLER, Cost(300.0, 1.0)),
}
"""By API key: about the costs at a node of Kafka 4.3.1 on two cores. All other APIs begin with UNKNOWN."""

BUSY_SHARES: Final[Mapping[int, float]] = {apis.PRODUCE: 0.5, apis.FETCH: 0.4}
"""In place of BUSY_SHARE, by API key: handler threads are busy with records for longer."""
