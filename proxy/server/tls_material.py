"""Makes TLS contexts from the files that the configuration names."""

import re
import ssl
from base64 import b64decode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kafka_throttle.common.destinations import plain_name
from kafka_throttle.common.file_signature import Signature, signature
from kafka_throttle.common.plain_words import why_tls_failed
from kafka_throttle.common.printable import printable
from kafka_throttle.common.problems import Problem
from kafka_throttle.common.tls_trust import trust
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.identity.distinguished_names import Validity, host_names_of, subject_of, validity_of
from kafka_throttle.protocol.identity.principal_rules import PrincipalRules, principal_rules
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.secret_file import secret
from kafka_throttle.proxy.config.settings import Config, ListenerTlsConfig, ServerTlsConfig, UpstreamTlsConfig

TlsConfig = ServerTlsConfig | UpstreamTlsConfig

_CERTIFICATE = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]*)")
"""A certificate in a PEM file, in each spelling that OpenSSL accepts."""

_LEAST_STRENGTH_BITS = 112
"""The least strength of a cipher that NIST SP 800-131A allows since 2014."""

_KEY = re.compile(rb"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----")


@dataclass(frozen=True, slots=True)
class TlsPlace:
    """Where TLS is used: at a listener, or between a virtual cluster and its nodes, where `listener` is "".

    The HTTP listeners "admin" and "metrics" have the virtual cluster "".
    """

    virtual_cluster: str
    listener: str


class OwnCertificate(NamedTuple):
    """A certificate that the other side is shown."""

    file: str
    subject: str
    validity: Validity


@dataclass(frozen=True, slots=True)
class TlsMaterial:
    """What is made from a section `tls`: its context, and the own certificate, with the authorities behind it.

    `rules` map a client's certificate to its user. `hosts` are the host names that the own certificate is for.
    """

    context: ssl.SSLContext
    chain: Sequence[OwnCertificate]
    rules: PrincipalRules
    hosts: frozenset[str] = field(default_factory=frozenset)

    def to_renew(self, now_s: float) -> OwnCertificate | None:
        """The certificate of the chain that is the most urgent to renew; None if there is no chain."""
        return max(self.chain, key=lambda each: each.validity.urgency(now_s), default=None)


@dataclass(frozen=True, slots=True)
class Section:
    """A section `tls`: its path in the configuration, the files that it names, and what was made from them."""

    path: str
    files: "CertificateFiles"
    certified: TlsMaterial


def tls_sections(config: Config) -> dict[TlsPlace, Section]:
    """All sections `tls` of a configuration, with their files read. Raises ConfigErrors that name each bad section."""
    problems: list[Problem] = []
    found = {}
    for place, path, tls in _sections(config):
        files = CertificateFiles(tls)  # made before the files are read, so that a change from now on is noticed
        try:
            found[place] = Section(path, files, certify(path, tls))
        except ConfigErrors as errors:
            problems += errors.problems
    if problems:
        raise ConfigErrors(problems)
    return found


def _sections(config: Config) -> Iterator[tuple[TlsPlace, str, TlsConfig]]:
    for i, cluster in enumerate(config.virtual_clusters):
        path = f"virtual_clusters[{i}]"
        if cluster.upstream.tls is not None:
            yield TlsPlace(cluster.name, ""), f"{path}.upstream.tls", cluster.upstream.tls
        for k, listener in enumerate(cluster.listeners):
            if listener.tls is not None:
                yield TlsPlace(cluster.name, listener.name), f"{path}.listeners[{k}].tls", listener.tls
    for section, http in (("admin", config.admin), ("metrics", config.metrics)):
        if http.tls is not None:
            yield TlsPlace("", section), f"{section}.tls", http.tls


def certify(path: str, tls: TlsConfig) -> TlsMaterial:
    """Read the files of one section `tls`. `path` is its place in the configuration. Raises ConfigErrors."""
    if isinstance(tls, ServerTlsConfig):
        context = _new_context(path, ssl.PROTOCOL_TLS_SERVER, tls)
        rules = principal_rules("DEFAULT")
        if isinstance(tls, ListenerTlsConfig):
            _verify_clients(context, tls)
            rules = principal_rules(tls.principal_mapping_rules)
        return TlsMaterial(context, _load_own(path, context, tls), rules, _hosts_of(path, tls.certificate_file))
    context = _new_context(path, ssl.PROTOCOL_TLS_CLIENT, tls)
    context.check_hostname = tls.endpoint_identification
    if tls.ca_file is None:
        context.load_default_certs()
    return TlsMaterial(context, _load_own(path, context, tls), principal_rules("DEFAULT"))


def _verify_clients(context: ssl.SSLContext, tls: ListenerTlsConfig) -> None:
    context.verify_mode = _VERIFY_MODES[tls.client_auth]
    if tls.client_auth != "none":
        # Without tickets a client that reconnects has to prove again who it is. TLS 1.2 resumes sessions anyway: a
        # resumed session has the certificate it began with. The TLS stage therefore checks the certificate's expiry
        # each time, and changed files end all sessions.
        context.num_tickets = 0


_VERIFY_MODES = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_CIPHERS = "ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM"
"""CPython's default ciphers, used if none are configured. Some builds, as Debian's, have other defaults."""
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


def _new_context(path: str, protocol: int, tls: TlsConfig) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = _VERSIONS[tls.min_version]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if (ciphers := tls.ciphers) is None:
        context.set_ciphers(f"@SECLEVEL={max(context.security_level, 2)}:{_CIPHERS}")
    else:
        _use(f"{path}.ciphers", ciphers, lambda: context.set_ciphers(ciphers))
        _refuse_weak_ciphers(f"{path}.ciphers", context)
    if (ca_file := _ca_file_of(tls)) is not None:
        _use(f"{path}.ca_file", ca_file, lambda: trust(context, ca_file))
    return context


def _ca_file_of(tls: TlsConfig) -> str | None:
    """The authorities of the other side; an HTTP listener wants no certificates of clients."""
    return tls.ca_file if isinstance(tls, ListenerTlsConfig | UpstreamTlsConfig) else None


def _refuse_weak_ciphers(path: str, context: ssl.SSLContext) -> None:
    """Raise ConfigErrors for ciphers that do not encrypt strongly enough or do not authenticate."""
    weak = [
        str(cipher["name"])
        for cipher in context.get_ciphers()
        if int(cipher["strength_bits"]) < _LEAST_STRENGTH_BITS or cipher["auth"] == "auth-null"
    ]
    if weak:
        raise _error(path, f"expected ciphers that encrypt and authenticate, got {', '.join(weak[:5])}")


def _load_own(path: str, context: ssl.SSLContext, tls: TlsConfig) -> Sequence[OwnCertificate]:
    """Load the own certificate, if one is configured. Returns it with the authorities behind it."""
    own = tls.certificate_file
    if own is None:
        return ()
    password = secret(tls.key_password_file, f"{path}.key_password_file") or ""
    _require_own(path, own, tls)
    files = own if tls.key_file is None else f"{own} with {tls.key_file}"
    _use(f"{path}.certificate_file", files, lambda: context.load_cert_chain(own, tls.key_file, lambda: password))
    chain: list[OwnCertificate] = []
    _use(f"{path}.certificate_file", own, lambda: chain.extend(_chain_in(own)))
    return chain


def _chain_in(file: str) -> Iterator[OwnCertificate]:
    """The own certificate, and the authorities behind it.

    An authority that had ended before the own certificate was issued is left out: nobody can need it. Chains have such
    certificates for old clients, of a root that was signed by an older one.
    """
    own, *authorities = certificates_in(Path(file).read_bytes())
    begins_s = validity_of(own).begins_s
    yield OwnCertificate(file, _subject_of(own), validity_of(own))
    for authority in authorities:
        if validity_of(authority).ends_s > begins_s:
            yield OwnCertificate(file, _subject_of(authority), validity_of(authority))


def _subject_of(certificate: bytes) -> str:
    try:
        return printable(subject_of(certificate))
    except ProtocolError:
        return ""


def _hosts_of(path: str, own: str) -> frozenset[str]:
    """The host names that a certificate is for, in their plain spelling. Names with "*" are left out."""
    found: list[str] = []

    def read() -> None:
        for certificate in islice(certificates_in(Path(own).read_bytes()), 1):
            found.extend(host_names_of(certificate))

    _use(f"{path}.certificate_file", own, read)
    return frozenset(plain_name(name) for name in found if "*" not in name)


def _require_own(path: str, own: str, tls: TlsConfig) -> None:
    """Raise ConfigErrors if a certificate or its key is missing. OpenSSL would report only an error number."""
    found: dict[str, bytes] = {}
    for setting, name in (("certificate_file", own), ("key_file", tls.key_file or own)):
        _use(f"{path}.{setting}", name, partial(_read_into, found, name))
    if not _CERTIFICATE.search(found[own]):
        raise _error(f"{path}.certificate_file", f"{own} holds no certificate in PEM")
    key = found[tls.key_file or own]
    if not _KEY.search(key):
        hint = "" if tls.key_file else ": expected one there, or in key_file"
        raise _error(f"{path}.key_file", f"{tls.key_file or own} holds no private key in PEM{hint}")
    if b"ENCRYPTED" in key and tls.key_password_file is None:
        raise _error(f"{path}.key_password_file", f"expected a file with the password of {tls.key_file or own}")


def _read_into(found: dict[str, bytes], name: str) -> None:
    found[name] = Path(name).read_bytes()


def certificates_in(pem: bytes) -> Iterator[bytes]:
    """The certificates in a PEM file, in DER."""
    return map(b64decode, _CERTIFICATE.findall(pem))


def _use(path: str, what: str, step: Callable[[], object]) -> None:
    """Call `step`, which uses the files `what`. Raises ConfigErrors that name them if it fails."""
    try:
        step()
    except ssl.SSLError as error:
        raise _error(path, f"{what} cannot be used: {why_tls_failed(error)}") from error
    except OSError as error:
        raise _error(path, f"{what} cannot be read: {error.strerror or error}") from error
    except (ProtocolError, ValueError) as error:
        raise _error(path, f"{what} cannot be used: {error}") from error


def _error(path: str, problem: str) -> ConfigErrors:
    return ConfigErrors([Problem(path, problem)])


def files_of(tls: TlsConfig) -> list[str]:
    """All files that a section names."""
    names = (tls.certificate_file, tls.key_file, tls.key_password_file, _ca_file_of(tls))
    return [name for name in names if name is not None]


class CertificateFiles:
    """Notices when the files of a section have changed, after the change is complete."""

    def __init__(self, tls: TlsConfig) -> None:
        self.tls = tls
        self._files = files_of(tls)
        self._taken = self._seen = self._look()

    def changed(self) -> bool:
        """True once for each change. A change counts when two looks in a row have found the same files."""
        before, self._seen = self._seen, self._look()
        if self._seen == self._taken or self._seen != before:
            return False
        self._taken = self._seen
        return True

    def _look(self) -> tuple[Signature | None, ...]:
        return tuple(signature(Path(name)) for name in self._files)
