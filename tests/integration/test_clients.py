"""Client libraries through the proxy, each in a separate process; its connections are watched."""

import json
import sys

import pytest

from tests.integration.observed_connects import assert_only, observe
from tests.integration.workloads.__main__ import LIBRARIES


@pytest.mark.rule("addresses")
@pytest.mark.every_kind
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_does_everything_through_the_proxy_and_never_around_it(proxy, library, record_property):
    command = [sys.executable, "-m", "tests.integration.workloads", library]
    observed = observe([*command, "--bootstrap", proxy.bootstrap, "--topic", library])
    done = json.loads(observed.output.splitlines()[-1])
    record_property("seconds", done["seconds"])
    record_property("connects", dict(observed.connects))
    assert done["counts"] == {
        "administration": 4,
        "every_codec_and_every_acks": 360,
        "a_group_whose_member_leaves": 250,
        "an_idempotent_producer": 600,
        "transactions": 90,
    }
    assert_only(observed.connects, proxy.ports)
    assert set(observed.connects) >= set(proxy.node_ports.values()), "some node was never talked to"


def test_a_connection_around_the_proxy_would_be_seen(proxy, kafka):
    """The watch itself is watched."""
    port = kafka.ports[2]
    observed = observe([sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {port}))"])
    assert observed.connects == {port: 1}
    with pytest.raises(AssertionError, match=str(port)):
        assert_only(observed.connects, proxy.ports)
