"""A process that stands still is noticed by who measures, and stopped and let go by `tests.support.stalls`."""

import os
import random
import signal
import subprocess
import sys
import time

import psutil
import pytest

from tests.support.disturbance import MOST_CORES, Disturbance, undisturbed
from tests.support.places import ROOT
from tests.support.stalls import Stalls, go_on
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import wait_until

pytestmark = pytest.mark.exclusive


@pytest.fixture
def sleeper():
    with subprocess.Popen(["sleep", "600"]) as process:
        yield psutil.Process(process.pid)
        process.kill()


def test_a_child_that_is_stopped_is_a_disturbance(sleeper):
    with Disturbance() as disturbance:
        sleeper.send_signal(signal.SIGSTOP)
        wait_until(lambda: disturbance.seen)


def test_somebody_elses_work_is_a_disturbance():
    spins = [sys.executable, "-c", "while True: pass"]
    silent = f"stdout={subprocess.DEVNULL}, stderr={subprocess.DEVNULL}"
    starts = f"import subprocess; print(subprocess.Popen({spins!r}, {silent}).pid)"
    done = subprocess.run([sys.executable, "-c", starts], check=True, capture_output=True, text=True)
    orphan = psutil.Process(int(done.stdout))  # none of ours any more

    def others_are_busy():
        with Disturbance() as disturbance:
            time.sleep(1)
        return disturbance.others_cores > MOST_CORES and disturbance.seen

    try:
        wait_until(others_are_busy)
    finally:
        orphan.kill()


def test_what_is_disturbed_each_time_is_measured_three_times_and_said_to_be_so(sleeper):
    def measure():
        wait_until(lambda: sleeper.status() == psutil.STATUS_STOPPED)
        time.sleep(1)
        return len(measured)

    sleeper.send_signal(signal.SIGSTOP)
    measured = []
    assert undisturbed(lambda: measured.append(0) or measure()) == (3, False)


def test_a_process_is_stopped_for_a_while(sleeper, monkeypatch):
    monkeypatch.setattr("tests.support.stalls._awake", lambda: [sleeper])  # other tests may have left a JVM
    stalls = Stalls(longest_s=1.0, every_s=1.0, dice=random.Random(1))
    stalls.step(100.0)
    wait_until(lambda: sleeper.status() == psutil.STATUS_STOPPED)
    stalls.next_s = 1e9
    stalls.step(101.0)
    wait_until(lambda: sleeper.status() != psutil.STATUS_STOPPED)
    assert stalls.counts.total() == 1


def test_who_is_stopped_by_somebody_else_meanwhile_stays_stopped(sleeper):
    sleeper.send_signal(signal.SIGSTOP)
    wait_until(lambda: sleeper.status() == psutil.STATUS_STOPPED)
    os.kill(sleeper.pid, signal.SIGSTOP)
    go_on(sleeper)
    assert sleeper.status() == psutil.STATUS_STOPPED


def test_the_commands_status_is_handed_on():
    command = [sys.executable, "-m", "tests.support.stalls", "--longest", "0.1", "--every", "0.1", "--", "sh", "-c"]
    done = subprocess.run([*command, "sleep 1; exit 3"], cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 3
    assert "status 3" in done.stderr
