"""The log if it is not read or cannot be written: the process does not wait, and dropped lines are counted."""

import json
import os
import subprocess
import sys
import threading

import pytest

from kafka_throttle.proxy.observe.log_writer import LogWriter
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S

LINE = b"x" * 99 + b"\n"


def notice(lines):
    return f"dropped {lines}\n".encode()


class Reader:
    """Reads a pipe to its end, in a thread, once it is started."""

    def __init__(self):
        self.fd, self.write_fd = os.pipe()
        self.data = bytearray()
        self._thread = threading.Thread(target=self._read, daemon=True)

    def start(self):
        self._thread.start()

    def _read(self):
        while data := os.read(self.fd, 1 << 16):
            self.data += data

    def lines(self):
        """All lines, when the other end is closed."""
        os.close(self.write_fd)
        self._thread.join(TIMEOUT_S)
        return bytes(self.data).splitlines(keepends=True)


def test_whoever_logs_does_not_wait_for_a_reader_and_each_line_comes_or_is_counted():
    reader = Reader()
    writer = LogWriter(reader.write_fd, notice, most_waiting_bytes=100_000)
    writer.start()
    for _ in range(10_000):
        writer.put(LINE)
    assert not writer.flush(0.0), "the pipe is full, and nobody reads"
    dropped = writer.dropped
    assert dropped > 0
    reader.start()
    assert writer.flush(TIMEOUT_S)
    lines = reader.lines()
    notices = [int(line.split()[1]) for line in lines if line != LINE]
    assert sum(notices) == dropped
    assert lines.count(LINE) + dropped == 10_000


def test_nothing_is_reported_while_all_lines_are_written():
    reader = Reader()
    writer = LogWriter(reader.write_fd, notice)
    writer.start()
    reader.start()
    for _ in range(1_000):
        writer.put(LINE)
    assert writer.flush(TIMEOUT_S)
    assert (reader.lines(), writer.dropped) == ([LINE] * 1_000, 0)


def test_lines_that_wait_when_the_reader_has_ended_are_counted():
    reader = Reader()
    writer = LogWriter(reader.write_fd, notice)
    os.close(reader.fd)
    writer.start()
    writer.put(LINE * 3)
    assert writer.flush(TIMEOUT_S)
    assert writer.dropped == 3
    os.close(reader.write_fd)


def test_a_line_that_a_full_disk_has_cut_is_ended_before_the_next_one(monkeypatch):
    written, room = [], [150]

    def write(fd, data):
        if not room[0]:
            raise OSError(28, "No space left on device")
        some = bytes(data[: room[0]])
        room[0] -= len(some)
        written.append(some)
        return len(some)

    monkeypatch.setattr("os.write", write)
    writer = LogWriter(2, notice)
    writer.start()
    writer.put(LINE * 2)
    assert writer.flush(TIMEOUT_S)
    assert writer.dropped == 1
    room[0] = 1_000
    writer.put(b"next\n")
    assert writer.flush(TIMEOUT_S)
    assert b"".join(written) == LINE + LINE[:50] + b"\nnext\ndropped 1\n"


def test_a_descriptor_that_does_not_block_is_waited_for():
    reader = Reader()
    os.set_blocking(reader.write_fd, False)
    writer = LogWriter(reader.write_fd, notice)
    writer.start()
    for _ in range(3_000):
        writer.put(LINE)
    reader.start()
    assert writer.flush(TIMEOUT_S)
    assert (reader.lines(), writer.dropped) == ([LINE] * 3_000, 0)


# ------------------------------------------------------------------- a process

SAYS = """
import logging, sys, threading, warnings
import structlog
from kafka_throttle.proxy.observe import logs

logs.configure("info", "json")
logs.write_in_thread()
structlog.get_logger().info("first")
print("printed", file=sys.stderr)
warnings.warn("warned")
logging.getLogger("of_a_library").warning("logged")
failing = threading.Thread(target=lambda: 1 / 0)
failing.start()
failing.join()
for number in range(int(sys.argv[1])):
    structlog.get_logger().info("more", number=number)
structlog.get_logger().info("last", dropped=logs.dropped_lines())
raise SystemExit("ended")
"""


def saying(lines, **streams):
    command = [sys.executable, "-c", SAYS, str(lines)]
    return subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, **streams)


def test_all_that_a_process_says_on_standard_error_goes_through_the_thread_and_is_there_at_its_end():
    process = saying(0)
    _, err = process.communicate(timeout=TIMEOUT_S)
    text = err.decode()
    for said in (
        '"event": "first"',
        "printed\n",
        "warned",
        '"event": "logged"',
        "ZeroDivisionError",
        '"event": "last"',
    ):
        assert said in text
    assert text.endswith("ended\n")


def test_a_process_whose_log_nobody_reads_ends_all_the_same():
    process = saying(50_000)
    assert process.wait(TIMEOUT_S) == 1
    process.stderr.close()


@pytest.mark.parametrize("closed", ["2>&-", "1>&-", "0<&-", "0<&- 1>&- 2>&-"])
def test_closed_standard_streams_are_opened_so_that_nothing_else_gets_their_numbers(closed):
    program = (
        "from kafka_throttle.common.standard_streams import open_closed_streams; open_closed_streams()\n"
        "import socket, sys, os, subprocess\n"
        "sock = socket.socket(); print('x'); print('y', file=sys.stderr); print(sys.stdin.read(0))\n"
        "child = subprocess.run([sys.executable, '-c', 'import os; [os.fstat(fd) for fd in (0, 1, 2)]'])\n"
        "os._exit(10 if sock.fileno() > 2 and child.returncode == 0 else 1)"
    )
    command = ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-c", program]
    assert subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True).returncode == 10


def test_the_lines_of_one_process_are_whole():
    process = saying(2_000)
    _, err = process.communicate(timeout=TIMEOUT_S)
    events = [json.loads(line) for line in err.decode().splitlines() if line.startswith("{")]
    assert [event["number"] for event in events if event["event"] == "more"] == list(range(2_000))
