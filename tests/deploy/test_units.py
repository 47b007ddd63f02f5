"""The units of systemd: what it says of them, and that their ports and paths are those of the other pages."""

import contextlib
import json
import re
import subprocess
import sys
import time
import urllib.request

import pytest

from demo.proxy_process import free_port_run
from kafka_throttle.common.child_process import die_with_parent
from kafka_throttle.common.jars import need_program
from kafka_throttle.proxy.cli.init import BOOTSTRAP_PORT, METRICS_PORT
from kafka_throttle.proxy.config.load import config_of, load_config
from tests.deploy.tools import DEPLOY, passes
from tests.integration.proxy_process import HOST
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S

SYSTEMD = DEPLOY / "systemd"
SERVICE, SOCKET = SYSTEMD / "kafka-throttle.service", SYSTEMD / "kafka-throttle.socket"
NIGHTLY, TIMER = SYSTEMD / "kafka-throttle-nightly.service", SYSTEMD / "kafka-throttle-nightly.timer"
_LISTEN = re.compile(r"^ListenStream=([\d.]+):(\d+)$", re.M)
_PROGRAM = re.compile(r"/opt/kafka-throttle/bin/[\w-]+")
_MOST_EXPOSED = 2.0
"""On systemd's scale from 0 to 10; a service without any of these settings has 9.6."""
NEEDED = {
    *("PrivateNetwork", "IPAddressDeny", "RestrictAddressFamilies_AF_INET_INET6", "RestrictAddressFamilies_AF_UNIX"),
    *("RootDirectoryOrRootImage", "PrivateUsers"),  # its packages and certificates; its owner of them
    "ProcSubset",  # metrics read the time of the start from /proc/stat
    "SystemCallFilter_resources",  # it raises its own limit of open files
    "DeviceAllow",  # what ProtectClock leaves: the clock may be read
    "NotifyAccess",  # a successor says that it has taken over
}
"""What the service keeps, and for what."""
NEEDED_BY_THE_PIPELINE = {*NEEDED - {"NotifyAccess"}, "MemoryDenyWriteExecute"}  # Java writes the code that it runs


def setting(name):
    [value] = re.findall(rf"^{name}=(.*)$", SERVICE.read_text(), re.M)
    return value


def test_the_socket_unit_has_the_ports_of_a_first_configuration():
    ports = [int(port) for _, port in _LISTEN.findall(SOCKET.read_text())]
    assert ports == [*range(BOOTSTRAP_PORT, BOOTSTRAP_PORT + 4), METRICS_PORT, METRICS_PORT + 1]


def test_the_service_ends_later_than_the_proxy():
    listener = {"name": "plain", "port": 19092, "advertised_host": "here", "node_ids": [1]}
    cluster = {"name": "main", "upstream": {"bootstrap_servers": ["a:9092"]}, "listeners": [listener]}
    config = config_of({"virtual_clusters": [cluster]})
    assert int(setting("TimeoutStopSec")) > config.drain.lame_duck_s + config.limits.drain_s + 30


def test_there_are_descriptors_for_as_many_connections_as_may_be():
    assert int(setting("LimitNOFILE")) > 2 * 10_000


@pytest.fixture
def units(tmp_path):
    """Copies of the units with a program that is there."""
    for unit in (SERVICE, SOCKET, NIGHTLY, TIMER):
        (tmp_path / unit.name).write_text(_PROGRAM.sub("/bin/true", unit.read_text()))
    return [tmp_path / unit.name for unit in (SERVICE, SOCKET, NIGHTLY, TIMER)]


@pytest.mark.nightly
def test_a_first_configuration_takes_the_sockets_of_the_unit(tmp_path):
    """As systemd passes them, at other ports of this machine, which are free. The first connection starts the proxy."""
    path, [first, *_] = tmp_path / "proxy.yaml", free_port_run(10)
    program = [sys.executable, "-m", "proxy"]
    init = ["init", "--bootstrap", f"{HOST}:9", "--offline", "--port", str(first), "--out", str(path)]
    init += ["--advertised-host", "kafka.example.com"]  # the name of this machine may be one of loopback
    subprocess.run([*program, *init], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    metrics_port = load_config(path).metrics.port
    others = {METRICS_PORT + i: metrics_port + i for i in range(2)} | {BOOTSTRAP_PORT + i: first + i for i in range(4)}
    listen = [f"--listen={address}:{others[int(port)]}" for address, port in _LISTEN.findall(SOCKET.read_text())]
    assert len(listen) == 6
    activate = need_program("systemd-socket-activate", "systemd")
    with (tmp_path / "log").open("w") as log:
        command = [activate, *listen, *program, "run", "-c", str(path)]
        service = subprocess.Popen(command, cwd=ROOT, stderr=log, preexec_fn=die_with_parent)
    try:
        assert _answers(f"http://{HOST}:{metrics_port}/livez"), (tmp_path / "log").read_text()
    finally:
        service.terminate()
        assert service.wait(TIMEOUT_S) == 0


def _answers(url):
    """Whether a page has a response in time, from a process that may not listen yet."""
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            return response.status == 200
        time.sleep(0.1)
    return False


@pytest.mark.nightly
def test_systemd_has_nothing_to_say_of_the_units(units):
    command = [need_program("systemd-analyze", "systemd"), "verify", "--man=no", *units]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.nightly
@pytest.mark.parametrize(("number", "needed"), [(0, NEEDED), (2, NEEDED_BY_THE_PIPELINE)])
def test_the_services_are_little_exposed(units, number, needed):
    analyze = need_program("systemd-analyze", "systemd")
    passes(analyze, "security", "--offline=true", f"--threshold={int(10 * _MOST_EXPOSED)}", units[number])
    tests = json.loads(passes(analyze, "security", "--offline=true", "--json=short", units[number]))
    assert {test["json_field"] for test in tests if test["set"] is False and test["exposure"]} == needed


@pytest.mark.nightly
def test_the_timer_is_due_each_night():
    [calendar] = re.findall(r"^OnCalendar=(.*)$", TIMER.read_text(), re.M)
    said = passes(need_program("systemd-analyze", "systemd"), "calendar", "--iterations=3", calendar)
    assert len(re.findall(r" 02:17:00 UTC$", said, re.M)) >= 3
