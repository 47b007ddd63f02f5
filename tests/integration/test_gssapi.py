"""Kerberos: a realm for the tests, a node that takes its tickets, Kafka's own client, users by the operator's mapping.

The frames show the proxy that a client was accepted, not its name.
"""

import os
import subprocess

import pytest

from demo.kafka_cluster import KafkaCluster, accepts, free_ports
from kafka_throttle.common.child_process import die_with_parent
from tests.bench.processes import need_tool
from tests.integration.logins import PASSWORDS, PLAIN
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.steady_producers import with_java
from tests.support.timeouts import TIMEOUT_S
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

REALM, LISTENER = "KAFKA.TEST", "KERBEROS"
NODE, CLIENT = "kafka/localhost", "gustav"
RATE = 1_000

_PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"

_KRB5 = """\
[libdefaults]
  default_realm = {realm}
  dns_lookup_kdc = false
  dns_lookup_realm = false
  udp_preference_limit = 1
[realms]
  {realm} = {{
    kdc = {host}:{port}
  }}
"""
_KDC = """\
[kdcdefaults]
  kdc_listen = ""
  kdc_tcp_listen = {host}:{port}
[realms]
  {realm} = {{
    database_name = {folder}/principal
    key_stash_file = {folder}/stash
    supported_enctypes = aes128-cts-hmac-sha1-96:normal
  }}
"""


class Realm:
    """A key distribution centre of MIT Kerberos with the principals of a node and a client; a context manager."""

    def __init__(self, folder):
        [port] = free_ports(1)
        self._address = (HOST, port)
        self.krb5 = folder / "krb5.conf"
        self.krb5.write_text(_KRB5.format(realm=REALM, host=HOST, port=port))
        (folder / "kdc.conf").write_text(_KDC.format(realm=REALM, host=HOST, port=port, folder=folder))
        self._folder = folder
        files = {"KRB5_CONFIG": str(self.krb5), "KRB5_KDC_PROFILE": str(folder / "kdc.conf")}
        self._environment = {**os.environ, **files}

    def __enter__(self):
        self._run("kdb5_util", "create", "-s", "-P", "not used", "-r", REALM)
        for principal in (NODE, CLIENT):
            self._run("kadmin.local", "addprinc", "-randkey", principal)
            self._run("kadmin.local", "ktadd", "-k", str(self._keytab(principal)), principal)
        program = need_tool("krb5kdc", "krb5-kdc")
        self._process = subprocess.Popen([program, "-n"], env=self._environment, preexec_fn=die_with_parent)
        wait_until(lambda: accepts(*self._address))
        return self

    def __exit__(self, *_):
        self._process.kill()
        self._process.wait()

    def _run(self, program, *arguments):
        path = need_tool(program, "krb5-kdc krb5-admin-server")
        done = subprocess.run([path, *arguments], env=self._environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr

    def _keytab(self, principal):
        return self._folder / f"{principal.replace('/', '-')}.keytab"

    def login(self, principal):
        """What has Java log in as a principal."""
        module = "com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true storeKey=true"
        return f'{module} keyTab="{self._keytab(principal)}" principal="{principal}@{REALM}";'

    @property
    def option(self):
        """What has Java know the realm."""
        return f"-Djava.security.krb5.conf={self.krb5}"


@pytest.fixture(scope="module")
def realm(tmp_path_factory):
    with Realm(tmp_path_factory.mktemp("realm")) as made:
        yield made


@pytest.fixture(scope="module")
def kerberos_kafka(realm):
    """One node; its listener takes tickets of the realm, and a password of the proxy, which has no ticket."""
    listener = f"listener.name.{LISTENER.lower()}"
    properties = {
        f"{listener}.sasl.enabled.mechanisms": "GSSAPI,PLAIN",
        f"{listener}.plain.sasl.jaas.config": f'{_PLAIN} required user_proxy="{PASSWORDS["proxy"]}";',
        f"{listener}.sasl.kerberos.service.name": "kafka",
        f"{listener}.gssapi.sasl.jaas.config": realm.login(NODE),
    }
    options = ("-XX:TieredStopAtLevel=1", realm.option)
    listeners = {LISTENER: "SASL_PLAINTEXT"}
    with KafkaCluster(nodes=1, listeners=listeners, extra=lambda _: properties, jvm_options=options) as cluster:
        yield cluster


class WithUserNames(ProxyProcess):
    """A proxy with clients that must log in; its configuration names users by mechanism."""

    def __init__(self, servers, quotas, user_names, password_file):
        self._user_names = user_names
        own = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": PLAIN, "username": "proxy"}
        upstream = {"admin": {**own, "password_file": str(password_file)}}
        super().__init__(servers, quotas, upstream=upstream)

    def config(self, quotas=()):
        config = super().config(quotas)
        config["virtual_clusters"][0]["sasl"] = {"user_names": self._user_names}
        return config


@pytest.mark.nightly
@pytest.mark.parametrize(("user_names", "user"), [({}, "?GSSAPI"), ({"?GSSAPI": "kerberos"}, "kerberos")])
def test_a_client_with_a_ticket_has_the_quota_of_the_mapping(kerberos_kafka, realm, tmp_path, user_names, user):
    hosts = tmp_path / "hosts"
    hosts.write_text(f"{HOST} localhost\n")
    quotas = [{"user": user, "producer_byte_rate": RATE}, {"user": "ANONYMOUS", "producer_byte_rate": 1}]
    password_file = tmp_path / "password"
    password_file.write_text(PASSWORDS["proxy"])
    with WithUserNames(kerberos_kafka.bootstrap(LISTENER), quotas, user_names, password_file) as proxy:
        settings = {
            "bootstrap.servers": proxy.bootstrap,
            "client.id": "ticket",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "GSSAPI",
            "sasl.kerberos.service.name": "kafka",
            "sasl.jaas.config": realm.login(CLIENT),
        }
        properties = tmp_path / "java.properties"
        java = with_java(kerberos_kafka, "tickets", properties, settings, hosts, options=[realm.option])
        java.send(0, " " * 20 * RATE)
        java.close()
        assert len(java.acknowledged()) == 1
        lines = proxy.wait_for(lambda: proxy.events("throttle_started"), TIMEOUT_S, "word of the throttle")
        assert {(line["user"], line["entity"]) for line in lines} == {(user, f"user={user}")}
        ended = proxy.wait_for(lambda: of_gssapi(proxy.events("connection_closed")), TIMEOUT_S, "the end of a login")
        assert {line["user"] for line in ended} == {user}
        assert proxy.metric("authentications_total", result="success") > 0
        assert proxy.metric("authentications_total", result="failure") == 0


def of_gssapi(lines):
    return [line for line in lines if line.get("mechanism") == "GSSAPI"]
