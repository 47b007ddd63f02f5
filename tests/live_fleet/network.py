"""A network of its own for one run: each machine is a network namespace with a link to two switches.

The run itself is in a namespace, too, so that its addresses are nobody else's and nothing of it outlives the run.
Kafka, HAProxy and the clients have addresses of the switch DATA, the ensemble of ZooKeeper one of FLEET. A machine
whose link to FLEET is taken out of the switch is cut off as by a broken cable far away: what it sends is lost, and no
error tells it.
"""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from kafka_throttle.common.child_process import die_with_parent
from tests.bench.processes import need_tool

DATA, FLEET = "10.77.0", "10.78.0"
NODES_HOST, ENSEMBLE_HOST = f"{DATA}.1", f"{FLEET}.1"

_ENTERED = "KAFKA_THROTTLE_IN_OWN_NETWORK"
_FIRST_MACHINE = 100
_START_S = 30.0


def enter_own_network() -> None:
    """Go on in a network namespace: the process starts itself again there, unless it has done so before."""
    if os.environ.get(_ENTERED):
        return
    mapped = [] if os.geteuid() == 0 else ["--map-root-user"]
    command = [need_tool("unshare", "util-linux"), "--net", *mapped, "--", sys.executable, *sys.orig_argv[1:]]
    os.environ[_ENTERED] = "1"
    os.execv(command[0], command)


class Machine:
    """A network namespace, as long as the process lives that holds it."""

    def __init__(self, number: int) -> None:
        self.address = f"{DATA}.{_FIRST_MACHINE + number}"
        self._links = {switch: f"{name}{number}" for switch, name in (("data", "d"), ("fleet", "f"))}
        self._holder = subprocess.Popen(
            [need_tool("unshare", "util-linux"), "--net", "sleep", "infinity"], preexec_fn=die_with_parent
        )
        self._await_namespace()
        for switch, network in (("data", DATA), ("fleet", FLEET)):
            link = self._links[switch]
            _ip("link", "add", link, "type", "veth", "peer", "name", switch, "netns", str(self._holder.pid))
            _ip("link", "set", link, "master", switch, "up")
            _run(self.command(["ip", "addr", "add", f"{network}.{_FIRST_MACHINE + number}/24", "dev", switch]))
            _run(self.command(["ip", "link", "set", switch, "up"]))
        _run(self.command(["ip", "link", "set", "lo", "up"]))

    def command(self, command: Sequence[str]) -> list[str]:
        """The command, to be run there."""
        return [need_tool("nsenter", "util-linux"), "-t", str(self._holder.pid), "-n", *command]

    def cut_off(self) -> None:
        """From ZooKeeper."""
        _ip("link", "set", self._links["fleet"], "nomaster")

    def join(self) -> None:
        """End what `cut_off` began."""
        _ip("link", "set", self._links["fleet"], "master", "fleet")

    def close(self) -> None:
        """Give it up."""
        self._holder.kill()
        self._holder.wait()

    def _await_namespace(self) -> None:
        own, deadline = Path("/proc/self/ns/net").readlink(), time.monotonic() + _START_S
        while Path(f"/proc/{self._holder.pid}/ns/net").readlink() == own:
            if time.monotonic() > deadline:
                raise TimeoutError("no network namespace")
            time.sleep(0.01)


class Network:
    """The two switches, and machines at them; use it as a context manager, after `enter_own_network`."""

    def __init__(self) -> None:
        self._machines: list[Machine] = []

    def __enter__(self) -> Self:
        if not os.environ.get(_ENTERED):
            raise RuntimeError("the network of this machine is left alone: call enter_own_network() first")
        _ip("link", "set", "lo", "up")
        for switch, network in (("data", DATA), ("fleet", FLEET)):
            _ip("link", "add", switch, "type", "bridge")
            _ip("link", "set", switch, "up")
            _ip("addr", "add", f"{network}.1/24", "dev", switch)
        return self

    def __exit__(self, *_: object) -> None:
        for machine in self._machines:
            machine.close()

    def add_address(self, number: int) -> str:
        """A further address of this side at the switch DATA."""
        address = f"{DATA}.{number}"
        _ip("addr", "add", f"{address}/24", "dev", "data")
        return address

    def machine(self) -> Machine:
        """One more machine."""
        self._machines.append(machine := Machine(len(self._machines)))
        return machine


def _ip(*arguments: str) -> None:
    _run([need_tool("ip", "iproute2"), *arguments])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


def processor_time_s(pid: int) -> float:
    """User and system time of a process."""
    with contextlib.suppress(FileNotFoundError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return 0.0
