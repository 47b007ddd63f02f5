"""Who has used how much of the processor, and whose child he is."""

import os
import subprocess
import sys

from tests.bench.processes import all_processes, cpu_seconds_of, cpu_seconds_with_the_ended, family_of

BUSY = "import time\nwhile time.process_time() < 0.3: pass"
WAITS = """
import subprocess, sys
children = [subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)]
print("ready", flush=True)
input()
"""


def test_a_family_is_a_process_and_all_below_it():
    waits = subprocess.Popen([sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with waits:
        assert waits.stdout.readline() == b"ready\n"
        family = family_of(waits.pid)
        assert len(family) == 3
        assert [process.parent for number, process in family.items() if number != waits.pid] == [waits.pid] * 2
        assert family.keys() < family_of(os.getpid()).keys() <= all_processes().keys()
        waits.communicate(b"\n")
    assert family_of(waits.pid) == {}


def test_who_was_waited_for_counts_with_the_ended_only():
    before, ours = cpu_seconds_with_the_ended(os.getpid()), cpu_seconds_of(os.getpid())
    subprocess.run([sys.executable, "-c", BUSY], check=True)
    spent = cpu_seconds_with_the_ended(os.getpid()) - before
    assert spent > 0.25
    assert cpu_seconds_of(os.getpid()) - ours < spent - 0.25
