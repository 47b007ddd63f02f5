"""A connection of the proxy's own to one node of a Kafka cluster, made with kafka-python."""

import contextlib
import logging
from dataclasses import asdict, dataclass, field
from traceback import clear_frames
from typing import Any, Final, Literal

from kafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaProtocolError,
    KafkaTimeoutError,
    RequestTimedOutError,
)
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector

from quotas.changes import SourceUnavailable
from quotas.sources.cluster_faults import (
    ADDRESSES,
    ConnectionFault,
    Fault,
    Spoken,
    Who,
    fault_of,
    plain_words,
    spoken_at,
)

CLIENT_ID: Final = "kafka-throttle"
MAX_RESPONSE_BYTES: Final = 256 << 20

_SINCE: Final = dict.fromkeys(("DescribeClientQuotas", "AlterClientQuotas"), ": Kafka 2.6 and later do")
"""Which nodes offer an API that older ones do not."""

for _tells_sasl_bytes_at_debug in ("kafka.net.connection", "kafka.protocol.parser"):
    logging.getLogger(_tells_sasl_bytes_at_debug).setLevel(logging.INFO)


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who the proxy is to the cluster, named and meant as kafka-python's settings of the same names; files are PEM."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    ssl_cafile: str | None = None
    ssl_certfile: str | None = None
    ssl_keyfile: str | None = None
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    sasl_plain_username: str | None = None
    sasl_plain_password: str | None = field(default=None, repr=False)
    proxy_url: str | None = None

    @property
    def announced(self) -> bool:
        """Whether connections begin with a PROXY header: then a look by hand, without one, tells nothing."""
        return self.proxy_url is not None and self.proxy_url.endswith("announced")

    @property
    def files(self) -> tuple[str, ...]:
        """The files that have to be read before a connection can stand."""
        return tuple(file for file in (self.ssl_cafile, self.ssl_certfile, self.ssl_keyfile) if file)


class ClusterConnection:
    """A connection to `server` (host:port). It is made by the first `ask`, and of no use after one that failed.

    One thread at a time may use it; any may `interrupt`.
    """

    def __init__(self, server: str, credentials: Credentials, timeout_s: float) -> None:
        self._server = server
        self._credentials = credentials
        self._timeout_s = timeout_s
        self._interrupted = False
        self._net = NetworkSelector(client_id=CLIENT_ID)
        self._manager = KafkaConnectionManager(
            self._net,
            bootstrap_servers=[server],
            client_id=CLIENT_ID,
            receive_message_max_bytes=MAX_RESPONSE_BYTES,
            request_timeout_ms=round(timeout_s * 1000),
            socket_connection_setup_timeout_ms=round(timeout_s * 1000),
            **asdict(credentials),
        )
        [node] = self._manager.cluster.bootstrap_brokers()
        self._connection = self._manager.get_connection(node.node_id, refresh_metadata_on_err=False)

    def ask(self, request: Any) -> Any:
        """The response to a request, of kafka-python's message classes, in the newest version that both sides know.

        Raises SourceUnavailable, also when connection, TLS, SASL and answer together take longer than the time-out.
        """
        try:
            self._wait_out_throttle()
            future = self._connection.send_request(request)
            self._net.poll(timeout_ms=self._timeout_s * 1000, future=future)
        except Exception as error:  # a library that stumbles over a cluster is a cluster that cannot be read
            raise SourceUnavailable(f"{self._server}: {request.name}: {plain_words(error)}") from error
        if not future.is_done:
            fault = Fault("no_answer", self._reported(KafkaTimeoutError()), f"{ADDRESSES}, upstream.connect_timeout_ms")
            raise ConnectionFault(self._server, fault)
        if future.exception is not None:
            _let_go_of_sockets(future.exception)
            raise ConnectionFault(self._server, self._fault(future.exception, request)) from future.exception
        return future.value

    def _fault(self, error: BaseException, request: Any) -> Fault:
        who = self._credentials
        secured, logs_in = who.security_protocol.endswith("SSL"), who.sasl_mechanism is not None

        def look() -> Spoken:
            return spoken_at(self._server, secured) if not who.announced else Spoken.NOTHING_KNOWN

        if isinstance(error, IncompatibleBrokerVersion):
            return Fault("api_missing", self._not_offered(request), ADDRESSES)
        unreadable = isinstance(error, KafkaProtocolError) and not isinstance(error, KafkaConnectionError)
        if unreadable and (secured or look() is not Spoken.TLS):  # whose alert may come before its end
            return Fault("answer_malformed", f"its answer to {_named(request)} cannot be read", ADDRESSES)
        if isinstance(error, KafkaTimeoutError | RequestTimedOutError) or self._interrupted:
            return Fault("no_answer", self._reported(error), ADDRESSES)
        if isinstance(error, OSError) and who.files:
            files = ", ".join(f"upstream.admin.{name}" for name in ("ca_file", "certificate_file", "key_file"))
            return Fault("files_unusable", self._reported(error), files)
        logged_in = logs_in and self._connection.init_future.succeeded()
        return fault_of(
            error, self._reported(error), Who(secured, who.ssl_certfile is not None, logs_in, logged_in), look
        )

    def _wait_out_throttle(self) -> None:
        """A cluster with quotas may have throttled this connection at its last response."""
        while self._connection.connected and self._connection.paused:
            self._net.poll(timeout_ms=100)

    def _reported(self, error: BaseException) -> str:
        if isinstance(error, KafkaTimeoutError | RequestTimedOutError):
            return f"no answer within {self._timeout_s:g} s"
        text = plain_words(error)
        who = self._credentials
        if isinstance(error, OSError) and who.files:
            return f"{text}, with {', '.join(who.files)}"
        if who.sasl_mechanism and self._connection.parser and not self._connection.init_future.succeeded():
            # A node closes at once after it has said no, and kafka-python may lose the word before the end.
            return f"{text}, before {who.sasl_plain_username!r} was authenticated with {who.sasl_mechanism}"
        return text

    def _not_offered(self, request: Any) -> str:
        """Why a request cannot be sent: the node offers its API not at all, or in versions that we do not speak."""
        data = self._connection.broker_version_data
        lowest, highest = max(request.min_version, request._min_version or 0), request.max_version
        offered = (data.api_versions or {}).get(request.API_KEY) if data else None
        api = _named(request)
        if offered is None:
            return f"it does not offer the API {api}{_SINCE.get(api, '')}"
        return (
            f"it offers the API {api} in versions {offered[0]} to {offered[1]}, the proxy asks in {lowest} to {highest}"
        )

    def interrupt(self) -> None:
        """Let the `ask` that is under way in another thread fail, and all later ones."""
        self._interrupted = True
        with contextlib.suppress(RuntimeError):  # closed already
            self._net.call_soon_threadsafe(lambda: self._connection.close(KafkaConnectionError("stopped")))

    def close(self) -> None:
        """Let go of the socket."""
        self._manager.close()
        self._net.close()


def _named(request: Any) -> str:
    """The name of the API that a request of kafka-python's is of."""
    name: str = request.name
    return name.removesuffix("Request")


def _let_go_of_sockets(error: BaseException | None) -> None:
    """Close those that did not come to be connections: frames hold them, the error the frames, and these the error."""
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__context__
