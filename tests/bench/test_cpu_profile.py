"""What is read from perf, strace and py-spy."""

import pytest

from tests.bench.cpu_profile import place_of, read_perf, read_py_spy, read_strace, watching
from tests.support.places import ROOT

PERF = """\
\tffffffff81a0 tcp_sendmsg_locked ([kernel.kallsyms])
\tffffffff81a1 __x64_sys_sendto ([kernel.kallsyms])
\t    7f00aa01 __libc_send (/usr/lib/x86_64-linux-gnu/libc.so.6)

\t    7f00aa02 _PyEval_EvalFrameDefault (/usr/lib/libpython3.11.so.1.0)

\tffffffff81b0 asm_sysvec_apic_timer_interrupt ([kernel.kallsyms])
\t    7f00aa03 [unknown] (/usr/lib/libpython3.11.so.1.0)

"""


def test_samples_of_perf_belong_to_a_system_call_or_a_library():
    places, symbols = read_perf(PERF)
    assert places == {"kernel: sendto": 1, "CPython": 1, "kernel: interrupts, scheduling": 1}
    assert symbols["tcp_sendmsg_locked (kernel)"] == 1
    assert place_of([("x", "/lib/uvloop/loop.cpython-311-x86_64-linux-gnu.so")]) == "uvloop"
    assert place_of([("x", "/usr/sbin/haproxy")]) == "haproxy"


def test_calls_are_read_from_strace():
    printed = """\
syscall              calls
---------------- ---------
recvfrom              1200
sendto                  20
---------------- ---------
total                 1220
"""
    assert read_strace(printed) == {"recvfrom": 1200, "sendto": 20}


def test_own_time_of_functions_and_lines_is_read_from_py_spy():
    way = f"main (a.py:1);write ({ROOT}/proxy/net/stream.py"
    printed = f"{way}:7) 3\n{way}:9) 2\n"
    functions, lines = read_py_spy(printed)
    assert functions == {"write (proxy/net/stream.py)": 5}
    assert lines == {"write (proxy/net/stream.py:7)": 3, "write (proxy/net/stream.py:9)": 2}


def tool_that(does):
    return ["sh", "-c", does]


def test_a_tool_watches_when_it_has_begun_however_long_its_start_takes(tmp_path):
    begun = tmp_path / "begun"
    with watching(tool_that(f"sleep 0.3; touch {begun}; sleep 1"), tmp_path / "said", begun.exists):
        assert begun.exists()


def test_a_tool_that_does_not_begin_is_named_with_what_it_said(tmp_path):
    tool = tool_that("echo 'ptrace is not permitted' >&2; exit 1")
    with (
        pytest.raises(RuntimeError, match="sh does not begin: ptrace is not permitted"),
        watching(tool, tmp_path / "said", lambda: False),
    ):
        raise AssertionError("never reached")
