"""A real ZooKeeper, or an ensemble of several, from the jars of Kafka 3.9.2; none of it outlives the test process."""

import contextlib
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from kazoo.client import KazooClient

from demo.kafka_cluster import ZOOKEEPER_CLASS, free_ports, java_argv, logging_properties, zookeeper_properties
from demo.keeper import await_standstill, die_with_parent
from kafka_throttle.common.jars import kafka_jars

HOST = "127.0.0.1"

_VERSION = "3.9.2"
_START_S = 90.0


class ZooKeeper:
    """Starts with the block, on ports that stay its own. `further` are properties; SECURE_PORT in them is a port.

    It can be killed and started again, with the data that it had or with those of another name. `own_id` is its number
    in an ensemble, whose servers `further` has to list.
    """

    def __init__(
        self,
        further: Mapping[str, str] | None = None,
        jvm_options: Sequence[str] = (),
        *,
        host: str = HOST,
        own_id: int | None = None,
    ) -> None:
        self.port, self.secure_port = free_ports(2, host)
        self._host = host
        self._own_id = own_id
        self._further = further or {}
        self._jvm_options = jvm_options
        self._jars = kafka_jars(_VERSION)
        self._folder = tempfile.TemporaryDirectory(prefix="kafka-throttle-zookeeper-")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it serves, as host:port."""
        return f"{self._host}:{self.port}"

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            error.add_note(f"the end of ZooKeeper's log:\n{self.log()[-3000:]}")
        self.kill()
        self._folder.cleanup()

    def start(self, data: str = "first") -> None:
        """Start on the data of this name, which are empty at first, and wait until it serves."""
        self.launch(data)
        self.wait_until_serving()

    def launch(self, data: str = "first") -> None:
        """Start, and do not wait: in an ensemble none serves before most of them run."""
        folder = Path(self._folder.name)
        if self._own_id is not None:
            (folder / f"data-{data}").mkdir(exist_ok=True)
            (folder / f"data-{data}" / "myid").write_text(str(self._own_id))
        (folder / "log4j.properties").write_text(logging_properties(_VERSION, "INFO", "OUT"))
        further = "".join(f"{key}={value}\n" for key, value in self._further.items())
        config = folder / "zookeeper.properties"
        config.write_text(
            zookeeper_properties(folder / f"data-{data}", self._host, self.port)
            + "4lw.commands.whitelist=srvr\n"
            + further.replace("SECURE_PORT", str(self.secure_port))
        )
        options = ("-XX:TieredStopAtLevel=1", *self._jvm_options)
        argv = java_argv(
            self._jars, ZOOKEEPER_CLASS, str(config), heap="256m", options=options, logging=folder / "log4j.properties"
        )
        with (folder / "log").open("ab") as log:
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, preexec_fn=die_with_parent)

    def wait_until_serving(self) -> None:
        """Until clients are served."""
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        while not self._serves():
            assert self._process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def kill(self) -> None:
        """SIGKILL: it is gone at once."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @contextlib.contextmanager
    def frozen(self):
        """In the block it keeps its connections and does not respond."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)
        await_standstill(self._process.pid)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def client(self, **options):
        """A client that is not the one under test, in a block."""
        return client_of(self.address, **options)

    def log(self) -> str:
        """What it has printed in all its lives."""
        path = Path(self._folder.name) / "log"
        return path.read_text(errors="replace") if path.exists() else ""

    def _serves(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self._host, self.port), timeout=1) as sock:
            sock.sendall(b"srvr")
            return b"Mode: " in sock.makefile("rb").read()
        return False


class ZooKeeperEnsemble:
    """Servers that elect a leader; they start with the block. Each of `servers` can be killed, frozen and started."""

    def __init__(self, size: int = 3, host: str = HOST) -> None:
        ports = free_ports(2 * size, host)
        pairs = zip(ports[:size], ports[size:], strict=True)
        listed = {f"server.{own_id}": f"{host}:{peers}:{votes}" for own_id, (peers, votes) in enumerate(pairs, start=1)}
        further = {**listed, "initLimit": "10", "syncLimit": "5"}
        self.servers = [ZooKeeper(further, host=host, own_id=own_id) for own_id in range(1, size + 1)]

    @property
    def addresses(self) -> list[str]:
        """Where each server serves, as host:port."""
        return [server.address for server in self.servers]

    def __enter__(self) -> Self:
        try:
            for server in self.servers:
                server.launch()
            for server in self.servers:
                server.wait_until_serving()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def client(self, **options):
        """A client of the whole ensemble that is not the one under test, in a block."""
        return client_of(",".join(self.addresses), **options)

    def _end(self) -> None:
        for server in self.servers:
            server.__exit__(None, None, None)


@contextlib.contextmanager
def client_of(address, **options):
    """A client that is not the one under test, in a block."""
    client = KazooClient(address, **options)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()
