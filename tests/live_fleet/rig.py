"""All real parts of a run: ZooKeeper, Kafka, instances on machines of their own, HAProxy before them."""

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Self

from kafka import KafkaProducer
from kafka.admin import KafkaAdminClient, NewTopic

from demo.kafka_cluster import KafkaCluster
from tests.integration.proxy_process import ProxyProcess
from tests.integration.quota_client import QuotaClient
from tests.integration.topics import wait_until_known
from tests.integration.zookeeper_process import ZooKeeperEnsemble
from tests.live_fleet.balancer import Balancer, Front
from tests.live_fleet.load import VALUE_BYTES
from tests.live_fleet.network import ENSEMBLE_HOST, NODES_HOST, Machine, Network

INSTANCES = 3
FLEET, SINGLE, BROKER = "fleet", "single", "broker"
SIDES = (FLEET, SINGLE, BROKER)
"""The fleet; one instance without a fleet; a broker with a quota in the cluster, and no proxy."""

LEADER = 1
"""The node that has all the load, as a quota is one node's."""
STORED = "stored"
"""The topic that is read, again and again."""

SESSION_TIMEOUT_MS = 6000
_LISTENER = "BALANCED"
_FIRST_PORT = {FLEET: 21_000, SINGLE: 22_000}
_HEAP = "320m"
_STORED_VALUES = 2000
LIMIT = 1_000_000
"""Bytes/s of an entity, in either direction."""


class Instance(ProxyProcess):
    """A proxy on a machine of its own; `fleet` is the section of its virtual cluster, None: none."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        front: str,
        cluster: Any,
        side: str,
        quotas: Sequence[Mapping[str, Any]],
        fetch: str,
    ) -> None:
        self.name = name
        self.host = machine.address
        self.fleet: Mapping[str, Any] | None = None
        self._machine = machine
        super().__init__(
            cluster,
            quotas,
            first_port=_FIRST_PORT[side],
            listener={"advertised_host": front},
            metrics={"bind": machine.address},
            usage={"instance": name},
            limits={"drain_s": 0},
            throttle={"fetch": fetch},
        )

    def config(self, quotas: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """As above, with the section of the fleet."""
        config = super().config(quotas)
        if self.fleet is not None:
            config["virtual_clusters"][0]["fleet"] = dict(self.fleet)
            config["virtual_clusters"][0]["quotas"]["instances"] = INSTANCES
        return config

    def command(self) -> list[str]:
        """What is run, there."""
        return self._machine.command(super().command())

    def configure(self, fleet: Mapping[str, Any] | None, quotas: Sequence[Mapping[str, Any]]) -> None:
        """Put it into a fleet, or take it out of it, before it starts."""
        self.fleet = fleet
        self.write_config(quotas)

    def crash(self) -> None:
        """SIGKILL; it can be started again."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def lift_quotas(self) -> None:
        """By its file; in force a moment later."""
        self.write_config(())

    def cut_off(self) -> None:
        """From ZooKeeper."""
        self._machine.cut_off()

    def join(self) -> None:
        """See `cut_off`."""
        self._machine.join()


class Rig:
    """Everything but clients; use it as a context manager. `fetch` is `throttle.fetch` of all instances."""

    def __init__(self, limit: int = LIMIT, fetch: str = "empty") -> None:
        self.limit = limit
        self.fetch = fetch
        self._quotas = ({"default_client_id": True, "producer_byte_rate": limit, "consumer_byte_rate": limit},)
        self._stack = ExitStack()
        self._epoch = 0

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kafka-throttle-fleet-")))
            network = stack.enter_context(Network())
            self.addresses = {side: network.add_address(11 + number) for number, side in enumerate(SIDES)}
            self.ensemble = stack.enter_context(ZooKeeperEnsemble(host=ENSEMBLE_HOST))
            self.cluster = stack.enter_context(self._cluster())
            self.instances = [
                self._instance(stack, f"i{number}", network.machine(), FLEET) for number in range(1, 1 + INSTANCES)
            ]
            self.single = self._instance(stack, "s1", network.machine(), SINGLE)
            self.balancer = stack.enter_context(Balancer(self._fronts(), self.folder))
            self.single.start()
            self._store()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def bootstrap(self, side: str) -> str:
        """Where the clients of a side begin."""
        ports = {FLEET: _FIRST_PORT[FLEET], SINGLE: _FIRST_PORT[SINGLE], BROKER: self._balanced(LEADER)}
        return f"{self.addresses[side]}:{ports[side]}"

    @property
    def members_path(self) -> str:
        """Where the members of the fleet that runs have their znodes."""
        return f"/fleet-{self._epoch}/members"

    # ------------------------------------------------------------- instances

    def run_instances(self, count: int, *, fleet: bool, quotas: Sequence[Mapping[str, Any]] = ()) -> None:
        """Have the first so many run, in a new fleet or each by itself, and no others."""
        for instance in self.instances:
            if instance.running:
                instance.stop()
        self._epoch += 1
        section = {
            "path": f"/fleet-{self._epoch}",
            "zookeeper": {"servers": self.ensemble.addresses},
            "session_timeout_ms": SESSION_TIMEOUT_MS,
        }
        for instance in self.instances[:count]:
            instance.configure(section if fleet else None, quotas or self._quotas)
            instance.start()

    def _instance(self, stack: ExitStack, name: str, machine: Machine, side: str) -> Instance:
        instance = Instance(name, machine, self.addresses[side], self.cluster, side, self._quotas, self.fetch)
        stack.callback(instance.kill)
        return instance

    # ----------------------------------------------------------------- nodes

    def set_broker_quota(self, client_id: str) -> None:
        """In the cluster, the limit for both directions."""
        keys = ("producer_byte_rate", "consumer_byte_rate")
        with QuotaClient(self.cluster.address(LEADER)) as client:
            [altered] = client.alter([((("client-id", client_id),), [(key, self.limit, False) for key in keys])])
            assert altered.error_code == 0, altered

    def make_topics(self, names: Sequence[str], partitions: int = 1) -> None:
        """Topics on one node."""
        places = {partition: [LEADER] for partition in range(partitions)}
        with closing(KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap_servers)) as admin:
            admin.create_topics([NewTopic(name, replica_assignments=places) for name in names])
        for name in names:
            wait_until_known(self.cluster, name, partitions)

    def delete_topics(self, names: Sequence[str]) -> None:
        """What `make_topics` has made."""
        with closing(KafkaAdminClient(bootstrap_servers=self.cluster.bootstrap_servers)) as admin:
            admin.delete_topics(list(names))

    def written_bytes(self, topic: str, partitions: int = 1) -> int:
        """How long the logs of a topic's partitions are: what has arrived, as the node has it on its disk."""
        folders = [self.folder_of(topic, partition) for partition in range(partitions)]
        return sum(path.stat().st_size for folder in folders for path in folder.glob("*.log"))

    def folder_of(self, topic: str, partition: int) -> Path:
        """Where the node has a partition on its disk."""
        return self.cluster.data_folder(LEADER) / f"{topic}-{partition}"

    def _cluster(self) -> KafkaCluster:
        def extra(node_id: int) -> dict[str, str]:
            host, port = cluster.address(node_id)
            balanced = f"{self.addresses[BROKER]}:{self._balanced(node_id)}"
            return {"advertised.listeners": f"PLAINTEXT://{host}:{port},{_LISTENER}://{balanced}"}

        cluster = KafkaCluster(
            "4.3.1", nodes=3, host=NODES_HOST, listeners={_LISTENER: "PLAINTEXT"}, extra=extra, heap=_HEAP
        )
        self.cluster = cluster
        return cluster

    def _balanced(self, node_id: int) -> int:
        return self.cluster.address(node_id, _LISTENER)[1]

    def _fronts(self) -> list[Front]:
        return [
            Front(
                FLEET,
                self.addresses[FLEET],
                sorted(self.instances[0].ports),
                {one.name: one.host for one in self.instances},
            ),
            Front(SINGLE, self.addresses[SINGLE], sorted(self.single.ports), {self.single.name: self.single.host}),
            Front(
                BROKER,
                self.addresses[BROKER],
                [self._balanced(id_) for id_ in self.cluster.node_ids],
                {"node": NODES_HOST},
            ),
        ]

    def _store(self) -> None:
        """Values to be read, by an idempotent producer: so who gives out producer ids is there, too."""
        self.make_topics([STORED])
        settings = {"batch_size": 64_000, "enable_idempotence": True}
        with closing(KafkaProducer(bootstrap_servers=self.cluster.bootstrap_servers, **settings)) as producer:
            for number in range(_STORED_VALUES):
                producer.send(STORED, number.to_bytes(8) * (VALUE_BYTES // 8), partition=0)
            producer.flush(60)
