"""Starts a command as systemd starts a service with sockets: they are open before it, and stay open over its restarts.

python -m tests.integration.socket_activator '[["127.0.0.1", 9092], ...]' COMMAND...

SIGUSR1 stops the command with SIGTERM and starts it again, SIGTERM stops it for good. It ends when the command does.
"""

import json
import os
import signal
import socket
import sys

from kafka_throttle.common.child_process import die_with_parent

_FIRST_FD = 3
_SIGNALS = {signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD}


def _opened(addresses: list[tuple[str, int]]) -> list[socket.socket]:
    """Listening sockets. Their descriptors are those from 3 on, as this process has no others."""
    sockets = []
    for fd, (host, port) in enumerate(addresses, _FIRST_FD):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=4096)
        assert sock.fileno() == fd
        sock.set_inheritable(True)
        sockets.append(sock)
    return sockets


def _start(count: int, command: list[str]) -> int:
    pid = os.fork()
    if not pid:
        die_with_parent()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        names = ":".join(["kafka"] * count)
        passed = {"LISTEN_PID": str(os.getpid()), "LISTEN_FDS": str(count), "LISTEN_FDNAMES": names}
        os.execvpe(command[0], command, {**os.environ, **passed})
    print(json.dumps({"event": "activated", "pid": pid}), flush=True)
    return pid


def _stop(pid: int) -> int:
    os.kill(pid, signal.SIGTERM)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def main() -> int:
    """Run the command until SIGTERM; its exit status."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    sockets, command = _opened([tuple(address) for address in json.loads(sys.argv[1])]), sys.argv[2:]
    pid = _start(len(sockets), command)
    while True:
        match signal.sigwait(_SIGNALS):
            case signal.SIGUSR1:
                _stop(pid)
                pid = _start(len(sockets), command)
            case signal.SIGTERM:
                return _stop(pid)
            case _:
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
