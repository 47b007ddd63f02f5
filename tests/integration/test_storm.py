"""A short storm of connections: counted, not timed. The long one is python -m tests.storm."""

import time

from tests.storm.storm import bad, blow
from tests.support.timeouts import TIMEOUT_S

RATE, SECONDS = 4, 6.0


def test_bad_addresses_get_their_rate_and_good_ones_do_not_feel_it(start_proxy):
    proxy = start_proxy([{"default_ip": True, "connection_creation_rate": RATE}])
    began = time.monotonic()
    seen = blow(("127.0.0.1", proxy.port), bad(4), SECONDS, proxy.pid, calm_s=1.0)
    most = RATE * (time.monotonic() - began + 15)
    for address, reported in seen.storm.items():
        assert reported["given_up"] == 0
        assert len(reported["attempts"]) > len(reported["admitted"]) >= 10 * RATE, address
        assert len(reported["admitted"]) <= most, address
        assert len(reported["admitted"]) + reported["closed"] == len(reported["attempts"])
    for reported in (*seen.calm.values(), *seen.good.values()):
        assert len(reported["admitted"]) == len(reported["attempts"]) > 0
    proxy.wait_for(lambda: proxy.metric("client_sockets") == 0, TIMEOUT_S, "the end of all connections")
    assert proxy.metric("held_connections") == 0
    closed = proxy.closed()
    assert closed["ip_rate_exceeded"] == sum(reported["closed"] for reported in seen.storm.values())
    assert closed.keys() <= {"ip_rate_exceeded", "client_lost", "client_closed", "client_sent_nothing"}
