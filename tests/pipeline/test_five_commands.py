"""From the demo's own traffic to a quota that bites, by the commands that it prints and docs/reference tells."""

import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from demo.recorded import next_commands
from tests.pipeline.spark_cluster import SMALL_JAVA
from tests.support.places import ROOT

DEADLINE_S = 240.0
_IN_FORCE = re.compile(r"in force now: noisy-producer (?P<rate>[\d.]+) MB/s \(was 1\.00\)")
_SHOWN = re.compile(r"noisy-producer (?P<rate>[\d.]+) of (?P<quota>[\d.]+) MB/s")


class Demo:
    """The demo as a process; `lines` are what it has printed so far."""

    def __init__(self, folder, *arguments):
        self.lines = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "demo", *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": str(folder)},
            start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._process.stdout:
            self.lines.append(line)

    def until(self, found):
        """What `found` gives of the lines, as soon as it gives something."""
        deadline = time.monotonic() + DEADLINE_S
        while not (value := found(list(self.lines))):
            assert self._reader.is_alive(), self.tail()
            assert time.monotonic() < deadline, self.tail()
            time.sleep(0.1)
        return value

    def end(self):
        """Ctrl-C; the exit status."""
        self._process.send_signal(signal.SIGINT)
        status = self._process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return status

    def kill(self):
        self._process.kill()
        self._process.wait()

    def tail(self):
        return "".join(self.lines[-40:])


@pytest.fixture
def demo(tmp_path):
    process = Demo(tmp_path, "--seconds", "20", "--record", str(tmp_path / "demo"))
    yield process
    process.kill()


def usage(*arguments):
    command = [sys.executable, "-m", "proxy", "usage", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        env={**os.environ, "JDK_JAVA_OPTIONS": SMALL_JAVA},
    )  # fmt: skip
    print("$", *command[2:], f"\n{done.stdout}{done.stderr}")
    assert done.returncode == 0
    return done.stdout


def commands_in(text):
    return re.findall(r'^ *make usage ARGS="(.*)"$', text, re.MULTILINE)


def bitten(lines):
    """A line after the change in which the client has hardly more than its new quota."""
    for i, line in enumerate(lines):
        if found := _IN_FORCE.search(line):
            shown = [match for line in lines[i:] if (match := _SHOWN.search(line))]
            return any(float(match["rate"]) <= 1.2 * float(found["rate"]) for match in shown)
    return False


@pytest.mark.kafka
@pytest.mark.spark
@pytest.mark.nightly
def test_recorded_traffic_becomes_a_quota_that_bites(demo, tmp_path):
    printed = demo.until(lambda lines: len(found := commands_in("".join(lines))) == 4 and found)
    ingest, recommend, plan, apply = (shlex.split(command) for command in printed)
    usage(*ingest)
    usage(*recommend)
    assert re.search(r"client-id=noisy-producer +producer_byte_rate +1,000,000 ", usage(*plan))
    assert re.search(r"applied +client-id=noisy-producer +producer_byte_rate +1,000,000 ", usage(*apply))
    demo.until(bitten)
    assert usage(*apply).startswith("nothing to do")
    assert demo.end() in (0, 1), demo.tail()  # 1: on a busy machine something was not as it should be before
    print("".join(demo.lines))
    assert re.search(r"noisy-producer: quota 1\.00, now 0\.\d\d MB/s; over the last 11 s it had ", demo.tail())
    files = sorted(path.name for path in (tmp_path / "demo").glob("usage-*"))
    assert files
    assert not [name for name in files if not name.endswith((".tsv", ".tsv.gz"))]


def test_the_page_has_the_commands_that_the_demo_prints():
    page = (ROOT / "docs" / "reference" / "five-commands.md").read_text()
    assert 'make run ARGS="--record build/demo"' in page
    [bootstrap] = set(re.findall(r"--bootstrap-server (\S+?)[\s\"]", page))
    assert list(dict.fromkeys(commands_in(page))) == commands_in(
        "\n".join(next_commands(bootstrap, Path("build/demo")))
    )
