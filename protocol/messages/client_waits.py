"""From which version of an API on clients wait by themselves for the throttle time of a response (KIP-219).

In earlier versions clients assume that an old broker has delayed the response already. Source: `shouldClientThrottle`
of the response classes of Kafka 3.9. For APIs that are not listed here, clients never wait.
"""

from collections.abc import Mapping
from typing import Final

from kafka_throttle.protocol import api_key as apis

CLIENT_WAITS_SINCE: Final[Mapping[int, int]] = {
    **dict.fromkeys(
        (
            apis.ELECT_LEADERS,
            apis.INCREMENTAL_ALTER_CONFIGS,
            apis.ALTER_PARTITION_REASSIGNMENTS,
            apis.LIST_PARTITION_REASSIGNMENTS,
            apis.OFFSET_DELETE,
            apis.DESCRIBE_USER_SCRAM_CREDENTIALS,
            apis.ALTER_USER_SCRAM_CREDENTIALS,
            apis.BROKER_REGISTRATION,
            apis.BROKER_HEARTBEAT,
            apis.UNREGISTER_BROKER,
            apis.DESCRIBE_TOPIC_PARTITIONS,
        ),
        0,
    ),
    **dict.fromkeys(
        (
            apis.DELETE_RECORDS,
            apis.INIT_PRODUCER_ID,
            apis.ADD_PARTITIONS_TO_TXN,
            apis.ADD_OFFSETS_TO_TXN,
            apis.END_TXN,
            apis.TXN_OFFSET_COMMIT,
            apis.DESCRIBE_ACLS,
            apis.CREATE_ACLS,
            apis.DELETE_ACLS,
            apis.ALTER_CONFIGS,
            apis.ALTER_REPLICA_LOG_DIRS,
            apis.DESCRIBE_LOG_DIRS,
            apis.CREATE_PARTITIONS,
            apis.CREATE_DELEGATION_TOKEN,
            apis.RENEW_DELEGATION_TOKEN,
            apis.EXPIRE_DELEGATION_TOKEN,
            apis.DESCRIBE_DELEGATION_TOKEN,
            apis.DELETE_GROUPS,
        ),
        1,
    ),
    **dict.fromkeys(
        (
            apis.FIND_COORDINATOR,
            apis.HEARTBEAT,
            apis.LEAVE_GROUP,
            apis.SYNC_GROUP,
            apis.DESCRIBE_GROUPS,
            apis.LIST_GROUPS,
            apis.API_VERSIONS,
            apis.DELETE_TOPICS,
            apis.DESCRIBE_CONFIGS,
        ),
        2,
    ),
    **dict.fromkeys(
        (apis.LIST_OFFSETS, apis.JOIN_GROUP, apis.CREATE_TOPICS),
        3,
    ),
    **dict.fromkeys(
        (apis.OFFSET_COMMIT, apis.OFFSET_FETCH),
        4,
    ),
    **dict.fromkeys(
        (apis.PRODUCE, apis.METADATA),
        6,
    ),
    apis.FETCH: 8,
}


def client_waits(api_key: int, api_version: int) -> bool:
    """Whether a client waits by itself for the throttle time in a response of this version."""
    since = CLIENT_WAITS_SINCE.get(api_key)
    return since is not None and api_version >= since
