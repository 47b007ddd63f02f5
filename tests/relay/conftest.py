"""Every make of relay passes the same scripts."""

import pytest

from kafka_throttle.proxy.relay.relay import Relay

MAKES = {"python": Relay}


@pytest.fixture(scope="session", params=MAKES.values(), ids=MAKES.keys())
def make_relay(request):
    """Makes a relay from (quota manager, counters, limits)."""
    return request.param
