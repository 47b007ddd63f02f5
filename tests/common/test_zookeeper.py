"""Who a client of a ZooKeeper ensemble is there, without an ensemble."""

import pytest
from kazoo.protocol.states import KeeperState

from kafka_throttle.common.login_secrets import PasswordFile
from kafka_throttle.common.zookeeper import Ensemble, LastKazooError, Login, new_client


@pytest.fixture
def file(tmp_path):
    file = tmp_path / "password"
    file.write_text("one")
    return file


def logged_in(ensemble):
    """A client whose login has come to its end, as kazoo tells it."""
    client = new_client(ensemble, LastKazooError(), 0.1)
    client._session_callback(KeeperState.CONNECTED)
    return client


def test_each_client_of_an_account_is_somebody_else_once_the_password_is_another_than_its_own(file):
    """One that has begun anew already says nothing about the others."""
    login = Login("proxy", PasswordFile(str(file), "proxy at a:1"))
    first, second = (logged_in(Ensemble(["127.0.0.1:1"], digest=login)) for _ in range(2))
    assert (first.is_another, second.is_another) == (False, False)
    file.write_text("two")
    assert first.is_another
    first = logged_in(Ensemble(["127.0.0.1:1"], digest=login))
    assert (first.is_another, second.is_another) == (False, True)


def test_a_password_of_sasl_and_one_that_stays_make_nobody_else(file):
    sasl = logged_in(Ensemble(["127.0.0.1:1"], sasl=Login("proxy", PasswordFile(str(file), "proxy at b:1"))))
    given = logged_in(Ensemble(["127.0.0.1:1"], digest=Login("proxy", "one")))
    nobody = logged_in(Ensemble(["127.0.0.1:1"]))
    file.write_text("two")
    assert [each.is_another for each in (sasl, given, nobody)] == [False] * 3
