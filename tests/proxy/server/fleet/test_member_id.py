"""What the id of a member tells another process."""

import os
import subprocess
import sys

from kafka_throttle.proxy.server.fleet.member_id import ended_before, member_id

_PRINT = (
    "from kafka_throttle.proxy.server.fleet.member_id import member_id; print(member_id('a#b'), flush=True); input()"
)


def test_a_process_of_the_same_name_has_ended_when_it_is_killed():
    mine = member_id("a#b")
    with subprocess.Popen(
        [sys.executable, "-c", _PRINT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        theirs = other.stdout.readline().strip()
        assert theirs != mine
        assert ended_before(mine, [mine, theirs]) == []
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
        assert ended_before(mine, [mine, theirs]) == [theirs]  # not even its parent has taken note
    assert ended_before(mine, [mine, theirs]) == [theirs]


def test_the_process_id_may_have_been_given_to_another_process():
    mine = member_id("a")
    name, _, rest = mine.partition("#")
    pid, started, machine = rest.split("-")
    assert ended_before(mine, [f"{name}#{pid}-{int(started) + 1}-{machine}"]) != []


def test_of_other_names_and_machines_nothing_is_known():
    mine = member_id("a")
    machine = mine[-8:]
    foreign = "00000000" if machine != "00000000" else "11111111"
    others = [f"b#1-1-{machine}", f"a#1-1-{foreign}", "a#5f0c11d2", "a", "", f"a#x-1-{machine}"]
    assert ended_before(mine, others) == []
    assert ended_before("a#5f0c11d2", [f"a#1-1-{machine}"]) == []
