"""Sockets from systemd, and notices to it."""

import os
import socket

import pytest

from kafka_throttle.common.service_manager import PassedFd, notify, passed_fds


@pytest.fixture
def environment(monkeypatch):
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", "NOTIFY_SOCKET"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def test_descriptors_have_the_names_of_their_unit_and_are_not_passed_on(environment):
    environment.setenv("LISTEN_PID", str(os.getpid()))
    environment.setenv("LISTEN_FDS", "2")
    environment.setenv("LISTEN_FDNAMES", "clients")
    environment.setattr(os, "set_inheritable", lambda fd, inheritable: None)
    assert passed_fds() == [PassedFd(3, "clients"), PassedFd(4, "unknown")]
    assert "LISTEN_FDS" not in os.environ
    assert passed_fds() == []


@pytest.mark.parametrize(("pid", "count"), [("1", "2"), ("", "2"), (None, ""), (None, "two")])
def test_what_is_for_another_process_or_is_no_number_is_left_alone(environment, pid, count):
    environment.setenv("LISTEN_PID", str(os.getpid()) if pid is None else pid)
    environment.setenv("LISTEN_FDS", count)
    assert passed_fds() == []


@pytest.mark.parametrize("name", ["{}/notify", "@{}-notify"])
def test_a_notice_is_one_datagram(environment, tmp_path, name):
    address = name.format(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(address.replace("@", "\0", 1))
        environment.setenv("NOTIFY_SOCKET", address)
        notify("READY=1", "MAINPID=12")
        assert manager.recv(100) == b"READY=1\nMAINPID=12"


def test_nobody_needs_to_listen(environment, tmp_path):
    notify("READY=1")
    environment.setenv("NOTIFY_SOCKET", f"{tmp_path}/nobody")
    notify("READY=1")
    environment.setenv("NOTIFY_SOCKET", "vsock:2:1234")
    notify("READY=1")
