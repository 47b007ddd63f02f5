"""Which certificates the proxy's TLS connections trust: those that Java would trust with the same file."""

import datetime
import ssl

import pytest

from kafka_throttle.proxy.cli.admin_client import tls_context
from kafka_throttle.proxy.config.settings import ListenerTlsConfig, UpstreamTlsConfig
from kafka_throttle.proxy.server.tls_material import certify
from kafka_throttle.proxy.usage.kafka_topic import KafkaTopic
from kafka_throttle.quotas.sources.cluster_connection import Credentials
from tests.support.certificates import Authority, server_context

HOST = "localhost"
_TURNS = 4


def to_nodes(ca_file):
    return certify("tls", UpstreamTlsConfig(ca_file=str(ca_file))).context


def of_our_own(ca_file):
    return Credentials(security_protocol="SSL", ssl_cafile=str(ca_file)).tls_context()


def to_the_usage_topic(ca_file):
    return KafkaTopic("usage", {"security_protocol": "SSL", "ssl_cafile": str(ca_file)}).tls_context()


CLIENTS = [to_nodes, of_our_own, to_the_usage_topic, tls_context]


class Chain:
    """A root, the issuing authority below it, and two certificates for the same host, of a server and of a client."""

    def __init__(self, folder):
        self.root = Authority(folder, "root")
        self.issuing = Authority(folder, "issuing", below=self.root)
        self.stranger = Authority(folder, "stranger")
        self.server = self.issuing.issue(HOST, name="server")
        self.client = self.issuing.issue(HOST, name="client")
        for issued in (self.server, self.client):
            with issued.certificate_file.open("ab") as file:
                file.write(self.issuing.file.read_bytes())


@pytest.fixture(scope="module")
def chain(tmp_path_factory):
    return Chain(tmp_path_factory.mktemp("chain"))


def shake_hands(server, client):
    """Have both ends of a connection in memory finish their handshake. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=HOST),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for end in ends * _TURNS:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue


@pytest.mark.parametrize("context_of", CLIENTS)
@pytest.mark.parametrize("authority", ["root", "issuing"])
def test_a_server_is_trusted_by_any_certificate_of_its_chain(chain, context_of, authority):
    shake_hands(server_context(chain.server), context_of(getattr(chain, authority).file))


@pytest.mark.parametrize("context_of", CLIENTS)
def test_a_server_of_another_authority_is_not_trusted(chain, context_of):
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server_context(chain.server), context_of(chain.stranger.file))


def listener(chain, ca_file):
    tls = ListenerTlsConfig(
        certificate_file=str(chain.server.certificate_file),
        key_file=str(chain.server.key_file),
        client_auth="required",
        ca_file=str(ca_file),
    )
    return certify("tls", tls).context


def client(chain):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(chain.root.file)
    context.load_cert_chain(chain.client.certificate_file, chain.client.key_file)
    return context


@pytest.mark.parametrize("authority", ["root", "issuing"])
def test_a_client_is_trusted_by_any_certificate_of_its_chain(chain, authority):
    shake_hands(listener(chain, getattr(chain, authority).file), client(chain))


def test_a_client_of_another_authority_is_not_trusted(chain):
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(listener(chain, chain.stranger.file), client(chain))


def days_left(chain, *behind):
    """The days until the most urgent certificate of a server ends; `behind` follow its own."""
    own = chain.root.issue(HOST, valid=datetime.timedelta(days=80), name="own")
    with own.certificate_file.open("ab") as file:
        file.write(b"".join(behind))
    tls = ListenerTlsConfig(certificate_file=str(own.certificate_file), key_file=str(own.key_file))
    now_s = datetime.datetime.now().timestamp()
    return (certify("tls", tls).to_renew(now_s).validity.ends_s - now_s) / 86_400


def test_an_authority_that_had_ended_before_the_certificate_was_issued_does_not_end_the_chain(chain):
    cross_signed = chain.stranger.certify(chain.root, datetime.timedelta(days=-700))
    assert days_left(chain, cross_signed) == pytest.approx(80, abs=0.1)


def test_an_authority_ends_the_chain_if_it_ends_before_the_certificate(chain):
    assert days_left(chain, chain.stranger.certify(chain.root, datetime.timedelta(days=20))) == pytest.approx(
        20, abs=0.1
    )
