"""The ensemble that tests of fleets run with, by itself."""

import pytest

from tests.integration.zookeeper_process import ZooKeeperEnsemble
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.kafka, pytest.mark.nightly]


def test_an_ensemble_goes_on_without_one_of_its_servers_which_comes_back():
    with ZooKeeperEnsemble() as ensemble, ensemble.client(timeout=TIMEOUT_S) as client:
        client.create("/before", b"1")
        for server in ensemble.servers:
            server.kill()
            client.retry(client.set, "/before", server.address.encode())
            assert client.retry(client.get, "/before")[0] == server.address.encode()
            server.start()
