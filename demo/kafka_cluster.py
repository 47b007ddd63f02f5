"""A real Apache Kafka cluster on free loopback ports, for the demo, the tests and the measurements."""

import base64
import contextlib
import json
import random
import signal
import socket
import subprocess
import tempfile
import threading
import time
import uuid
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from kafka.admin import KafkaAdminClient
from kafka.errors import KafkaError

from demo import keeper
from kafka_throttle.common.jars import Say, kafka_jars, need_program, release
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.primitives import Reader, int32

Mode = Literal["kraft", "zookeeper"]

_START_S = 180.0
_STOP_S = 60.0
_ATTEMPTS = 3
_PORTS = range(10_000, 32_000)
"""Below the ports that the system uses for outgoing connections: a port stays free while its node is down."""
_SESSION_MS = 6000
"""How long the cluster counts a node that was killed as alive; the node cannot start again before that."""

_METADATA_REQUEST = bytes.fromhex("0003 0001 00000001 ffff 00000000")
"""Header (api 3, version 1, correlation id 1, no client-id) and an empty list of topics."""

_TOOLS = {
    "kafka-configs": ("kafka.admin.ConfigCommand",),
    "kafka-topics": ("org.apache.kafka.tools.TopicCommand", "kafka.admin.TopicCommand"),
    "kafka-console-producer": ("org.apache.kafka.tools.ConsoleProducer", "kafka.tools.ConsoleProducer"),
    "kafka-console-consumer": ("org.apache.kafka.tools.consumer.ConsoleConsumer", "kafka.tools.ConsoleConsumer"),
    "kafka-producer-perf-test": ("org.apache.kafka.tools.ProducerPerformance",),
    "kafka-consumer-perf-test": ("org.apache.kafka.tools.ConsumerPerformance", "kafka.tools.ConsumerPerformance"),
    "kafka-verifiable-producer": ("org.apache.kafka.tools.VerifiableProducer",),
    "kafka-verifiable-consumer": ("org.apache.kafka.tools.VerifiableConsumer",),
    "kafka-consumer-groups": (
        "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "kafka.admin.ConsumerGroupCommand",
    ),
    "kafka-get-offsets": ("org.apache.kafka.tools.GetOffsetShell",),
    "kafka-broker-api-versions": (
        "org.apache.kafka.tools.BrokerApiVersionsCommand",
        "kafka.admin.BrokerApiVersionsCommand",
    ),
    "kafka-acls": ("org.apache.kafka.tools.AclCommand", "kafka.admin.AclCommand"),
    "kafka-delete-records": ("org.apache.kafka.tools.DeleteRecordsCommand",),
    "kafka-leader-election": ("org.apache.kafka.tools.LeaderElectionCommand",),
    "kafka-reassign-partitions": ("org.apache.kafka.tools.reassign.ReassignPartitionsCommand",),
    "kafka-transactions": ("org.apache.kafka.tools.TransactionsCommand",),
    "kafka-log-dirs": ("org.apache.kafka.tools.LogDirsCommand",),
    "kafka-features": ("org.apache.kafka.tools.FeatureCommand",),
    "kafka-metadata-quorum": ("org.apache.kafka.tools.MetadataQuorumCommand",),
    "kafka-storage": ("kafka.tools.StorageTool",),
}
"""The classes of command-line tools by the name of their script; the first class that the jars have is used."""

ZOOKEEPER_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

_LOG4J = """\
log4j.rootLogger={level}, stdout
log4j.appender.stdout=org.apache.log4j.ConsoleAppender
log4j.appender.stdout.target={target}
log4j.appender.stdout.layout=org.apache.log4j.PatternLayout
log4j.appender.stdout.layout.ConversionPattern=%d{{HH:mm:ss,SSS}} %p %m (%c)%n
log4j.logger.kafka.server.KafkaConfig=WARN
"""
_LOG4J2 = """\
rootLogger.level={level}
rootLogger.appenderRef.stdout.ref=stdout
appender.stdout.type=Console
appender.stdout.name=stdout
appender.stdout.target={target}
appender.stdout.layout.type=PatternLayout
appender.stdout.layout.pattern=%d{{HH:mm:ss,SSS}} %p %m (%c)%n
logger.config.name=org.apache.kafka.common.config.AbstractConfig
logger.config.level=warn
"""


def modes_of(version: str) -> tuple[Mode, ...]:
    """The modes in which a Kafka version can run: KRaft is ready for production from 3.3 on, ZooKeeper was removed in
    4.0.
    """
    kraft: tuple[Mode, ...] = ("kraft",) if release(version) >= (3, 3) else ()
    zookeeper: tuple[Mode, ...] = ("zookeeper",) if release(version) < (4, 0) else ()
    return kraft + zookeeper


class ClusterFailed(RuntimeError):
    """The cluster does not serve; the message has the errors and the last lines of a node's log."""


class KafkaCluster:
    """1 or 3 nodes of one Kafka version, numbered from 1; use it as a context manager.

    `listeners` names further listeners with their security protocols ({"CLIENTS": "SASL_PLAINTEXT"}), each on a
    separate port. `extra` gives further broker properties for each node id (TLS, SASL, quotas). `jvm_options` are for
    every node's JVM, or a function of the node id (JMX); in measurements leave out "-XX:TieredStopAtLevel=1", which
    starts faster and runs slower. `classes` is a folder of classes that nodes may use. All processes and files are
    removed, even when this process is killed: see keeper.py. Its methods may be called from several threads.
    """

    def __init__(
        self,
        version: str = "4.3.1",
        mode: Mode = "kraft",
        nodes: int = 3,
        *,
        host: str = "127.0.0.1",
        listeners: Mapping[str, str] | None = None,
        extra: Callable[[int], Mapping[str, str]] = lambda node_id: {},
        jvm_options: Sequence[str] | Callable[[int], Sequence[str]] = ("-XX:TieredStopAtLevel=1",),
        heap: str = "512m",
        classes: Path | None = None,
        say: Say = lambda line: None,
    ) -> None:
        if mode not in modes_of(version):
            raise ValueError(f"Kafka {version} has no mode {mode}")
        self.version = version
        self.mode = mode
        self.node_ids = tuple(range(1, nodes + 1))
        self.host = host
        self.ports: dict[int, int] = {}
        self._listener_protocols = {"PLAINTEXT": "PLAINTEXT", **(listeners or {})}
        self._listener_ports: dict[str, dict[int, int]] = {}
        self._extra = extra
        self._jvm_options = jvm_options if callable(jvm_options) else lambda node_id: jvm_options
        self._heap = heap
        self._classes = classes
        self._say = say
        need_program("java", "openjdk-17-jdk-headless")
        self._jars = kafka_jars(version, say)
        self._zookeeper_port = 0
        self._cluster_id = _uuid()
        self._folder = Path()
        self._keeper: subprocess.Popen[str] | None = None
        self._order_lock = threading.Lock()
        self._runs = 0
        self._frozen: set[int] = set()
        self._log_begins: dict[str, int] = {}

    # ------------------------------------------------------------- addresses

    @property
    def bootstrap_servers(self) -> str:
        """All nodes as host:port, separated by commas."""
        return self.bootstrap()

    def bootstrap(self, listener: str = "PLAINTEXT") -> str:
        """All nodes' addresses on a listener as host:port, separated by commas."""
        return ",".join(f"{self.host}:{port}" for port in self._listener_ports[listener].values())

    def address(self, node_id: int, listener: str = "PLAINTEXT") -> tuple[str, int]:
        """Host and port of a node's listener."""
        return self.host, self._listener_ports[listener][node_id]

    @property
    def zookeeper(self) -> str:
        """ZooKeeper as host:port, in ZooKeeper mode."""
        return f"{self.host}:{self._zookeeper_port}"

    def data_folder(self, node_id: int) -> Path:
        """The folder of a node's partitions, each in a folder TOPIC-PARTITION."""
        return self._file(f"data-{node_id}")

    def __str__(self) -> str:
        return f"Kafka {self.version} {self.mode} with {len(self.node_ids)} nodes"

    # ------------------------------------------------------------ life cycle

    def __enter__(self) -> Self:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                self._start()
            except ClusterFailed:
                port_taken = self._met_a_taken_port()
                self.close()
                if attempt == _ATTEMPTS or not port_taken:
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
        if isinstance(error, Exception) and self._keeper is not None:
            for name, tail in self.log_tails(15).items():
                error.add_note(f"{self}, the end of {name}'s log:\n{tail}")
        self.close()

    def close(self) -> None:
        """End every process and delete every file."""
        if self._keeper is not None:
            assert self._keeper.stdin is not None
            assert self._keeper.stdout is not None
            self._keeper.stdin.close()
            self._keeper.wait()
            self._keeper.stdout.close()
            self._keeper = None

    def _start(self) -> None:
        # The keeper makes the folder, so that at every moment there is a process that would delete it.
        self._folder = Path(tempfile.gettempdir()) / f"kafka-throttle-cluster-{uuid.uuid4().hex[:12]}"
        self._log_begins.clear()
        self._keeper = keeper.start(self._folder)
        self._order(folder=True)
        self._zookeeper_port, *ports = free_ports(
            1 + len(self.node_ids) * (1 + len(self._listener_protocols)), self.host
        )
        controllers, *others = (
            dict(zip(self.node_ids, ports[first:], strict=False)) for first in range(0, len(ports), len(self.node_ids))
        )
        self._listener_ports = dict(zip(self._listener_protocols, others, strict=True))
        self.ports = self._listener_ports["PLAINTEXT"]
        self._write_logging()
        for node_id in self.node_ids:
            properties = self._properties(node_id, controllers)
            lines = [f"{key}={value}" for key, value in {**properties, **self._extra(node_id)}.items()]
            self._file(f"{node_id}.properties").write_text("\n".join(lines) + "\n")
        if self.mode == "zookeeper":
            self._start_zookeeper()
        else:
            self._format_storage()
        for node_id in self.node_ids:
            self._launch(node_id)
        for node_id in self.node_ids:
            self.wait_until_serving(node_id)
        self._await(lambda: _has_coordinator(self.bootstrap_servers), _name(1))

    def _met_a_taken_port(self) -> bool:
        logs = (path.read_text(errors="replace") for path in self._folder.glob("*.log"))
        return any("Address already in use" in log for log in logs)

    def _properties(self, node_id: int, controllers: Mapping[int, int]) -> dict[str, str]:
        copies = str(min(3, len(self.node_ids)))
        listeners = ",".join(f"{name}://{self.host}:{ports[node_id]}" for name, ports in self._listener_ports.items())
        protocols = ",".join(f"{name}:{protocol}" for name, protocol in self._listener_protocols.items())
        common = {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": protocols,
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self.data_folder(node_id)),
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
                "zookeeper.connect": self.zookeeper,
                "zookeeper.session.timeout.ms": str(_SESSION_MS),
            }
        return {
            **common,
            "node.id": str(node_id),
            "process.roles": "broker,controller",
            "listeners": f"{listeners},CONTROLLER://{self.host}:{controllers[node_id]}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": f"{protocols},CONTROLLER:PLAINTEXT",
            "broker.session.timeout.ms": str(_SESSION_MS),
            "controller.quorum.voters": ",".join(f"{id_}@{self.host}:{port}" for id_, port in controllers.items()),
        }

    def _start_zookeeper(self) -> None:
        config = self._file("zookeeper.properties")
        config.write_text(zookeeper_properties(self._file("data-zookeeper"), self.host, self._zookeeper_port))
        self._launch_logged("zookeeper", self.java_command(ZOOKEEPER_CLASS, str(config), heap="256m", log="server"))
        self._await(lambda: accepts(self.host, self._zookeeper_port), "zookeeper")

    def _format_storage(self) -> None:
        """Format one node's storage with Kafka's tool, and give the other nodes copies with their own ids."""
        first = self.node_ids[0]
        self.tool(
            "kafka-storage",
            "format",
            "--cluster-id",
            self._cluster_id,
            "--config",
            str(self._file(f"{first}.properties")),
        )
        formatted = {path.name: path.read_bytes() for path in self.data_folder(first).iterdir() if path.is_file()}
        for node_id in self.node_ids[1:]:
            folder = self.data_folder(node_id)
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
            options=self._jvm_options(node_id),
            log="server",
        )
        self._launch_logged(_name(node_id), argv)

    def _launch_logged(self, name: str, argv: Sequence[str]) -> None:
        log = self._file(f"{name}.log")
        self._log_begins[name] = log.stat().st_size if log.exists() else 0
        self._order(start=name, argv=argv, log=str(log))

    # ---------------------------------------------------------------- nodes

    def kill(self, node_id: int) -> None:
        """SIGKILL: the node is gone at once."""
        self._signal(node_id, signal.SIGKILL)
        self._frozen.discard(node_id)
        self._ended_within(_name(node_id), _STOP_S)

    def stop(self, node_id: int, timeout_s: float = _STOP_S) -> None:
        """SIGTERM: the node hands over its partitions and ends. After `timeout_s` it is killed.

        That happens to a node whose controllers have lost their majority: it would wait for minutes.
        """
        self._signal(node_id, signal.SIGTERM)
        self.thaw(node_id)  # a frozen node would not act on the signal
        if not self._ended_within(_name(node_id), timeout_s):
            self._say(f"{self}: {_name(node_id)} did not stop in {timeout_s:.0f} s and is killed")
            self.kill(node_id)

    def freeze(self, node_id: int) -> None:
        """SIGSTOP: the node keeps its connections and does not respond."""
        self._frozen.add(node_id)
        self._signal(node_id, signal.SIGSTOP)

    def thaw(self, node_id: int) -> None:
        """SIGCONT after `freeze`."""
        self._signal(node_id, signal.SIGCONT)
        self._frozen.discard(node_id)

    def restart(self, node_id: int) -> None:
        """Stop the node if it runs, start it on its port again, and wait until it serves."""
        self.stop(node_id)
        self._launch(node_id)
        self.wait_until_serving(node_id)

    def wait_until_serving(self, node_id: int) -> None:
        """Return when the node responds to Metadata, and all nodes that run and are not frozen name one another.

        Raises ClusterFailed if the node has ended, or after three minutes.
        """
        self._await(
            lambda: self._all_know_all(node_id), _name(node_id), lambda: self._launch_after_own_session(node_id)
        )

    def _all_know_all(self, first: int) -> bool:
        awake = {id_ for id_ in self.node_ids if id_ not in self._frozen and self.is_running(id_)}
        return all(awake <= _nodes_named_by(*self.address(id_)) for id_ in (first, *sorted(awake - {first})))

    def _launch_after_own_session(self, node_id: int) -> bool:
        """Start a node again that ended because ZooKeeper still had the session of its killed predecessor; False for
        other ends.
        """
        if self.mode != "zookeeper" or "NodeExists" not in self._log_of_this_life(_name(node_id)):
            return False
        time.sleep(1)
        self._launch(node_id)
        return True

    def log_tail(self, node_id: int, lines: int = 40) -> str:
        """The last lines of a node's log."""
        return self._tail(_name(node_id), lines)

    def is_running(self, node_id: int) -> bool:
        """False if the node's process has ended."""
        return self._order(poll=_name(node_id))["status"] is None

    def log_tails(self, lines: int = 40) -> dict[str, str]:
        """The last lines of every process's log, by its name."""
        return {path.stem: self._tail(path.stem, lines) for path in sorted(self._folder.glob("*.log"))}

    def _tail(self, name: str, lines: int) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._file(f"{name}.log").read_text(errors="replace").splitlines()[-lines:])
        return ""

    def _log_of_this_life(self, name: str) -> str:
        with self._file(f"{name}.log").open("rb") as log:
            log.seek(self._log_begins[name])
            return log.read().decode(errors="replace")

    def _reason(self, name: str) -> str:
        """Errors and last lines of a process's log: a node that gives up logs much after the reason."""
        lines = self._log_of_this_life(name).splitlines()
        errors = [line for line in lines[:-40] if " ERROR " in line or " FATAL " in line or "Exception" in line]
        return "\n".join(errors[-20:] + lines[-40:])

    def _await(self, ready: Callable[[], bool], name: str, again: Callable[[], bool] | None = None) -> None:
        """Wait until `ready`. A process that has ended is a failure unless `again` has started another."""
        deadline = time.monotonic() + _START_S
        while not ready():
            if self._order(poll=name)["status"] is not None and not (again and again()):
                raise ClusterFailed(f"{self}: {name} has ended\n{self._reason(name)}")
            if time.monotonic() > deadline:
                raise ClusterFailed(f"{self}: {name} does not serve after {_START_S:.0f} s\n{self._reason(name)}")
            time.sleep(0.1)

    def _ended_within(self, name: str, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self._order(poll=name)["status"] is None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def _signal(self, node_id: int, number: signal.Signals) -> None:
        self._order(signal=_name(node_id), number=int(number))

    def _order(self, **order: Any) -> dict[str, Any]:
        if self._keeper is None:
            raise ClusterFailed(f"{self} is not running")
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        with self._order_lock:
            self._keeper.stdin.write(json.dumps(order) + "\n")
            self._keeper.stdin.flush()
            response: dict[str, Any] = json.loads(self._keeper.stdout.readline())
        if "error" in response:
            raise ClusterFailed(f"{self}: {response['error']}")
        return response

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
        return java_argv(
            self._jars, main_class, *args, heap=heap, options=options, logging=logging, classes=self._classes
        )

    def tool_command(self, tool: str, *args: str) -> list[str]:
        """The command line of a Kafka tool, named like its script without .sh."""
        return self.java_command(self._tool_class(tool), *args)

    def tool(self, tool: str, *args: str, timeout_s: float = 240, stdin: str = "", wrapper: Sequence[str] = ()) -> str:
        """Run a Kafka tool; return what it printed on stdout. Raises RuntimeError with its output if it fails."""
        done = self.run([*wrapper, *self.tool_command(tool, *args)], timeout_s=timeout_s, stdin=stdin)
        if done.returncode:
            raise RuntimeError(
                f"{tool} {' '.join(args)}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
            )
        return done.stdout

    def run(self, argv: Sequence[str], *, timeout_s: float = 240, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command, which is killed with the cluster at the latest. Raises TimeoutExpired with its output
        so far.
        """
        with self._order_lock:
            self._runs += 1
            name = f"run-{self._runs}"
        given, printed, errors = (self._file(f"{name}.{kind}") for kind in ("in", "out", "err"))
        given.write_text(stdin)
        try:
            self._order(start=name, argv=list(argv), log=str(printed), errors=str(errors), input=str(given))
            in_time = self._ended_within(name, timeout_s)
            status = self._order(signal=name, number=int(signal.SIGKILL), wait=True)["status"]
            output, complaints = printed.read_text(errors="replace"), errors.read_text(errors="replace")
        finally:
            for path in (given, printed, errors):
                path.unlink(missing_ok=True)
        if not in_time:
            raise subprocess.TimeoutExpired(list(argv), timeout_s, output, complaints)
        return subprocess.CompletedProcess(list(argv), status, output, complaints)

    def _tool_class(self, tool: str) -> str:
        for name in _TOOLS[tool]:
            entry = name.replace(".", "/") + ".class"
            for jar in (*self._jars.glob("kafka-tools-[0-9]*.jar"), *self._jars.glob("kafka_2.1[23]-*.jar")):
                with zipfile.ZipFile(jar) as archive:
                    if entry in archive.namelist():
                        return name
        raise LookupError(f"{tool}: none of {_TOOLS[tool]} is in the jars of Kafka {self.version}")

    def _write_logging(self) -> None:
        for name, level, target in (("server", "INFO", "OUT"), ("tool", "WARN", "ERR")):
            self._file(f"{name}.log4j.properties").write_text(logging_properties(self.version, level, target))

    def _file(self, name: str) -> Path:
        return self._folder / name


def java_argv(
    jars: Path,
    main_class: str,
    *args: str,
    heap: str,
    options: Sequence[str],
    logging: Path,
    classes: Path | None = None,
) -> list[str]:
    """The command line that runs a class of the jars in a folder, or of the folder `classes`."""
    return [
        need_program("java", "openjdk-17-jdk-headless"),
        f"-Xmx{heap}",
        "-XX:+UseSerialGC",
        "-Xshare:auto",
        *options,
        f"-Dlog4j.configuration=file:{logging}",
        f"-Dlog4j2.configurationFile={logging}",
        "-cp",
        f"{jars}/*" if classes is None else f"{classes}:{jars}/*",
        main_class,
        *args,
    ]


def logging_properties(version: str, level: str, target: str) -> str:
    """Properties that make a class of these jars log to stdout ("OUT") or stderr ("ERR")."""
    is_old = release(version) < (4, 0)
    stream = f"System.{target.lower()}" if is_old else f"SYSTEM_{target}"
    return (_LOG4J if is_old else _LOG4J2).format(level=level, target=stream)


def zookeeper_properties(data: Path, host: str, port: int) -> str:
    """The configuration of a single ZooKeeper."""
    return (
        f"dataDir={data}\nclientPort={port}\nclientPortAddress={host}\n"
        "tickTime=2000\nmaxClientCnxns=0\nadmin.enableServer=false\n"
    )


def _name(node_id: int) -> str:
    return f"node-{node_id}"


def _uuid() -> str:
    """A random id as Kafka writes it."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports on which nothing listens now, in no order. Two callers may get the same ports."""
    found: list[int] = []
    for port in random.SystemRandom().sample(_PORTS, len(_PORTS)):
        with socket.socket() as sock, contextlib.suppress(OSError):
            sock.bind((host, port))
            found.append(port)
        if len(found) == count:
            return found
    raise OSError(f"no {count} free ports on {host}")


def accepts(host: str, port: int) -> bool:
    """Whether a process listens there."""
    try:
        socket.create_connection((host, port), timeout=1).close()
    except OSError:
        return False
    return True


def _nodes_named_by(host: str, port: int) -> set[int]:
    """The ids of the nodes that this very node names in its Metadata; none if it does not respond.

    Kafka's clients cannot be used for that: they may ask another node, and DescribeCluster also names nodes that are
    fenced.
    """
    try:
        with socket.create_connection((host, port), timeout=2) as sock, sock.makefile("rb") as response:
            sock.sendall(int32(len(_METADATA_REQUEST)) + _METADATA_REQUEST)
            reader = Reader(response.read(Reader(response.read(4)).int32()))
            reader.int32()  # correlation id
            return {_node_in_metadata(reader) for _ in range(reader.int32())}
    except (OSError, ProtocolError):
        return set()


def _node_in_metadata(reader: Reader) -> int:
    node_id = reader.int32()
    reader.string()  # host
    reader.int32()  # port
    reader.string()  # rack
    return node_id


def _has_coordinator(servers: str) -> bool:
    """True if a group finds its coordinator; the first request makes the cluster create the topic of offsets."""
    with contextlib.suppress(KafkaError, OSError):
        admin = KafkaAdminClient(bootstrap_servers=servers, bootstrap_timeout_ms=2000, request_timeout_ms=2000)
        with contextlib.closing(admin):
            admin.list_group_offsets({"is-there-a-coordinator": None})
            return True
    return False
