"""A real Apache Kafka cluster on free loopback ports, for the demo, the tests and the measurements."""

import base64
import contextlib
import json
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from proxy.demo.jars import Say, kafka_jars, need_program

Mode = Literal["kraft", "zookeeper"]

_START_S = 90.0
_ATTEMPTS = 3
_TOOLS = {
    "kafka-configs": ("kafka.admin.ConfigCommand",),
    "kafka-topics": ("org.apache.kafka.tools.TopicCommand",),
    "kafka-console-producer": ("org.apache.kafka.tools.ConsoleProducer", "kafka.tools.ConsoleProducer"),
    "kafka-console-consumer": ("org.apache.kafka.tools.consumer.ConsoleConsumer",),
    "kafka-producer-perf-test": ("org.apache.kafka.tools.ProducerPerformance",),
    "kafka-consumer-perf-test": ("org.apache.kafka.tools.ConsumerPerformance",),
    "kafka-verifiable-producer": ("org.apache.kafka.tools.VerifiableProducer",),
    "kafka-verifiable-consumer": ("org.apache.kafka.tools.VerifiableConsumer",),
    "kafka-consumer-groups": ("org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",),
    "kafka-get-offsets": ("org.apache.kafka.tools.GetOffsetShell",),
    "kafka-broker-api-versions": (
        "org.apache.kafka.tools.BrokerApiVersionsCommand",
        "kafka.admin.BrokerApiVersionsCommand",
    ),
    "kafka-storage": ("kafka.tools.StorageTool",),
}
"""Command-line tools by the name of their script; the class that the jars hold is taken."""

_LOG4J = """\
log4j.rootLogger={level}, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.target={target}
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d{{HH:mm:ss,SSS}} %p %m (%c)%n
"""
_LOG4J2 = """\
rootLogger.level={level}
rootLogger.appenderRef.stdout.ref=stdout
appender.stdout.type=Console
appender.stdout.name=stdout
appender.stdout.target={target}
appender.stdout.layout.type=PatternLayout
appender.stdout.layout.pattern=%d{{HH:mm:ss,SSS}} %p %m (%c)%n
"""


class ClusterFailed(RuntimeError):
    """The cluster does not serve; the message ends with the last lines of a node's log."""


class KafkaCluster:
    """1 or 3 nodes of one Kafka version, numbered from 1; use it as a context manager.

    `extra` gives further broker properties for each node id (listeners, TLS, SASL, quotas), `jvm_options` goes to
    every node's JVM (JMX). Nothing is left behind, even when this process is killed: see keeper.py.
    """

    def __init__(
        self,
        version: str = "4.3.1",
        mode: Mode = "kraft",
        nodes: int = 3,
        *,
        extra: Callable[[int], Mapping[str, str]] = lambda node_id: {},
        jvm_options: Sequence[str] = ("-XX:TieredStopAtLevel=1",),
        heap: str = "512m",
        say: Say = lambda line: None,
    ) -> None:
        if mode == "zookeeper" and not version.startswith("3."):
            raise ValueError(f"Kafka {version} has no ZooKeeper mode")
        self.version = version
        self.mode = mode
        self.node_ids = tuple(range(1, nodes + 1))
        self.host = "127.0.0.1"
        self.ports: dict[int, int] = {}
        self._extra = extra
        self._jvm_options = tuple(jvm_options)
        self._heap = heap
        self._say = say
        self._java = need_program("java", "openjdk-17-jdk-headless")
        self._jars = kafka_jars(version, say)
        self._cluster_id = _uuid()
        self._folder = Path()
        self._keeper: subprocess.Popen[str] | None = None

    # ------------------------------------------------------------- addresses

    @property
    def bootstrap_servers(self) -> str:
        """All nodes as host:port, separated by commas."""
        return ",".join(f"{self.host}:{port}" for port in self.ports.values())

    def __str__(self) -> str:
        return f"Kafka {self.version} {self.mode} with {len(self.node_ids)} nodes"

    # ------------------------------------------------------------ life cycle

    def __enter__(self) -> Self:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._start()
            except ClusterFailed as error:
                self.close()
                if attempt == _ATTEMPTS or "Address already in use" not in str(error):
                    raise
            except BaseException:
                self.close()
                raise
            else:
                return self
        raise AssertionError("not reached")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End every process and delete every file."""
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            self._keeper.stdin.close()
            self._keeper.wait()
            self._keeper = None

    def _start(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="kafka-throttle-cluster-"))
        self._keeper = subprocess.Popen(
            [sys.executable, "-m", "proxy.demo.keeper", str(self._folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            cwd=Path(__file__).parents[2],
        )
        ports = _free_ports(2 * len(self.node_ids) + 1)
        self.ports = dict(zip(self.node_ids, ports, strict=False))
        controllers = dict(zip(self.node_ids, ports[len(self.node_ids) :], strict=False))
        self._write_logging()
        for node_id in self.node_ids:
            properties = self._properties(node_id, controllers, ports[-1])
            lines = [f"{key}={value}" for key, value in {**properties, **self._extra(node_id)}.items()]
            self._file(f"{node_id}.properties").write_text("\n".join(lines) + "\n")
        if self.mode == "zookeeper":
            self._start_zookeeper(ports[-1])
        else:
            self._format_storage()
        for node_id in self.node_ids:
            self._launch(node_id)
        for node_id in self.node_ids:
            self.wait_until_serving(node_id)

    def _properties(self, node_id: int, controllers: Mapping[int, int], zookeeper_port: int) -> dict[str, str]:
        copies = str(min(3, len(self.node_ids)))
        listener = f"PLAINTEXT://{self.host}:{self.ports[node_id]}"
        common = {
            "listeners": listener,
            "advertised.listeners": listener,
            "log.dirs": str(self._file(f"data-{node_id}")),
            "num.partitions": "1",
            "default.replication.factor": copies,
            "min.insync.replicas": "1",
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "5",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "5",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.min.isr": "1",
            "group.initial.rebalance.delay.ms": "0",
            "controlled.shutdown.enable": "true",
        }
        if self.mode == "zookeeper":
            return {
                **common,
                "broker.id": str(node_id),
                "zookeeper.connect": f"{self.host}:{zookeeper_port}",
                "zookeeper.session.timeout.ms": "6000",
            }
        return {
            **common,
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "listeners": f"{listener},CONTROLLER://{self.host}:{controllers[node_id]}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.quorum.voters": ",".join(f"{id_}@{self.host}:{port}" for id_, port in controllers.items()),
        }

    def _start_zookeeper(self, port: int) -> None:
        config = self._file("zookeeper.properties")
        config.write_text(
            f"dataDir={self._file('data-zookeeper')}\nclientPort={port}\nclientPortAddress={self.host}\n"
            "tickTime=2000\nmaxClientCnxns=0\nadmin.enableServer=false\n"
        )
        argv = self.java_command(
            "org.apache.zookeeper.server.quorum.QuorumPeerMain", str(config), heap="256m", log="server"
        )
        self._order(start="zookeeper", argv=argv, log=str(self._file("zookeeper.log")))
        self._await(lambda: _accepts(self.host, port), "zookeeper")

    def _format_storage(self) -> None:
        """Format one node's storage with Kafka's tool, and give the others copies with ids of their own."""
        first = self.node_ids[0]
        self.tool(
            "kafka-storage",
            "format",
            "--cluster-id",
            self._cluster_id,
            "--config",
            str(self._file(f"{first}.properties")),
        )
        formatted = {path.name: path.read_bytes() for path in self._file(f"data-{first}").iterdir() if path.is_file()}
        for node_id in self.node_ids[1:]:
            folder = self._file(f"data-{node_id}")
            folder.mkdir()
            for name, content in formatted.items():
                (folder / name).write_bytes(content)
            meta = folder / "meta.properties"
            lines = [
                line for line in meta.read_text().splitlines() if not line.startswith(("node.id=", "directory.id="))
            ]
            meta.write_text("\n".join([*lines, f"node.id={node_id}", f"directory.id={_uuid()}"]) + "\n")

    def _launch(self, node_id: int) -> None:
        argv = self.java_command(
            "kafka.Kafka",
            str(self._file(f"{node_id}.properties")),
            heap=self._heap,
            options=self._jvm_options,
            log="server",
        )
        self._order(start=_name(node_id), argv=argv, log=str(self._file(f"{_name(node_id)}.log")))

    # ---------------------------------------------------------------- nodes

    def kill(self, node_id: int) -> None:
        """SIGKILL: the node is gone at once."""
        self._signal(node_id, signal.SIGKILL, wait=True)

    def stop(self, node_id: int) -> None:
        """SIGTERM: the node hands over its partitions and ends."""
        self._signal(node_id, signal.SIGTERM, wait=True)

    def freeze(self, node_id: int) -> None:
        """SIGSTOP: the node keeps its connections and answers nothing."""
        self._signal(node_id, signal.SIGSTOP)

    def thaw(self, node_id: int) -> None:
        """SIGCONT after `freeze`."""
        self._signal(node_id, signal.SIGCONT)

    def restart(self, node_id: int) -> None:
        """Stop the node if it runs, start it on its port again, and wait until it serves."""
        self.stop(node_id)
        self._launch(node_id)
        self.wait_until_serving(node_id)

    def wait_until_serving(self, node_id: int, nodes: int | None = None) -> None:
        """Return when the node answers and names `nodes` nodes (default: all). Raises ClusterFailed."""
        wanted = len(self.node_ids) if nodes is None else nodes
        self._await(
            lambda: _nodes_named_by(self.host, self.ports[node_id]) >= wanted,
            _name(node_id),
            lambda: self._launch_after_own_session(node_id),
        )

    def _launch_after_own_session(self, node_id: int) -> bool:
        """Start a node anew that ended because ZooKeeper still knew its killed predecessor; False for other ends."""
        if self.mode != "zookeeper" or "NodeExists" not in self.log_tail(node_id):
            return False
        time.sleep(1)
        self._launch(node_id)
        return True

    def log_tail(self, node_id: int, lines: int = 40) -> str:
        """The last lines of a node's log."""
        return self._tail(_name(node_id), lines)

    def log_tails(self, lines: int = 40) -> dict[str, str]:
        """The last lines of every process's log, by its name."""
        return {path.stem: self._tail(path.stem, lines) for path in sorted(self._folder.glob("*.log"))}

    def _tail(self, name: str, lines: int) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._file(f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _await(self, ready: Callable[[], bool], name: str, again: Callable[[], bool] | None = None) -> None:
        """Wait until `ready`. A process that has ended is a failure unless `again` has started another."""
        deadline = time.monotonic() + _START_S
        while not ready():
            if self._order(poll=name)["status"] is not None and not (again and again()):
                raise ClusterFailed(f"{self}: {name} has ended\n{self._tail(name, 40)}")
            if time.monotonic() > deadline:
                raise ClusterFailed(f"{self}: {name} does not serve after {_START_S:.0f} s\n{self._tail(name, 40)}")
            time.sleep(0.1)

    def _signal(self, node_id: int, number: signal.Signals, wait: bool = False) -> None:
        self._order(signal=_name(node_id), number=int(number), wait=wait)

    def _order(self, **order: Any) -> dict[str, Any]:
        assert self._keeper is not None
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(json.dumps(order) + "\n")
        self._keeper.stdin.flush()
        answer: dict[str, Any] = json.loads(self._keeper.stdout.readline())
        return answer

    # ---------------------------------------------------------------- tools

    def java_command(
        self,
        main_class: str,
        *args: str,
        heap: str = "256m",
        options: Sequence[str] = ("-XX:TieredStopAtLevel=1",),
        log: Literal["server", "tool"] = "tool",
    ) -> list[str]:
        """The command line that runs a class of these jars."""
        logging = self._file(f"{log}.log4j.properties")
        return [
            self._java,
            f"-Xmx{heap}",
            "-XX:+UseSerialGC",
            "-Xshare:auto",
            *options,
            f"-Dlog4j.configuration=file:{logging}",
            f"-Dlog4j2.configurationFile={logging}",
            "-cp",
            f"{self._jars}/*",
            main_class,
            *args,
        ]

    def tool_command(self, tool: str, *args: str) -> list[str]:
        """The command line of a Kafka tool, named as its script without .sh."""
        return self.java_command(self._tool_class(tool), *args)

    def tool(self, tool: str, *args: str, timeout_s: float = 60, stdin: str = "", wrapper: Sequence[str] = ()) -> str:
        """Run a Kafka tool; return what it printed on stdout. Raises RuntimeError with its output if it fails."""
        done = subprocess.run(
            [*wrapper, *self.tool_command(tool, *args)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(
                f"{tool} {' '.join(args)}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return done.stdout

    def _tool_class(self, tool: str) -> str:
        for name in _TOOLS[tool]:
            entry = name.replace(".", "/") + ".class"
            for jar in (*self._jars.glob("kafka-tools-[0-9]*.jar"), *self._jars.glob("kafka_2.13-*.jar")):
                with zipfile.ZipFile(jar) as archive:
                    if entry in archive.namelist():
                        return name
        raise LookupError(f"{tool}: none of {_TOOLS[tool]} is in the jars of Kafka {self.version}")

    def _write_logging(self) -> None:
        template = _LOG4J if self.version.startswith("3.") else _LOG4J2
        for name, level, target in (("server", "INFO", "OUT"), ("tool", "WARN", "ERR")):
            stream = f"System.{target.lower()}" if self.version.startswith("3.") else f"SYSTEM_{target}"
            self._file(f"{name}.log4j.properties").write_text(template.format(level=level, target=stream))

    def _file(self, name: str) -> Path:
        return self._folder / name


def _name(node_id: int) -> str:
    return f"node-{node_id}"


def _uuid() -> str:
    """A random id as Kafka writes it."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for sock in sockets:
            sock.bind(("127.0.0.1", 0))
        return [sock.getsockname()[1] for sock in sockets]


def _accepts(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _nodes_named_by(host: str, port: int) -> int:
    """How many nodes a node names; 0 while it does not answer."""
    if not _accepts(host, port):
        return 0
    try:
        admin = KafkaAdminClient(bootstrap_servers=f"{host}:{port}", bootstrap_timeout_ms=2000, request_timeout_ms=2000)
    except (KafkaError, OSError):
        return 0
    try:
        return len(admin.describe_cluster()["brokers"])
    except (KafkaError, OSError):
        return 0
    finally:
        admin.close()
