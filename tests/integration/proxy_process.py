"""The proxy as a separate process, in front of a cluster; nothing of it outlives the test process."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from demo.proxy_process import free_port_run
from kafka_throttle.common.child_process import die_with_parent
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S

HOST = "127.0.0.1"

_START_S = 90.0
_SECTIONS = ("limits", "drain", "restart", "log", "usage", "history", "workers")
_SERIES = re.compile(r"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class ProxyFailed(AssertionError):
    """The proxy did not do as it should; the message ends with its last log lines."""


class ProxyProcess:
    """A proxy in front of `cluster` with a listener for nodes 1 to 3; use it as a context manager.

    `quotas` are entries as the YAML has them; `settings` are whole sections ("limits", "drain", "log", "usage",
    "restart", "history", "metrics", "workers") or settings of the only virtual cluster ("throttle", "upstream",
    "fleet", "sasl"; "source" for those of its quotas) or of its listener ("listener"); "more_listeners" are whole. With
    `ready=False` it does not wait for the cluster. `environment` has further variables for the process, `constants`
    other values for constants of the configuration, as {"LimitsConfig.max_handshakes": 2}. It is reached at `host`, on
    six ports from `first_port` on, or free ones.
    """

    host = HOST

    def __init__(
        self,
        bootstrap_servers: str | Any,
        quotas: Sequence[Mapping[str, Any]] = (),
        *,
        ready: bool = True,
        environment: Mapping[str, str] | None = None,
        constants: Mapping[str, Any] | None = None,
        first_port: int | None = None,
        **settings: Any,
    ) -> None:
        servers = getattr(bootstrap_servers, "bootstrap_servers", bootstrap_servers)
        self.port, *_, self.metrics_port, self.admin_port = (
            free_port_run(6) if first_port is None else range(first_port, first_port + 6)
        )
        self.node_ports = {node_id: self.port + node_id for node_id in (1, 2, 3)}
        self._ready = ready
        self._environment = environment or {}
        self._constants = constants or {}
        self._servers = servers.split(",")
        self._settings = settings
        self._lines: list[str] = []
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="kafka-throttle-proxy-")
        self.config_path = Path(self._folder.name) / "proxy.yaml"
        self.write_config(quotas)

    # ------------------------------------------------------------- addresses

    @property
    def bootstrap(self) -> str:
        """Where clients begin, as host:port."""
        return f"{self.host}:{self.port}"

    @property
    def ports(self) -> set[int]:
        """All ports that clients may connect to."""
        return {self.port, *self.node_ports.values()}

    # ------------------------------------------------------------ life cycle

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
        try:
            if kind is None and self._process is not None:
                self.stop()
        finally:
            self.kill()

    def start(self) -> None:
        """Start the process and wait until it is ready, or at least alive."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start the process."""
        self._process = subprocess.Popen(
            self.command(),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, **self._environment},
            preexec_fn=die_with_parent,
        )
        self._reader = threading.Thread(target=self._read, args=(self._process,), daemon=True)
        self._reader.start()

    def wait_until_ready(self) -> None:
        """Until it is ready, or at least alive, after `launch`."""
        self.wait_for(
            lambda: self.status("readyz") == 200 if self._ready else self.status("livez") == 200, _START_S, "a start"
        )

    def command(self) -> list[str]:
        """What is run."""
        others = ["tests.integration.with_constants", json.dumps(self._constants)] if self._constants else []
        return [sys.executable, "-m", *others, "proxy", "run", "-c", str(self.config_path)]

    def stop(self) -> None:
        """SIGTERM. It has to end with status 0, and to have logged it."""
        status = self.terminate()
        if status != 0:
            raise ProxyFailed(f"exit status {status} after SIGTERM\n{self.tail()}")
        if not self.events("stopped"):
            raise ProxyFailed(f"no word of having stopped\n{self.tail()}")

    def terminate(self) -> int:
        """SIGTERM, and the exit status that comes of it."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait_for_exit()

    def wait_for_exit(self, timeout_s: float = TIMEOUT_S) -> int:
        """The exit status, once it is there."""
        assert self._process is not None
        assert self._reader is not None
        try:
            status = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProxyFailed(f"still alive {timeout_s:.0f} s later\n{self.tail()}") from None
        self._reader.join(TIMEOUT_S)
        return status

    def kill(self) -> None:
        """End it for good and delete its files."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        self._folder.cleanup()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    @property
    def running(self) -> bool:
        """False when it has ended."""
        return self._process is not None and self._process.poll() is None

    # --------------------------------------------------------- configuration

    def config(self, quotas: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
        """The configuration with these quota entries."""
        listener = {"name": "plain", "bind": self.host, "port": self.port, "node_ids": ["1-3"]}
        listener |= self._settings.get("listener", {})
        listeners = [listener, *self._settings.get("more_listeners", ())]
        sections = {key: value for key, value in self._settings.items() if key in _SECTIONS}
        upstream = {"bootstrap_servers": self._servers, **self._settings.get("upstream", {})}
        return {
            "virtual_clusters": [
                {
                    "name": "main",
                    "upstream": upstream,
                    "listeners": listeners,
                    "quotas": {**({"entries": list(quotas)} if quotas else {}), **self._settings.get("source", {})},
                    "throttle": self._settings.get("throttle", {}),
                    **{name: self._settings[name] for name in ("fleet", "sasl") if name in self._settings},
                }
            ],
            "metrics": {"port": self.metrics_port, **self._settings.get("metrics", {})},
            "admin": {"port": self.admin_port},
            **sections,
        }

    def write_config(self, quotas: Sequence[Mapping[str, Any]]) -> None:
        """Replace the file at once, as an editor or a config map does."""
        self.write_text(json.dumps(self.config(quotas), indent=1))

    def write_text(self, text: str) -> None:
        """Replace the file by any text; JSON is YAML."""
        aside = self.config_path.with_suffix(".new")
        aside.write_text(text)
        aside.replace(self.config_path)

    # ----------------------------------------------------------- observation

    def status(self, page: str) -> int:
        """The HTTP status of a page, 0 while there is no response."""
        return self.get(page)[0]

    def get(self, page: str) -> tuple[int, str]:
        """HTTP status and body of a page, (0, "") while there is no response."""
        try:
            with urllib.request.urlopen(
                f"http://{self.host}:{self.metrics_port}/{page}", timeout=TIMEOUT_S
            ) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def series(self) -> Iterator[tuple[str, dict[str, str], float]]:
        """All series of /metrics: name, labels, value."""
        status, text = self.get("metrics")
        if status != 200:
            raise ProxyFailed(f"/metrics: status {status}\n{self.tail()}")
        for line in text.splitlines():
            if not line.startswith("#") and (match := _SERIES.match(line)):
                yield match["name"], dict(_LABEL.findall(match["labels"] or "")), float(match["value"])

    def admin(self, page: str) -> Any:
        """The response of the admin API."""
        with urllib.request.urlopen(
            f"http://{self.host}:{self.admin_port}/api/v1/{page}", timeout=TIMEOUT_S
        ) as response:
            return json.load(response)

    def metric(self, name: str, **labels: str) -> float:
        """The sum of the series of `name` (without kafka_throttle_) that have these labels."""
        return sum(
            value
            for found, of, value in self.series()
            if found == f"kafka_throttle_{name}" and all(of.get(key) == wanted for key, wanted in labels.items())
        )

    def closed(self) -> dict[str, int]:
        """How many connections have ended, by reason."""
        return {
            labels["reason"]: int(value)
            for name, labels, value in self.series()
            if name == "kafka_throttle_connections_closed_total"
        }

    def log(self) -> list[dict[str, Any]]:
        """The log so far; a line that is not JSON is a failure."""
        lines = [json.loads(line) for line in list(self._lines)]
        return [line for line in lines if isinstance(line, dict)]

    def events(self, event: str) -> list[dict[str, Any]]:
        """The log lines of one event."""
        return [line for line in self.log() if line["event"] == event]

    def closing_line(self, client: str, since: int = 0) -> dict[str, Any]:
        """The log line of the end of a client's connection; the client is given as host:port.

        Only closings from number `since` on count: towards another port of the proxy a client's port may come again.
        """
        found: list[dict[str, Any]] = self.wait_for(
            lambda: [line for line in self.events("connection_closed")[since:] if line["client"] == client],
            TIMEOUT_S,
            f"the end of {client}",
        )
        assert len(found) == 1, found
        return found[0]

    def tail(self, lines: int = 30) -> str:
        """The last lines of the log, as they are."""
        return "\n".join(self._lines[-lines:])

    def wait_for(self, condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
        """Wait until `condition` gives something true and return that; the proxy has to be alive meanwhile.

        It is waited for a minute at least, also where something comes much sooner as a rule.
        """
        deadline = time.monotonic() + max(timeout_s, TIMEOUT_S)
        while not (found := condition()):
            if not self.running:
                raise ProxyFailed(f"ended instead of {what}\n{self.tail()}")
            if time.monotonic() > deadline:
                raise ProxyFailed(f"waited {max(timeout_s, TIMEOUT_S):.0f} s for {what}\n{self.tail()}")
            time.sleep(0.02)
        return found

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._lines.append(line.rstrip("\n"))
