"""Names in the tokens of cloud services: real clients log in with them at a real node, which checks no signature."""

import time
from urllib.parse import quote

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError
from kafka.net.sasl.oauth import AbstractTokenProvider

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.common.jars import kafka_jars
from tests.integration import logins
from tests.integration.proxy_process import ProxyProcess
from tests.support.java_program import compile_java
from tests.support.sasl_frames import msk_token
from tests.support.timeouts import TIMEOUT_S

pytestmark = pytest.mark.kafka

VERSION = "4.3.1"
RATE = 10_000
A_SECOND_OVER = bytes(11 * RATE)
MAPPED, OWN, WRONG = "AKIAIOSFODNN7EXAMPLE", "AKIAI44QH8DHBEXAMPLE", "AKIAIOSFODNN7EXWRONG"
SECRET = "wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY"
CONNECTION_STRING = f"Endpoint=sb://a.test/;SharedAccessKeyName=orders-send;SharedAccessKey={SECRET}"
SIGNATURE = "e19e64b41975e909f0028cea5c1098e27205c537ca4ea6f67fca4df576bbabf4"


def signed(access_key):
    scope = "20261128/eu-west-1/kafka-cluster/aws4_request"
    return msk_token(
        "https://kafka.eu-west-1.amazonaws.com/?Action=kafka-cluster%3AConnect&X-Amz-Algorithm=AWS4-HMAC-SHA256"
        f"&X-Amz-Credential={quote(f'{access_key}/{scope}', safe='')}&X-Amz-Expires=900&X-Amz-SignedHeaders=host"
        f"&X-Amz-Signature={SIGNATURE}&User-Agent=tests"
    )


class Tokens(AbstractTokenProvider):
    def __init__(self, access_key):
        self._access_key = access_key

    def token(self):
        return signed(self._access_key)


def with_kafka_python(proxy, client_id, **login):
    producer = KafkaProducer(
        bootstrap_servers=proxy.bootstrap, client_id=client_id, security_protocol="SASL_PLAINTEXT", **login
    )
    try:
        producer.send("cloud", A_SECOND_OVER).get(TIMEOUT_S)
    finally:
        producer.close(TIMEOUT_S)


def with_librdkafka(proxy, client_id, **login):
    settings = {"bootstrap.servers": proxy.bootstrap, "client.id": client_id, "security.protocol": "SASL_PLAINTEXT"}
    producer = Producer(settings | login)
    results = []
    producer.produce("cloud", A_SECOND_OVER, on_delivery=lambda error, _: results.append(error))
    deadline = time.monotonic() + TIMEOUT_S
    while not results and time.monotonic() < deadline:
        producer.poll(0.05)
    assert results == [None]


def bearer_of_kafka_python(access_key):
    return {"sasl_mechanism": "OAUTHBEARER", "sasl_oauth_token_provider": Tokens(access_key)}


def bearer_of_librdkafka(access_key):
    token = (signed(access_key), time.time() + 900, "kafka-cluster", {})
    return {"sasl.mechanism": "OAUTHBEARER", "oauth_cb": lambda _: token}


@pytest.fixture(scope="module")
def cloud(tmp_path_factory):
    """A node that takes signed URLs, and the connection string as the password of its user."""
    classes = tmp_path_factory.mktemp("classes")
    compile_java(["SignedUrls"], kafka_jars(VERSION), classes)
    modules, listener = "org.apache.kafka.common.security", f"listener.name.{logins.LISTENER.lower()}"
    bearer = f'{modules}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="node";'
    users = f'user_$ConnectionString="{CONNECTION_STRING}" user_proxy="proxy"'
    properties = {
        f"{listener}.sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
        f"{listener}.plain.sasl.jaas.config": f"{modules}.plain.PlainLoginModule required {users};",
        f"{listener}.oauthbearer.sasl.jaas.config": bearer,
        f"{listener}.oauthbearer.sasl.server.callback.handler.class": "SignedUrls",
    }
    with KafkaCluster(
        VERSION, nodes=1, listeners={logins.LISTENER: "SASL_PLAINTEXT"}, extra=lambda _: properties, classes=classes
    ) as cluster:
        admin = KafkaAdminClient(bootstrap_servers=cluster.bootstrap_servers)
        admin.create_topics([NewTopic("cloud", num_partitions=1, replication_factor=1)])
        admin.close()
        yield cluster


@pytest.fixture(scope="module")
def proxy(cloud, tmp_path_factory):
    password_file = tmp_path_factory.mktemp("cloud") / "password"
    password_file.write_text("proxy")
    quotas = [{"user": user, "producer_byte_rate": RATE} for user in ("billing", OWN, "orders")]
    login = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "PLAIN", "username": "proxy"}
    with ProxyProcess(
        cloud.bootstrap(logins.LISTENER),
        quotas,
        upstream={"admin": {**login, "password_file": str(password_file)}},
        sasl={"user_names": {MAPPED: "billing", "orders-send": "orders"}},
    ) as process:
        yield process


@pytest.mark.parametrize(("access_key", "user"), [(MAPPED, "billing"), (OWN, OWN)])
@pytest.mark.parametrize(
    ("send", "bearer"),
    [(with_kafka_python, bearer_of_kafka_python), (with_librdkafka, bearer_of_librdkafka)],
    ids=["kafka-python", "librdkafka"],
)
def test_the_access_key_in_a_signed_url_has_the_quota_of_its_user(proxy, send, bearer, access_key, user):
    client_id = f"{send.__name__}-{user}"
    send(proxy, client_id, **bearer(access_key))
    assert throttled(proxy, client_id) == user


def test_the_key_name_in_a_connection_string_has_the_quota_of_its_user(proxy):
    login = {"sasl_plain_username": "$ConnectionString", "sasl_plain_password": CONNECTION_STRING}
    with_kafka_python(proxy, "event-hubs", sasl_mechanism="PLAIN", **login)
    assert throttled(proxy, "event-hubs") == "orders"


def test_a_token_that_the_node_refuses_spends_nothing_of_anybody_and_no_secret_is_logged(proxy):
    with pytest.raises(KafkaError):
        with_kafka_python(proxy, "wrong", bootstrap_timeout_ms=5_000, **bearer_of_kafka_python(WRONG))
    proxy.wait_for(
        lambda: proxy.closed().get("authentication_failed"),
        TIMEOUT_S,
        "the end of a login that has failed",
    )
    assert not [line for line in proxy.events("throttle_started") if line["client_id"] == "wrong"]
    logged = str(proxy.events("connection_closed") + proxy.events("throttle_started"))
    for secret in (SECRET, SIGNATURE, signed(MAPPED), signed(WRONG)):
        assert secret not in logged


def throttled(proxy, client_id):
    [line] = proxy.wait_for(
        lambda: [line for line in proxy.events("throttle_started") if line["client_id"] == client_id],
        TIMEOUT_S,
        f"a throttle of {client_id}",
    )[:1]
    return line["user"]
