"""The stage of the TLS handshake. It finds the user of the client's certificate, and the node the client wants."""

import ssl
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from kafka_throttle.common.destinations import plain_name
from kafka_throttle.common.plain_words import why_tls_failed
from kafka_throttle.protocol.errors import ProtocolError
from kafka_throttle.protocol.identity.distinguished_names import not_after, subject_of
from kafka_throttle.protocol.identity.principal_rules import NoPrincipalRule, PrincipalRules
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.gate.stages import IncomingConnection, SlowStage, TurnedAway
from kafka_throttle.proxy.net.handshake import run_in_tls_threads, shake_hands
from kafka_throttle.proxy.net.poller import Poller
from kafka_throttle.proxy.net.tls_socket import TlsSocket
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.proxy.relay.recognise import looks_like
from kafka_throttle.proxy.server.tls_material import TlsMaterial
from kafka_throttle.proxy.upstream.topology import BOOTSTRAP_NODE_ID, ListenerNames

_HANDSHAKE = 0x16
"""The first byte that a TLS client sends."""

_OUT_OF_DATE = (9, 10)
"""X509_V_ERR_CERT_NOT_YET_VALID and _HAS_EXPIRED of OpenSSL."""


_RULES_S = 0.2
"""The limit of processor time for the principal rules of one client. Most patterns take a few us."""


def _user(rules: PrincipalRules, subject: str) -> str:
    until_s = time.process_time() + _RULES_S
    return rules.name_of(subject, lambda: until_s - time.process_time())


class _NamedObject(ssl.SSLObject):
    """The TLS side of a listener with host names. Keeps the server name that the client asks for, and its node.

    `reported`: the client has sent its ClientHello. `wanted` is None if the client asks for no name; then it is served
    as a client that bootstraps.
    """

    reported: bool = False
    wanted: str | None = None
    node_id: int | None = None


def secure_stage(secure: "TlsStage") -> SlowStage:
    """The stage of a listener that speaks TLS."""
    overdue, crowded = CloseReason.TLS_HANDSHAKE_TIMEOUT, CloseReason.TOO_MANY_HANDSHAKES
    return SlowStage(secure.come_in, 10_000, 1_000, overdue, crowded)


@dataclass(slots=True)
class TlsStage:
    """The TLS stage of one listener. `certified` may be changed at any time; it applies to later connections.

    `names` are set for a listener whose nodes have a host name each. `find_node` waits until the cluster has named a
    node, or raises LookupError. A client that asks for no server name is refused with `demands_name`; otherwise it is
    served as a client that bootstraps, and `note_unnamed` is called.
    """

    poller: Poller
    clock: Clock
    names: ListenerNames | None
    find_node: Callable[[int], Awaitable[object]]
    note_unnamed: Callable[[IncomingConnection], None]
    demands_name: bool = False
    certified: TlsMaterial | None = None

    def certify(self, certified: TlsMaterial) -> None:
        """Use this TLS material for connections from now on."""
        if self.names is not None:
            certified.context.sslobject_class = _NamedObject
            certified.context.sni_callback = partial(self._note_name, certified.hosts)
        self.certified = certified

    def _note_name(
        self, hosts: frozenset[str], tls: ssl.SSLObject, name: str | None, _context: ssl.SSLContext
    ) -> int | None:
        assert isinstance(tls, _NamedObject)
        tls.reported, tls.wanted = True, name
        tls.node_id = self._node_named(name, hosts)
        return ssl.ALERT_DESCRIPTION_UNRECOGNIZED_NAME if tls.node_id is None else None

    def _node_named(self, name: str | None, hosts: frozenset[str]) -> int | None:
        """The node that a client asks for by server name, None for an unknown name. No name: the bootstrap node."""
        assert self.names is not None
        if name is None:
            return None if self.demands_name else BOOTSTRAP_NODE_ID
        node_id = self.names.node_named(name)
        return BOOTSTRAP_NODE_ID if node_id is None and plain_name(name) in hosts else node_id

    async def come_in(self, incoming: IncomingConnection) -> None:
        """Do the TLS handshake, and note the user and the node of the client. Raises TurnedAway."""
        certified = self.certified
        assert certified is not None
        tls = TlsSocket(incoming.socket, certified.context)
        try:
            await shake_hands(self.poller, incoming.socket, tls)
        except ssl.SSLError as error:
            raise self._turned_away(tls, error) from error
        except OSError as error:
            reason = CloseReason.CLIENT_LOST if tls.first_bytes else CloseReason.CLIENT_SENT_NOTHING
            raise TurnedAway(reason, error.strerror or str(error)) from error
        await self._note_user(incoming, tls, certified.rules)
        await self._note_node(incoming, tls)
        incoming.tls = tls

    # ------------------------------------------------------------- user and node

    async def _note_user(self, incoming: IncomingConnection, tls: TlsSocket, rules: PrincipalRules) -> None:
        certificate = tls.tls.getpeercert(binary_form=True)
        if certificate is None:
            return
        try:
            if not_after(certificate) * 1000 < self.clock.epoch_ms():  # possible in a resumed session
                raise TurnedAway(CloseReason.CLIENT_CERTIFICATE_EXPIRED)
            subject = subject_of(certificate)
            find = partial(_user, rules, subject)
            incoming.user = find() if rules.quick else await run_in_tls_threads(find)
        except ProtocolError as error:
            raise TurnedAway(CloseReason.CLIENT_CERTIFICATE_UNTRUSTED, str(error)) from error
        except NoPrincipalRule as error:
            raise TurnedAway(CloseReason.NO_PRINCIPAL_RULE, str(error)) from error

    async def _note_node(self, incoming: IncomingConnection, tls: TlsSocket) -> None:
        if not isinstance(tls.tls, _NamedObject):
            return
        node_id = tls.tls.node_id
        if tls.tls.wanted is None:
            self.note_unnamed(incoming)
        if node_id is None or node_id == incoming.node_id:
            return
        try:
            await self.find_node(node_id)
        except LookupError as error:
            raise TurnedAway(CloseReason.NODE_UNKNOWN, str(error)) from error
        incoming.node_id = node_id
        incoming.log = incoming.log.bind(node_id=node_id)

    # ------------------------------------------------------------------ failures

    def _turned_away(self, tls: TlsSocket, error: ssl.SSLError) -> TurnedAway:
        text = why_tls_failed(error)
        if isinstance(error, ssl.SSLCertVerificationError):
            old = error.verify_code in _OUT_OF_DATE
            reason = CloseReason.CLIENT_CERTIFICATE_EXPIRED if old else CloseReason.CLIENT_CERTIFICATE_UNTRUSTED
            return TurnedAway(reason, text)
        if tls.first_bytes and tls.first_bytes[0] != _HANDSHAKE:
            found = looks_like(tls.first_bytes) or "bytes that are not TLS, perhaps plaintext Kafka"
            return TurnedAway(CloseReason.TLS_EXPECTED, f"got {found}")
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError) and not tls.first_bytes:
            return TurnedAway(CloseReason.CLIENT_SENT_NOTHING)
        if isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            return TurnedAway(CloseReason.CLIENT_CLOSED, "during the TLS handshake")
        if isinstance(tls.tls, _NamedObject) and tls.tls.reported and tls.tls.node_id is None:
            wanted = tls.tls.wanted
            if wanted is None:
                return TurnedAway(CloseReason.SERVER_NAME_MISSING, f"expected one of {self.names}")
            return TurnedAway(CloseReason.SERVER_NAME_UNKNOWN, f"{wanted} is none of {self.names}")
        if text == "callback failed":  # the callback was not called, because Python decodes names as ASCII
            return TurnedAway(CloseReason.SERVER_NAME_UNKNOWN, f"a name that is not ASCII is none of {self.names}")
        if text == "peer did not return a certificate":
            return TurnedAway(CloseReason.CLIENT_CERTIFICATE_MISSING)
        reported = " alert " in text  # the client has sent the reason why it does not go on
        return TurnedAway(CloseReason.TLS_REFUSED_BY_CLIENT if reported else CloseReason.TLS_FAILED, text)
