"""With which secret the producer of usage records logs in, as its connections are made and live on."""

from types import SimpleNamespace

import pytest
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, SaslAuthenticationFailedError

from kafka_throttle.common.login_secrets import PasswordFile
from kafka_throttle.proxy.usage.kafka_topic import _Connections


class Producer:
    """Its connections, without the library's network: `answer` is what each login raises."""

    def __init__(self, folder):
        self.file = folder / "password"
        self.file.write_text("one")
        secret = PasswordFile(str(self.file), "proxy at a:1")
        self.connections = SimpleNamespace(_secret=secret, _extensions={"pool": "p"}, has_another_secret=False)
        self.answers = {}
        self.offered = []

    async def log_in(self, mechanism="PLAIN"):
        connection = SimpleNamespace(config={"sasl_mechanism": mechanism})

        async def authenticate(_timeout_at):
            self.offered.append(connection.config["sasl_plain_password"])
            if (error := self.answers.get(self.offered[-1])) is not None:
                raise error

        await _Connections._log_in(self.connections, connection, authenticate, None)
        return connection.config


@pytest.fixture
def producer(tmp_path):
    return Producer(tmp_path)


async def test_each_login_has_the_secret_of_its_file_also_as_a_token(producer):
    await producer.log_in()
    producer.file.write_text("two")
    config = await producer.log_in("OAUTHBEARER")
    assert producer.offered == ["one", "two"]
    provider = config["sasl_oauth_token_provider"]
    assert (provider.token(), provider.extensions()) == ("two", {"pool": "p"})


@pytest.mark.parametrize("no", [SaslAuthenticationFailedError("no"), KafkaConnectionError("socket disconnected")])
async def test_a_refused_password_gives_way_to_the_one_that_was_accepted_last(producer, no):
    await producer.log_in()
    producer.file.write_text("two")
    producer.answers["two"] = no
    with pytest.raises(type(no)):
        await producer.log_in()
    assert producer.connections.has_another_secret
    await producer.log_in()
    assert not producer.connections.has_another_secret
    assert producer.offered == ["one", "two", "one"]


async def test_a_password_that_is_held_back_fails_a_login_without_being_sent(producer):
    producer.answers["one"] = SaslAuthenticationFailedError("no")
    with pytest.raises(SaslAuthenticationFailedError):
        await producer.log_in()
    with pytest.raises(SaslAuthenticationFailedError, match=r"no .*refused once"):
        await producer.log_in()
    assert producer.offered == ["one"]


async def test_a_login_without_an_answer_counts_for_nothing(producer):
    producer.answers["one"] = KafkaTimeoutError("no answer")
    for _ in range(3):
        with pytest.raises(KafkaTimeoutError):
            await producer.log_in()
    assert producer.offered == ["one"] * 3
