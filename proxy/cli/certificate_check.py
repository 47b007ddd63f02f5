"""What `check` finds in the certificates of a configuration: their time, and the names that they are for."""

import ssl
from collections.abc import Iterator, Sequence
from pathlib import Path

from kafka_throttle.common.problems import Problem, listed
from kafka_throttle.common.tls_trust import trust
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.identity.distinguished_names import validity_of
from kafka_throttle.proxy.cli.findings import Finding, validity_findings
from kafka_throttle.proxy.config.sections import valid_sections
from kafka_throttle.proxy.config.settings import (
    Config,
    CredentialsConfig,
    EnsembleConfig,
    ListenerConfig,
    ListenerTlsConfig,
    UpstreamTlsConfig,
)
from kafka_throttle.proxy.server.tls_material import TlsConfig, TlsMaterial, certificates_in, certify, tls_sections

_TURNS_OF_A_HANDSHAKE = 4
_NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME, for which Python has no name."""


def certificate_findings(config: Config) -> Iterator[Finding]:
    """What is wrong with the certificates that the file names, as far as it shows without the clusters."""
    for section in tls_sections(config).values():
        yield from _section_findings(section.path, section.files.tls, section.certified)
    for path, own in valid_sections(config, Path(), (CredentialsConfig, EnsembleConfig)):
        if isinstance(own, CredentialsConfig | EnsembleConfig) and (tls := tls_of(own)) is not None:
            yield from _section_findings(path, tls, certify(path, tls))
    for i, cluster in enumerate(config.virtual_clusters):
        for k, listener in enumerate(cluster.listeners):
            path = f"virtual_clusters[{i}].listeners[{k}]"
            yield from name_findings(path, listener, [listener.advertised_host])


def tls_of(own: CredentialsConfig | EnsembleConfig) -> UpstreamTlsConfig | None:
    """The files of a connection of the proxy's own, as a section `tls`; None if the connection is plain."""
    is_secured = own.tls if isinstance(own, EnsembleConfig) else own.security_protocol.endswith("SSL")
    if not is_secured:
        return None
    files = {setting: getattr(own, setting) for setting in ("ca_file", "certificate_file", "key_file")}
    return UpstreamTlsConfig.model_validate({setting: file for setting, file in files.items() if file is not None})


def _section_findings(path: str, tls: TlsConfig, material: TlsMaterial) -> Iterator[Finding]:
    for shown in material.chain:
        what = f"the certificate of {shown.subject or 'its authority'} in {shown.file}"
        yield from validity_findings(f"{path}.certificate_file", what, shown.validity)
    if isinstance(tls, ListenerTlsConfig | UpstreamTlsConfig) and tls.ca_file is not None:
        yield from _trusted_findings(f"{path}.ca_file", tls.ca_file)


def _trusted_findings(path: str, ca_file: str) -> Iterator[Finding]:
    """Whether the other side can have a certificate that is trusted: that depends on the one that is valid longest."""
    validities = []
    for certificate in certificates_in(Path(ca_file).read_bytes()):
        try:
            validities.append(validity_of(certificate))
        except ProtocolError:  # as OpenSSL could load it, perhaps it can be trusted
            return
    if validities:
        last = max(validities, key=lambda validity: validity.ends_s)
        what = "the certificate" if len(validities) == 1 else f"the last of the {len(validities)} certificates"
        yield from validity_findings(path, f"{what} in {ca_file}", last)


def name_findings(path: str, listener: ListenerConfig, hosts: Sequence[str]) -> Iterator[Finding]:
    """Why clients that ask a listener for these names would refuse its certificate, whatever authorities they trust."""
    if listener.tls is None:
        return
    context, file = certify(f"{path}.tls", listener.tls).context, listener.tls.certificate_file
    problems: dict[str, list[str]] = {}
    for host in hosts:
        if problem := _refusal(context, file, host):
            problems.setdefault(problem.replace(f"'{host}'", "this name"), []).append(host)
    for problem, those in problems.items():
        text = f"clients refuse the certificate for {listed(those)}: {problem}"
        yield Finding(Problem(f"{path}.tls.certificate_file", text))


def _refusal(server: ssl.SSLContext, certificate_file: str, host: str) -> str | None:
    """Why a client that asks for `host` refuses a server's certificate, as a handshake in memory shows.

    The time of the certificates is left out: a chain may have an authority that has expired and that nobody needs.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust(client, certificate_file)  # the certificate itself: its authority is not asked for
    client.verify_flags |= _NO_CHECK_TIME
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for end in ends * _TURNS_OF_A_HANDSHAKE:
        try:
            end.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except ssl.SSLError:  # the server wants the client's certificate; by then the client has judged the server's
            return None
    return None
