"""Certificates for tests: an authority of their own, and what it signs, as PEM files."""

import datetime
import ssl
from collections.abc import Sequence
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_DAY = datetime.timedelta(days=1)
_SIGNS = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""What an authority's key may be used for."""


def _name(parts: Sequence[tuple[x509.ObjectIdentifier, str]]) -> x509.Name:
    return x509.Name([x509.NameAttribute(oid, value) for oid, value in parts])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class Issued:
    """A certificate with its key, in two files of a folder."""

    def __init__(self, folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
        self.certificate_file = folder / f"{name}.pem"
        self.key_file = folder / f"{name}.key"
        self.key = key
        self.certificate = certificate
        self.certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        self.key_file.write_bytes(self._key_pem(serialization.NoEncryption()))

    def _key_pem(self, encryption: serialization.KeySerializationEncryption) -> bytes:
        return self.key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)

    def lock_key(self, password: str) -> None:
        """Encrypt the key's file."""
        self.key_file.write_bytes(self._key_pem(serialization.BestAvailableEncryption(password.encode())))

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def in_one_file(self) -> str:
        """Key and certificate, one after the other, as Kafka's PEM keystores have them."""
        return self.key_file.read_text() + self.certificate_file.read_text()


class Authority:
    """Signs certificates that end after a day. It is a root, or has a certificate of the authority `below`."""

    def __init__(self, folder: Path, name: str = "authority", below: "Authority | None" = None) -> None:
        self.folder = folder
        self._subject = _name([(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        self.file.write_bytes((below or self).certify(self, _DAY))

    def renew(self, valid: datetime.timedelta) -> None:
        """Put a certificate of another validity in the place of the own one."""
        self.file.write_bytes(self.certify(self, valid))

    def certify(self, other: "Authority", valid: datetime.timedelta) -> bytes:
        """A certificate of an authority, as PEM; its time is over if `valid` < 0."""
        builder = (
            self._builder(other._subject, other._key, valid)
            .add_extension(x509.BasicConstraints(True, None), True)
            .add_extension(_SIGNS, True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(other._key.public_key()), False)
        )
        return builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    def issue(
        self,
        *hosts: str,
        subject: Sequence[tuple[x509.ObjectIdentifier, str]] = (),
        valid: datetime.timedelta = _DAY,
        name: str = "leaf",
    ) -> Issued:
        """A certificate for hosts, or for who has a `subject` (last part last); its time is over if `valid` < 0."""
        key = ec.generate_private_key(ec.SECP256R1())
        parts = subject or [(NameOID.COMMON_NAME, hosts[0])]
        builder = self._builder(_name(parts), key, valid)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(host) for host in hosts]), False)
        return Issued(self.folder, name, builder.sign(self._key, hashes.SHA256()), key)

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, valid: datetime.timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now - 3 * _DAY, now + 2 * valid))
            .not_valid_after(now + valid)
            # From Python 3.13 on a default context demands it.
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), False)
        )


def server_context(issued: Issued) -> ssl.SSLContext:
    """Of a server that shows this certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(issued.certificate_file, issued.key_file)
    return context


def client_context(authority: Authority, issued: Issued | None = None) -> ssl.SSLContext:
    """Of a client that trusts an authority, and may have a certificate itself."""
    context = ssl.create_default_context(cafile=str(authority.file))
    if issued is not None:
        context.load_cert_chain(issued.certificate_file, issued.key_file)
    return context
