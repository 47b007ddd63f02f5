"""The two sides: brokers that enforce quotas themselves, and the proxy in front of one that has none.

Quotas count per broker, and one of the user ANONYMOUS comes before those of client-ids. So each pair of user cells
(a producer, a consumer) has a node of its own among the brokers, and a virtual cluster of its own at the proxy; the
cells of client-ids share one of each.
"""

import socket
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Any, Self

from confluent_kafka.admin import AdminClient, NewTopic
from kafka.protocol.admin import AlterClientQuotasRequest, AlterClientQuotasResponse

from demo.kafka_cluster import KafkaCluster
from demo.proxy_process import free_port_run
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.parity import clients
from tests.parity.cells import USERS, Cell

KAFKA_VERSION = "3.9.2"
"""The last that serves clients as old as those of the cells with old API versions."""

_FILLED_BYTES = 32_000_000
_TOPIC = {"segment.bytes": "16000000", "retention.bytes": "64000000", "file.delete.delay.ms": "1000"}
_PROPERTIES = {"log.retention.check.interval.ms": "5000"}
_ALTER_VERSION = 0
_PARTS = {"client_id": "client-id", "user": "user"}

Entry = Mapping[str, Any]
"""A quota entry as the proxy's configuration has it."""


def entries(cells: Sequence[Cell], rate: int, user: bool) -> list[Entry]:
    """The quotas for the cells that have one of users, or for the others."""
    found: list[dict[str, Any]] = []
    for cell in cells:
        if (cell.quota == "user") is not user:
            continue
        if cell.quota == "client-id":
            entity: dict[str, Any] = {"client_id": cell.client_id}
        else:
            entity = {"user": "ANONYMOUS"} if user else {"default_client_id": True}
        same = [entry for entry in found if entity.items() <= entry.items()]
        if not same:
            found.append(entity)
        (same or [entity])[0][cell.quota_key] = rate
    return list(found)


def alter_client_quotas(address: tuple[str, int], quotas: Sequence[Entry]) -> None:
    """Set quotas at a cluster by AlterClientQuotas; RuntimeError with Kafka's words if one is refused."""
    request = AlterClientQuotasRequest(entries=[_alteration(entry) for entry in quotas], version=_ALTER_VERSION)
    request.with_header(correlation_id=1, client_id="parity")
    with socket.create_connection(address, timeout=30) as sock, sock.makefile("rb") as stream:
        sock.sendall(request.encode(version=_ALTER_VERSION, header=True, framed=True))
        response = stream.read(int.from_bytes(stream.read(4), "big"))
    for entry in AlterClientQuotasResponse.decode(response, version=_ALTER_VERSION, header=True).entries:
        if entry.error_code:
            raise RuntimeError(f"quotas refused with error {entry.error_code}: {entry.error_message}")


def _alteration(entry: Entry) -> Any:
    of_entry = AlterClientQuotasRequest.EntryData
    if entry.get("default_client_id"):
        part, name = "client-id", None
    else:
        [(part, name)] = [(part, entry[key]) for key, part in _PARTS.items() if key in entry]
    limits = {key: value for key, value in entry.items() if key.endswith("_byte_rate")}
    return of_entry(
        entity=[of_entry.EntityData(entity_type=part, entity_name=name)],
        ops=[of_entry.OpData(key=key, value=float(value), remove=False) for key, value in limits.items()],
    )


def make_topics(cluster: KafkaCluster, filled: bool) -> None:
    """The topics of the cells, a partition on each node; one that consumers need has something to read."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    copies = [[node_id] for node_id in cluster.node_ids]
    topics = [
        NewTopic(name, len(copies), replica_assignment=copies, config=_TOPIC)
        for name in (clients.WRITTEN, clients.READ)
    ]
    for made in admin.create_topics(topics).values():
        made.result(30)
    for partition in range(len(copies) if filled else 0):
        clients.fill(cluster.bootstrap_servers, partition, _FILLED_BYTES)


class ParityProxy(ProxyProcess):
    """A proxy with a virtual cluster for the cells of client-ids, and one for each user, all before one node."""

    def __init__(self, cluster: KafkaCluster, cells: Sequence[Cell], rate: int) -> None:
        self._cells = cells
        self._rate = rate
        self.bootstrap_ports = free_port_run(2 * (1 + USERS))[::2]
        super().__init__(cluster, throttle={"fetch": "empty"})

    def config(self, quotas: Sequence[Entry] = ()) -> dict[str, Any]:
        """One virtual cluster for each bootstrap port: the first for client-ids, the others for users."""
        of_client_ids, of_users = (entries(self._cells, self._rate, user) for user in (False, True))
        whole = super().config()
        [only] = whole["virtual_clusters"]
        whole["virtual_clusters"] = [
            {
                **only,
                "name": f"users-{number}" if number else "client-ids",
                "listeners": [{"name": "plain", "bind": HOST, "port": port, "node_ids": ["1"]}],
                "quotas": {"entries": list(of_users if number else of_client_ids)},
            }
            for number, port in enumerate(self.bootstrap_ports)
        ]
        return whole


class Sides:
    """Both sides, set up for these cells; use it as a context manager."""

    def __init__(self, cells: Sequence[Cell], rate: int) -> None:
        self._cells = cells
        self._rate = rate
        self._users = any(cell.quota == "user" for cell in cells)
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._of_client_ids = self._brokers(stack, 1, user=False)
            self._of_users = self._brokers(stack, USERS, user=True) if self._users else None
            self._behind = self._cluster(stack, 1)
            self.proxy = stack.enter_context(ParityProxy(self._behind, self._cells, self._rate))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def broker(self, cell: Cell) -> tuple[str, int]:
        """Where the clients of a cell find the broker that enforces their quota: host:port and partition."""
        if cell.quota != "user":
            return self._of_client_ids.bootstrap_servers, 0
        assert self._of_users is not None
        host, port = self._of_users.address(cell.user_number + 1)
        return f"{host}:{port}", cell.user_number

    def proxied(self, cell: Cell) -> tuple[str, int]:
        """Where the clients of a cell find the proxy: host:port and partition."""
        number = 1 + cell.user_number if cell.quota == "user" else 0
        return f"{HOST}:{self.proxy.bootstrap_ports[number]}", 0

    @property
    def places(self) -> dict[str, str]:
        """Where requests go, as host:port, by a name for it."""
        of_users = {"a broker of users": "{}:{}".format(*self._of_users.address(1))} if self._of_users else {}
        proxy = f"{HOST}:{self.proxy.bootstrap_ports[0]}"
        return {
            "the broker of client-ids": self._of_client_ids.bootstrap_servers,
            **of_users,
            "the proxy": proxy,
            "the broker behind it": self._behind.bootstrap_servers,
        }

    def _brokers(self, stack: ExitStack, nodes: int, user: bool) -> KafkaCluster:
        cluster = self._cluster(stack, nodes)
        alter_client_quotas(cluster.address(1), entries(self._cells, self._rate, user))
        return cluster

    def _cluster(self, stack: ExitStack, nodes: int) -> KafkaCluster:
        """A cluster with topics; what fills them goes by no quota, as none is set yet."""
        cluster = stack.enter_context(
            KafkaCluster(KAFKA_VERSION, nodes=nodes, heap="400m", extra=lambda _: _PROPERTIES)
        )
        make_topics(cluster, filled=any(cell.role == "consumer" for cell in self._cells))
        return cluster
