"""TLS for the tests: a listener of a cluster's nodes that demands certificates, and the certificates."""

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.x509.oid import NameOID

from tests.integration.proxy_process import HOST
from tests.support.certificates import Authority, Issued, client_context

LISTENER = "SECURED"
WITH_LOGIN = "SECURED_LOGINS"
"""The name of a listener with TLS that demands no certificate, but a login."""
RULES = "RULE:^CN=(.*?),O=Acme$/$1/L, DEFAULT"
USER = "etl"
"""What these rules make of the client's certificate."""
DOMAIN = "kafka.test"
BOOTSTRAP_NAME, NODE_NAME = f"boot.{DOMAIN}", f"b{{node_id}}.{DOMAIN}"


class Certificates:
    """One authority, and what it has signed: for the nodes, for the proxy on both its sides, and for a client."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder)
        self.node = self._in_one_file(self.authority.issue(HOST, name="node"))
        self.proxy = self.authority.issue("proxy", name="proxy")
        subject = ((NameOID.ORGANIZATION_NAME, "Acme"), (NameOID.COMMON_NAME, "ETL"))
        self.client = self._in_one_file(self.authority.issue(subject=subject, name="etl"))

    def _in_one_file(self, issued: Issued) -> Issued:
        self.both(issued).write_text(issued.in_one_file())
        return issued

    @staticmethod
    def both(issued: Issued) -> Path:
        """Where key and certificate are together, as Java wants them."""
        return issued.certificate_file.with_suffix(".both")

    def of_nodes(self, node_id: int, listener: str = LISTENER, client_auth: str = "required") -> Mapping[str, str]:
        """Properties of a node whose listener of that name demands a client certificate."""
        tls = {**self._stores(self.node), "client.auth": client_auth}
        return {f"listener.name.{listener.lower()}.ssl.{name}": value for name, value in tls.items()}

    def _stores(self, issued: Issued) -> Mapping[str, str]:
        return {
            "keystore.type": "PEM",
            "keystore.location": str(self.both(issued)),
            "truststore.type": "PEM",
            "truststore.location": str(self.authority.file),
        }

    # ------------------------------------------------------------ the proxy

    def of_listener(self, *hosts: str, name: str = "listener") -> dict[str, Any]:
        """The section `tls` of a proxy's listener with these names, which demands certificates of its clients."""
        issued = self.authority.issue(*hosts, name=name)
        return {
            "certificate_file": str(issued.certificate_file),
            "key_file": str(issued.key_file),
            "client_auth": "required",
            "ca_file": str(self.authority.file),
            "principal_mapping_rules": RULES,
        }

    @property
    def of_upstream(self) -> dict[str, Any]:
        """The section `upstream` of a proxy that has a certificate for its connections to the nodes."""
        tls = {
            "ca_file": str(self.authority.file),
            "certificate_file": str(self.proxy.certificate_file),
            "key_file": str(self.proxy.key_file),
        }
        return {"tls": tls, "admin": {"security_protocol": "SSL", **tls}}

    # ---------------------------------------------------------- its clients

    def python(self) -> dict[str, Any]:
        """Arguments of kafka-python and aiokafka for the client's certificate."""
        return {"security_protocol": "SSL", "ssl_context": self.context()}

    def python_files(self) -> dict[str, str]:
        """The same for kafka-python in files, for another process."""
        files = {"ssl_cafile": self.authority.file, "ssl_certfile": self.client.certificate_file}
        named = {key: str(file) for key, file in {**files, "ssl_keyfile": self.client.key_file}.items()}
        return {"security_protocol": "SSL", **named}

    def context(self) -> ssl.SSLContext:
        """The same for a bare socket."""
        return client_context(self.authority, self.client)

    def confluent(self) -> dict[str, Any]:
        """How librdkafka shows it."""
        return {
            "security.protocol": "SSL",
            "ssl.ca.location": str(self.authority.file),
            "ssl.certificate.location": str(self.client.certificate_file),
            "ssl.key.location": str(self.client.key_file),
        }

    def java(self) -> dict[str, str]:
        """Properties of Kafka's own clients for it."""
        return {"security.protocol": "SSL", **{f"ssl.{key}": value for key, value in self._stores(self.client).items()}}

    def go(self) -> dict[str, str]:
        """How tests/go/pipe shows it."""
        return {
            "ca": str(self.authority.file),
            "certificate": str(self.client.certificate_file),
            "key": str(self.client.key_file),
        }
