"""Proxies that are restarted again and again, and who notices."""

import json
import os
import signal
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import psutil

from kafka_throttle.protocol.api_key import API_VERSIONS
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.relay.frames import request
from tests.support.timeouts import TIMEOUT_S

_EVERY_S = 0.005


class RelayedProxy(ProxyProcess):
    """A proxy that is restarted by SIGUSR2: each process starts the next one, which takes over."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._pids: list[int] = []

    def start(self) -> None:
        """As any proxy."""
        self._pids = []
        super().start()

    @property
    def pid(self) -> int:
        """The process that serves, or did last."""
        return self._pids[-1] if self._pids else super().pid

    @property
    def pids(self) -> list[int]:
        """All processes, in the order in which they served."""
        return [super().pid, *self._pids]

    @property
    def running(self) -> bool:
        """Whether a process serves."""
        return is_running(self.pid) if self._pids else super().running

    def log(self) -> list[dict[str, Any]]:
        """The log of all processes; a process that does not start says so without JSON."""
        return [json.loads(line) for line in list(self._lines) if line.startswith("{")]

    def take_over(self) -> dict[str, Any]:
        """Have the next process take over, and return the old one's line about that."""
        count = len(self.events("handover_finished"))
        os.kill(self.pid, signal.SIGUSR2)
        finished = self.wait_for(lambda: self.events("handover_finished")[count:], TIMEOUT_S, "a handover")
        self._pids.append(finished[0]["successor_pid"])
        return dict(finished[0])

    def terminate(self) -> int:
        """SIGTERM to the process that serves; the exit status of the first one, once all have ended."""
        if self.running:
            os.kill(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + TIMEOUT_S
        while any(map(is_running, self.pids)):
            assert time.monotonic() < deadline, self.tail()
            time.sleep(0.02)
        return super().wait_for_exit()

    def kill(self) -> None:
        """End all processes for good."""
        for pid in self._pids:
            if is_running(pid):
                os.kill(pid, signal.SIGKILL)
        super().kill()


class ActivatedProxy(ProxyProcess):
    """A proxy whose sockets are open before and after it, as with a socket unit of systemd."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        self.addresses: Sequence[tuple[str, int]] = ()
        """Where the sockets are; at all ports of the proxy without it."""
        super().__init__(*args, **settings)

    def command(self) -> list[str]:
        """The proxy, started by the activator."""
        ports = sorted({*self.ports, self.metrics_port, self.admin_port})
        addresses = json.dumps(self.addresses or [(HOST, port) for port in ports])
        return [sys.executable, "-m", "tests.integration.socket_activator", addresses, *super().command()]

    def restart(self) -> None:
        """Stop the proxy, start it again, and wait until it accepts connections."""
        count = len(self.events("listening"))
        os.kill(self.pid, signal.SIGUSR1)
        self.wait_for(lambda: len(self.events("listening")) > count, TIMEOUT_S, "a restart")


def is_running(pid: int) -> bool:
    """Whether a process is there, and has not ended."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Prober:
    """Connects to each of these ports every few ms; use it as a context manager.

    With `asks` it also has a request answered by a node now and then.
    """

    def __init__(self, ports: Sequence[int], *, asks: bool = False) -> None:
        self.connects = 0
        self.responses = 0
        self.failures: Counter[str] = Counter()
        self._ports = ports
        self._done = threading.Event()
        works = (self._connect, self._ask) if asks else (self._connect,)
        self._threads = [threading.Thread(target=work, daemon=True) for work in works]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _connect(self) -> None:
        while not self._done.is_set():
            for port in self._ports:
                try:
                    socket.create_connection((HOST, port), TIMEOUT_S).close()
                    self.connects += 1
                except OSError as failure:
                    self.failures[f"connecting: {failure}"] += 1
                self._done.wait(_EVERY_S)

    def _ask(self) -> None:
        asked = request(API_VERSIONS, 0, client_id=b"prober")
        while not self._done.is_set():
            try:
                with socket.create_connection((HOST, self._ports[0]), TIMEOUT_S) as sock:
                    sock.sendall(asked)
                    if sock.recv(4):
                        self.responses += 1
                    else:
                        self.failures["closed instead of a response"] += 1
            except OSError as failure:
                self.failures[f"asking: {failure}"] += 1
            self._done.wait(4 * _EVERY_S)
