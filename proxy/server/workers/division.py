"""The part of the configuration's limits that one worker of several has: together they have what is written."""

from collections.abc import Callable

from kafka_throttle.proxy.config.settings import (
    CapsConfig,
    Config,
    ConnectionLimitsConfig,
    ListenerConfig,
    VirtualClusterConfig,
)
from kafka_throttle.proxy.usage.recorder import own_name


def config_of_worker(config: Config, number: int, workers: int) -> Config:
    """The configuration of worker `number`, counted from 0, of so many.

    Limits of the whole process are divided; what is left over of a whole number goes to the first workers. Limits of
    single connections, clients and entities stay as they are, and so do the sizes of tables: each client and each
    entity may be at every worker. Each worker has its own usage records and its own file of sensors.
    """

    def part(whole: int) -> int:
        return whole // workers + (number < whole % workers)

    def share(whole: float) -> float:
        return whole / workers

    limits, usage, file = config.limits, config.usage, config.restart.sensors_file
    return config.model_copy(
        update={
            "virtual_clusters": tuple(_cluster(cluster, workers, part, share) for cluster in config.virtual_clusters),
            "limits": limits.model_copy(
                update={
                    "max_connections": part(limits.max_connections),
                }
            ),
            "connections": _connections(config.connections, part, share),
            "restart": config.restart.model_copy(update={"sensors_file": file and f"{file}.{number}"}),
            "usage": usage.model_copy(
                update={
                    "instance": f"{usage.instance or own_name()}.{number}",
                    "total_mib": max(part(usage.total_mib), 1),
                    "queue_records": part(usage.queue_records),
                }
            ),
        }
    )


Whole = Callable[[int], int]
Share = Callable[[float], float]


def _cluster(cluster: VirtualClusterConfig, workers: int, part: Whole, share: Share) -> VirtualClusterConfig:
    per_second = cluster.upstream.connections_per_second
    return cluster.model_copy(
        update={
            "caps": _caps(cluster.caps, part),
            "upstream": cluster.upstream.model_copy(
                update={"connections_per_second": None if per_second is None else share(per_second)}
            ),
            "quotas": cluster.quotas.model_copy(update={"instances": cluster.quotas.instances * workers}),
            "listeners": tuple(_listener(listener, part, share) for listener in cluster.listeners),
        }
    )


def _listener(listener: ListenerConfig, part: Whole, share: Share) -> ListenerConfig:
    return listener.model_copy(
        update={
            "caps": _caps(listener.caps, part),
            "connections": _connections(listener.connections, part, share),
        }
    )


def _caps(caps: CapsConfig, part: Whole) -> CapsConfig:
    ingress, egress = caps.ingress_bytes_per_s, caps.egress_bytes_per_s
    return caps.model_copy(
        update={
            "ingress_bytes_per_s": None if ingress is None else max(part(ingress), 1),
            "egress_bytes_per_s": None if egress is None else max(part(egress), 1),
        }
    )


def _connections(limits: ConnectionLimitsConfig, part: Whole, share: Share) -> ConnectionLimitsConfig:
    rate, most = limits.max_connection_creation_rate, limits.max_connections
    return limits.model_copy(
        update={
            "max_connection_creation_rate": None if rate is None else share(rate),
            "max_connections": None if most is None else part(most),
        }
    )
