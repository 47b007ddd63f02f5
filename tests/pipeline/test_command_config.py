"""Who a command is to a cluster: Kafka's properties and librdkafka's, and everything that is wrong with them."""

import pytest

from kafka_throttle.common.problems import Problems
from kafka_throttle.pipeline.rollout.command_config import read_command_config
from kafka_throttle.quotas.sources.cluster_connection import Credentials


@pytest.fixture
def read(tmp_path):
    for name in ("ca.pem", "me.pem", "me.key"):
        (tmp_path / name).write_text("x")

    def of(text):
        path = tmp_path / "client.properties"
        path.write_text(text.replace("@", f"{tmp_path}/"))
        return read_command_config(path)

    return of


def test_nothing_is_plaintext(read):
    assert read("\n# nothing\n! at all\n") == Credentials()


def test_a_comment_does_not_go_on(read):
    found = read(
        "  # who we are \\\nsecurity.protocol=SSL\nssl.ca.location=\\\n  @ca.pem\n! the end \\\nssl.truststore.type=PEM"
    )
    assert found.security_protocol == "SSL"
    assert found.ssl_cafile.endswith("/ca.pem")


def test_kafkas_own_names(read, tmp_path):
    found = read(
        "security.protocol=SASL_SSL\n"
        "sasl.mechanism = SCRAM-SHA-512\n"
        "sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required \\\n"
        '    username="admin" password="s\\"=;cret";\n'
        "ssl.truststore.type=PEM\nssl.truststore.location=@ca.pem\n"
        "ssl.keystore.type: PEM\nssl.keystore.location: @me.pem\n"
    )
    assert found == Credentials(
        security_protocol="SASL_SSL",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_plain_username="admin",
        sasl_plain_password='s"=;cret',
        ssl_cafile=str(tmp_path / "ca.pem"),
        ssl_certfile=str(tmp_path / "me.pem"),
        ssl_keyfile=str(tmp_path / "me.pem"),
    )


def test_librdkafkas_names(read, tmp_path):
    found = read(
        "security.protocol=SSL\nssl.ca.location=@ca.pem\nssl.certificate.location=@me.pem\nssl.key.location=@me.key\n"
    )
    assert found.files == tuple(str(tmp_path / name) for name in ("ca.pem", "me.pem", "me.key"))


def test_every_problem_is_told_with_its_place_and_no_secret(read):
    with pytest.raises(Problems) as refused:
        read(
            "security.protocol=SASL_SSL\nsasl.mechanism=GSSAPI\nsasl.pasword=hunter2\nssl.ca.location=@none\n"
            "ssl.truststore.location=@ca.pem\n"
        )
    reported = [line.partition("client.properties: ")[2] for line in str(refused.value).splitlines()]
    assert reported == [
        "line 3: unknown key 'sasl.pasword', did you mean 'sasl.password'?",
        "ssl.truststore.type: expected PEM, beside ssl.truststore.location, got nothing",
        "sasl.mechanism: expected one of PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, got GSSAPI",
        "sasl.username: expected one here or in sasl.jaas.config, got nothing",
        "sasl.password: expected one here or in sasl.jaas.config, got nothing",
    ]
    assert "hunter2" not in str(refused.value)


def test_of_a_private_key_nothing_is_told(read):
    with pytest.raises(Problems) as refused:
        read("-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\nabcdefgh==\nhunter.Two\n-----END PRIVATE KEY-----\n")
    reported = [line.partition("client.properties: ")[2] for line in str(refused.value).splitlines()]
    assert [line.partition(", expected one of")[0] for line in reported] == [
        f"line {i}: unknown key" for i in range(1, 6)
    ]


def test_a_file_that_is_not_there_is_told(read):
    with pytest.raises(Problems, match=r"ssl.key.location: .* cannot be read: No such file"):
        read("security.protocol=SSL\nssl.key.location=@none\n")
