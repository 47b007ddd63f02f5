"""The configuration file as frozen, strict models.

A string literal below a setting is its documentation: docs/reference/configuration.md is made from it.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator

from kafka_throttle.common.destinations import Destinations
from kafka_throttle.common.kinds import INT32_MAX, Many, Some, Text, Whole
from kafka_throttle.common.problems import Problem, Problems
from kafka_throttle.common.settings import Settings
from kafka_throttle.protocol.api_table import APIS
from kafka_throttle.protocol.identity.principal_rules import InvalidPrincipalRules, principal_rules
from kafka_throttle.protocol.identity.sasl_names import SUBJECT_CLAIMS, Claim
from kafka_throttle.proxy.config.kinds import (
    Bind,
    Ciphers,
    Count,
    CountsOfAddresses,
    CountsOfUsers,
    Extensions,
    File,
    FilePath,
    HostNames,
    IpNetwork,
    Microseconds,
    Name,
    Names,
    NamesOfUsers,
    Network,
    NodeHost,
    NodeIds,
    NodePlace,
    OauthClaim,
    Port,
    Ports,
    Server,
    SourceAddress,
    TokenUrl,
    Workers,
    is_advertisable,
    is_loopback,
    is_user_of_http,
    is_znode_path,
)
from kafka_throttle.proxy.config.reload import RESTART, RESTART_IF_ADDED
from kafka_throttle.proxy.relay.costs import cost_kind
from kafka_throttle.quotas.entities import Entity, plain_ip
from kafka_throttle.quotas.request_costs import Cost
from kafka_throttle.quotas.sources.entries import (
    ByteRate,
    ConnectionRate,
    EntitySettings,
    QuotaEntry,
    Rate,
    ThrottleConfig,
    WindowsConfig,
)
from kafka_throttle.quotas.sources.overlay import Entry

INSTANCE = re.compile("[A-Za-z0-9._-]{1,64}")
"""The name of a proxy in its records."""

TOPIC = re.compile("[A-Za-z0-9._-]{1,249}")
QUOTAS_TOPIC = "__kafka_throttle_quotas_"
"""The default topic of quotas, followed by the name of the virtual cluster."""
TOPIC_NAME = Text(
    "the name of a topic: 1 to 249 letters, digits, '.', '_' or '-'",
    lambda text: TOPIC.fullmatch(text) is not None and text not in (".", ".."),
)

API_KEYS = {api.name: api.key for api in APIS.values()}


class TokenEndpointConfig(Settings):
    """The endpoint that gives the proxy its tokens, by OAuth client credentials (RFC 6749, section 4.4)."""

    url: TokenUrl
    """The address of the endpoint. No HTTP proxy is used, and redirections are not followed."""

    client_id: Annotated[str, Text("a string that is not empty (numbers need quotes)", bool)]
    """The client id of the proxy at the endpoint."""

    client_secret_file: File
    """A file that holds the client's secret and nothing else; read for each request."""

    scope: Annotated[str | None, Text("a string that is not empty", bool)] = None
    """The scope to ask for, if the endpoint needs one."""

    ca_file: FilePath = None
    """Certificates to trust there, as PEM. Without this file, the certificates of the system are trusted."""


class CredentialsConfig(Settings):
    """The identity that the proxy itself uses at the cluster, to learn nodes and to read or write quotas."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """As in Kafka's clients. Only for connections of the proxy's own: for those of clients see `upstream.tls`."""

    ca_file: FilePath = None
    """Certificates to trust, as PEM: each of them, as with a truststore in Java. A node's certificate, or an authority
    of its chain, must be among them. Without this file, the certificates of the system are trusted."""

    certificate_file: FilePath = None
    """The proxy's own certificate, as PEM, which it shows to nodes that ask for one (mTLS), also beside SASL."""

    key_file: FilePath = None
    """Its key, as PEM without a password."""

    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] | None = None
    """How the proxy logs in. OAUTHBEARER needs `token_file` or `token_endpoint`, the others need `username`
    and `password_file`."""

    username: Annotated[str | None, Text("a string that is not empty (numbers need quotes)", bool)] = None
    """Its user name."""

    password_file: FilePath = None
    """A file that holds its password and nothing else; read for each login. If the cluster refuses the password, the
    last one that it accepted is used. If it refuses both, the proxy tries again after 5 s, 60 s, then every 15 minutes,
    or when the file has another password, so that no account is locked."""

    token_file: FilePath = None
    """A file that holds a token for OAUTHBEARER and nothing else; read for each login. Another program must renew
    it."""

    token_endpoint: TokenEndpointConfig | None = None
    """Where the proxy gets its tokens for OAUTHBEARER. It gets the next token before one expires."""

    sasl_extensions: Extensions = Field({})
    """SASL extensions to send with a token (KIP-342), like `logicalCluster` and `identityPoolId` of Confluent Cloud."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        problems = []
        password, tokens = (self.username, self.password_file), (self.token_file, self.token_endpoint)
        is_by_token = self.sasl_mechanism == "OAUTHBEARER"
        has_login = any((self.sasl_mechanism, *password, *tokens))
        if self.security_protocol.startswith("SASL") and not has_login:
            problems.append(f"expected sasl_mechanism, as security_protocol is {self.security_protocol}, got nothing")
        elif has_login and not self.security_protocol.startswith("SASL"):
            protocols = "SASL_PLAINTEXT or SASL_SSL"
            problems.append(f"expected security_protocol {protocols} with a login, got {self.security_protocol}")
        elif is_by_token and (any(password) or all(tokens) or not any(tokens)):
            problems.append("expected token_file or token_endpoint alone with sasl_mechanism OAUTHBEARER")
        elif not is_by_token and any(tokens):
            problems.append("expected sasl_mechanism OAUTHBEARER with token_file or token_endpoint")
        elif not is_by_token and any((self.sasl_mechanism, *password)) and not all((self.sasl_mechanism, *password)):
            problems.append("expected sasl_mechanism, username and password_file together")
        if self.sasl_extensions and not is_by_token:
            problems.append("expected sasl_mechanism OAUTHBEARER with sasl_extensions")
        if (self.certificate_file is None) != (self.key_file is None):
            problems.append("expected certificate_file and key_file together")
        return self.unless(problems)


class UpstreamTlsConfig(Settings):
    """TLS between the proxy and the nodes, for connections of clients; without this section they are plain."""

    ca_file: FilePath = None
    """Certificates to trust, as PEM: each of them, as with a truststore in Java. A node's certificate, or an authority
    of its chain, must be among them. Without this file, the certificates of the system are trusted."""

    certificate_file: FilePath = None
    """The proxy's certificate chain, as PEM. Nodes see this identity for every client."""

    key_file: FilePath = None
    """Its key, as PEM. Not needed if `certificate_file` holds the key, too."""

    key_password_file: FilePath = None
    """A file that holds the password of an encrypted key and nothing else."""

    endpoint_identification: bool = True
    """`false`: a node's certificate may be for any name, as with an empty `ssl.endpoint.identification.algorithm`."""

    min_version: Literal["TLSv1.2", "TLSv1.3"] = "TLSv1.2"
    """The lowest version of TLS that is accepted."""

    ciphers: Ciphers = None
    """The ciphers for TLS 1.2, as a list of OpenSSL. Default: AES and ChaCha20 with ephemeral keys."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.certificate_file is None and (self.key_file or self.key_password_file):
            return self.unless(["expected certificate_file with key_file or key_password_file, got nothing"])
        return self


class UpstreamConfig(Settings):
    """The cluster behind a virtual cluster."""

    bootstrap_servers: Some[Server]
    """Nodes to ask first for the cluster's members, each as host:port (IPv6 in brackets). If none of them responds, the
    proxy asks the other nodes that it has learned since its start."""

    node_networks: Annotated[Many[NodePlace], RESTART] = ()
    """Where nodes may be: networks, host names, and ends of host names like `.kafka.example.com`. The proxy never
    connects to a node that the cluster advertises elsewhere, and sends no login there. Default: anywhere."""

    connect_timeout_ms: Annotated[int, Whole(100, 300_000)] = 10_000
    """The timeout for connecting to a node, TLS included, in milliseconds."""

    metadata_refresh_s: Annotated[int, Whole(1, 3_600)] = 30
    """How often the proxy asks the cluster for its nodes, in seconds. A node that a response names and the
    proxy does not know is looked for at once."""

    default_partitions: Annotated[int | None, Whole(1, INT32_MAX)] = None
    """How many partitions a topic that is created without a number counts for `controller_mutation_rate`. Default: the
    `num.partitions` of the cluster, or 1 if it does not tell."""

    connections_per_second: Rate = None
    """The most connections per second that are opened to each node for clients, evenly spaced. More wait, at most for
    `connect_timeout_ms`; users take turns, or addresses where no user is known. Default: no bound."""

    source_addresses: Many[SourceAddress] = ()
    """Local IP addresses that connections of clients are opened from, in turn. For nodes of the other IP version, and
    by default, the system chooses."""

    send_proxy_protocol: Annotated[bool, RESTART] = False
    """`true`: tell nodes the address of each client, in a header of the PROXY protocol (version 2). Kafka's brokers do
    not accept it; a load balancer in front of them may. Connections of the proxy's own send LOCAL."""

    tls: UpstreamTlsConfig | None = None
    """TLS between the proxy and the nodes, for connections of clients; `{}` for all its defaults."""

    admin: Annotated[CredentialsConfig, RESTART] = CredentialsConfig()
    """The identity that the proxy itself uses at the cluster."""

    _virtual_cluster: str = PrivateAttr("")
    _listeners: tuple[tuple[str, range], ...] = PrivateAttr(())

    def belong(self, virtual_cluster: str, listeners: tuple[tuple[str, range], ...]) -> None:
        """Note its virtual cluster, and the addresses and ports at which this proxy listens: no node is there."""
        self._virtual_cluster, self._listeners = virtual_cluster, listeners

    @property
    def virtual_cluster(self) -> str:
        """The name of the virtual cluster that it is behind."""
        return self._virtual_cluster

    @property
    def destinations(self) -> Destinations:
        """Where nodes may be."""
        return Destinations(self._listeners, self.node_networks)


class CapsConfig(Settings):
    """Bytes per second of all clients together. Above it the next reads wait; no client counts as throttled."""

    ingress_bytes_per_s: ByteRate = None
    """From clients. Default: no cap."""

    egress_bytes_per_s: ByteRate = None
    """From nodes to clients. Default: no cap."""


class ConnectionLimitsConfig(Settings):
    """How fast connections may come, and how many there may be. Above it new ones wait; none is refused.

    A listener that is above it accepts one more connection, which waits; the others stay in the system's backlog.
    """

    max_connection_creation_rate: ConnectionRate = None
    """Connections per second, as the broker setting `max.connection.creation.rate`. Default: no limit. With 0 each
    waits for one window."""

    max_connections: Annotated[int | None, Whole(1, INT32_MAX)] = None
    """How many at a time, as the broker setting `max.connections`. Default: no limit."""


class ClusterConnectionsConfig(Settings):
    """What each address and each user may have in one virtual cluster, over all its listeners.

    Rates of addresses are quotas: `connection_creation_rate`.
    """

    max_connections_per_ip: Count = None
    """Connections at a time from each address; one more is closed at once. Default: no limit."""

    max_connections_per_ip_overrides: CountsOfAddresses = Field({})
    """The same for single addresses."""

    max_connections_per_user: Count = None
    """Connections at a time of each authenticated user; one more is closed at once. Default: no limit."""

    max_connections_per_user_overrides: CountsOfUsers = Field({})
    """The same for single users; clients that are not authenticated are ANONYMOUS here."""

    ip_refusal: Literal["close", "wait"] = "close"
    """What to do with a connection above its address's connection rate. It is held unread for at most one window. Then,
    with `close`, it is closed, as by a broker; with `wait` it is admitted if the rate allows it by then (KIP-612), else
    closed, and later connections of the address wait behind it."""

    max_held_per_ip: ClassVar[int] = 200
    """How many connections of one address (for IPv6, of one /64 network) are held at a time; one more is reset at
    once. A tenth of what is held of all: no address takes the place of others."""

    ipv4_prefix: Annotated[int, Whole(1, 32)] = 32
    """Prefix length: addresses within one prefix share a limit, except those with a quota or an override of their
    own."""

    ipv6_prefix: Annotated[int, Whole(1, 128)] = 128
    """The same for IPv6, where one customer or one machine commonly has 64 bits."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        spellings: dict[str, str] = {}
        if problem := self._nobody_served():
            return self.unless([problem])
        return self.unless(
            f"expected each address once in max_connections_per_ip_overrides, got {spellings[plain_ip(address)]!r} "
            f"and {address!r}"
            for address in self.max_connections_per_ip_overrides
            if spellings.setdefault(plain_ip(address), address) != address
        )

    def _nobody_served(self) -> Problem | None:
        """The setting that closes all connections."""
        for setting in ("max_connections_per_ip", "max_connections_per_user"):
            if getattr(self, setting) == 0 and not getattr(self, f"{setting}_overrides"):
                return Problem(setting, f"expected at least 1 without {setting}_overrides, got 0: nobody is served")
        return None


class ServerTlsConfig(Settings):
    """TLS of a listener; without this section it is plain. Files are read again when they change."""

    certificate_file: File
    """The listener's certificate chain, as PEM."""

    key_file: FilePath = None
    """Its key, as PEM. Not needed if `certificate_file` holds the key, too."""

    key_password_file: FilePath = None
    """A file that holds the password of an encrypted key and nothing else."""

    min_version: Literal["TLSv1.2", "TLSv1.3"] = "TLSv1.2"
    """The lowest version of TLS that is accepted."""

    ciphers: Ciphers = None
    """The ciphers for TLS 1.2, as a list of OpenSSL. Default: AES and ChaCha20 with ephemeral keys."""


class ListenerTlsConfig(ServerTlsConfig):
    """TLS between clients and a listener; without this section it is plain. Files are read again when they change."""

    client_auth: Literal["none", "requested", "required"] = "none"
    """Whether clients show a certificate, as `ssl.client.auth`. With `requested` those without one are ANONYMOUS."""

    ca_file: FilePath = None
    """Certificates to trust, as PEM: each of them, as with a truststore in Java. A client's certificate, or an
    authority of its chain, must be among them."""

    principal_mapping_rules: Annotated[str, Text("a string that is not empty", bool)] = "DEFAULT"
    """How the subject of a certificate becomes a user, as `ssl.principal.mapping.rules`. If no rule applies, or the
    rules take more than 0.2 s of processor time, the connection is closed."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        problems = []
        if (self.client_auth == "none") != (self.ca_file is None):
            problems.append("expected ca_file with client_auth 'requested' or 'required', and only then")
        if self.client_auth == "none" and self.principal_mapping_rules != "DEFAULT":
            problems.append("expected client_auth 'requested' or 'required' with principal_mapping_rules, got 'none'")
        try:
            if not principal_rules(self.principal_mapping_rules).rules:
                problems.append("expected a rule in principal_mapping_rules, got none: no client would be let in")
        except InvalidPrincipalRules as error:
            problems.append(f"expected rules in principal_mapping_rules that mean the same to Java and to us: {error}")
        return self.unless(problems)


class ListenerAddress(Settings):
    """The addresses of a listener and of its nodes."""

    name: Annotated[Name, RESTART]
    """The name of this listener in logs and metrics."""

    bind: Annotated[Bind, RESTART] = "0.0.0.0"
    """The local address of all its ports."""

    port: Annotated[Port, RESTART]
    """The bootstrap port."""

    advertised_host: Annotated[str, Text("a host name or IP address that clients can reach", is_advertisable), RESTART]
    """The host that clients are told for every node. May be left out where `bind` is one address."""

    node_ids: Annotated[Many[NodeIds], RESTART] = ()
    """Node ids, as numbers or ranges like "0-5"; in this order they take the ports after `port`, one each."""

    spare_ports: Annotated[Many[Ports], RESTART] = ()
    """Ports, as numbers or ranges, for nodes whose id is not in `node_ids`. A node gets port number (id modulo
    count); if that is taken, the next free one."""

    spare_ports_kept_s: ClassVar[int] = 300
    """How long a spare port stays reserved for a node that has left the cluster, in seconds: clients keep their
    metadata for five minutes. If no other port is free, a new node gets it at once."""

    advertised_node_host: Annotated[NodeHost, RESTART] = None
    """A host name for each node instead of a port, like b{node_id}.kafka.example.com: with `tls` only, as clients
    say there which name they want (SNI). All connect to `port`. `advertised_host`, and each name in the certificate
    without a wildcard, is for bootstrapping."""

    @model_validator(mode="before")
    @classmethod
    def _advertise_bind(cls, data: Any) -> Any:
        if isinstance(data, dict) and "advertised_host" not in data:
            bind = data.get("bind")
            if isinstance(bind, str) and is_advertisable(bind):
                return {**data, "advertised_host": bind}
        return data

    def port_ranges(self) -> list[range]:
        """All its ports."""
        return [range(self.port, self.port + 1 + sum(map(len, self.node_ids))), *self.spare_ports]

    def ports(self) -> dict[int, int]:
        """The port of each id in `node_ids`."""
        ids = [node_id for ids in self.node_ids for node_id in ids]
        return dict(zip(ids, range(self.port + 1, self.port + 1 + len(ids)), strict=True))

    def spares(self) -> list[int]:
        """The single ports of `spare_ports`, in order."""
        return [port for ports in self.spare_ports for port in ports]


class ListenerConfig(ListenerAddress):
    """The ports that clients of one virtual cluster connect to: one for bootstrapping, one for each node."""

    require_server_name: bool = False
    """With `advertised_node_host`. `true`: a client that sends no name is closed. `false`: it is served as one that
    bootstraps, with a line in the log. Java sends no name for a host name without a dot or with an
    underscore (`check` warns of those); no client does for an IP address."""

    tls: Annotated[ListenerTlsConfig | None, RESTART_IF_ADDED] = None
    """TLS between clients and this listener. Adding or removing this section needs a restart."""

    proxy_protocol: Literal["off", "optional", "required"] = "off"
    """Whether load balancers send the client's address in a header of the PROXY protocol (version 1 or 2). It is then
    the client's address for quotas, logs and metrics. `required`: connections without it are closed."""

    trusted_networks: Many[IpNetwork] = Field((), validate_default=True)
    """Where load balancers connect from, as addresses or networks like 10.0.0.0/8; only these may send such a header.
    With `optional`, all others are clients."""

    caps: CapsConfig = CapsConfig()
    """The caps for all connections of this listener together."""

    connections: ConnectionLimitsConfig = ConnectionLimitsConfig()
    """How fast connections may come through this listener, and how many."""

    @field_validator("trusted_networks")
    @classmethod
    def _trusts_somebody(cls, networks: tuple[Network, ...], others: ValidationInfo) -> tuple[Network, ...]:
        """Without them, anyone could forge a client address."""
        mode = others.data.get("proxy_protocol", "off")
        if mode != "off" and not networks:
            problem = f"expected the networks of load balancers with proxy_protocol {mode!r}, got nothing"
            raise Problems([Problem("", problem)])
        return networks


class RequestCost(Settings):
    """What one kind of request costs a node, for `request_percentage`."""

    api: Annotated[str, Text("the name of a Kafka API, like Produce", lambda name: name in API_KEYS)]
    """The API, by the name that Kafka's message schemas give it. JoinGroup, LeaveGroup, SyncGroup and the heartbeats of
    newer kinds of groups cost what Heartbeat costs, ShareFetch what Fetch costs: they cannot be pinned apart."""

    base_us: Microseconds
    """Thread time of each request in microseconds."""

    per_kib_us: Microseconds = 0.0
    """Thread time of each KiB of the request and its response, in microseconds."""

    @field_validator("api")
    @classmethod
    def _has_its_own_cost(cls, name: str) -> str:
        kind = cost_kind(API_KEYS[name])
        if kind != API_KEYS[name]:
            problem = f"expected {APIS[kind].name}, whose cost is also that of {name}, got {name!r}"
            raise Problems([Problem("", problem)])
        return name


class EnsembleConfig(Settings):
    """A ZooKeeper ensemble, and the identity that the proxy uses there."""

    servers: Many[Server] = ()
    """Its servers, each as host:port (IPv6 in brackets)."""

    username: Annotated[str | None, Text("a string that is not empty (numbers need quotes)", bool)] = None
    """The user of the scheme `digest`, or of SASL with `sasl`."""

    password_file: FilePath = None
    """A file that holds its password and nothing else; read for each login, as that of `upstream.admin`."""

    sasl: bool = False
    """`true`: log in by SASL DIGEST-MD5 instead of the scheme `digest`."""

    creator_only: bool = False
    """`true`: only the proxy's user may change the znodes that it creates, and only it may read those of users (they
    may hold SCRAM secrets)."""

    tls: bool = False
    """`true`: speak TLS."""

    ca_file: FilePath = None
    """Certificates to trust, as PEM."""

    certificate_file: FilePath = None
    """The proxy's own certificate, as PEM."""

    key_file: FilePath = None
    """Its key, as PEM without a password."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        problems = []
        if (self.username is None) != (self.password_file is None):
            problems.append("expected username and password_file together")
        if (self.sasl or self.creator_only) and self.username is None:
            problems.append("expected username and password_file with sasl or creator_only")
        if (self.certificate_file is None) != (self.key_file is None):
            problems.append("expected certificate_file and key_file together")
        if not self.tls and (self.ca_file or self.certificate_file):
            problems.append("expected tls: true with certificates")
        return self.unless(problems)


class ZooKeeperConfig(EnsembleConfig):
    """An ensemble that holds quotas in Kafka's own layout."""

    chroot: Annotated[str | None, Text("a path like /kafka-throttle/main", is_znode_path)] = None
    """The parent of `config`. Default: `/kafka-throttle/` and the virtual cluster's name. `/`: Kafka's own root."""

    session_timeout_ms: ClassVar[int] = 10_000
    """The session timeout that the proxy asks the ensemble for, in milliseconds; the ensemble has the last word."""

    resync_s: ClassVar[int] = 30
    """How often everything is read again, in case a notification was missed, in seconds."""


class FleetConfig(Settings):
    """Several instances of the proxy that divide each limit of this virtual cluster (docs/reference/fleet.md)."""

    path: Annotated[str | None, Text("a path like /kafka-throttle/main/fleet", is_znode_path)] = None
    """The znode below which each instance has a znode with its claims; the same for all instances. Default:
    `/kafka-throttle/`, the virtual cluster's name and `/fleet`, or `fleet` below the chroot of `quotas.zookeeper`."""

    zookeeper: EnsembleConfig = EnsembleConfig()
    """The ensemble of these znodes. Without `servers` it is that of `quotas.zookeeper`."""

    topic: Annotated[str | None, TOPIC_NAME] = None
    """A topic of the cluster for the claims, instead of ZooKeeper, like `__kafka_throttle_claims_main`; the same
    for all instances, and for nothing else."""

    session_timeout_ms: Annotated[int, Whole(4_000, 20_000)] = 6_000
    """After how long without a sign of life an instance counts as gone, in milliseconds; its share is divided then.
    With ZooKeeper, a time that its servers grant (`minSessionTimeout`, `maxSessionTimeout`)."""


class QuotasConfig(Settings):
    """Who may use how much of each node, and who may change that."""

    source: Annotated[Literal["file", "zookeeper", "upstream", "topic"], RESTART] = "file"
    """Where quotas come from: `file` is this file, overlaid by `state_file`; `upstream` is the cluster itself; `topic`
    is a compacted topic in it."""

    entries: Many[QuotaEntry] = ()
    """The quotas of source `file`, one entry for each entity. Which one applies follows Kafka's order of precedence."""

    when_unknown: Literal["serve", "refuse"] = "serve"
    """What to do while the quotas are not known: their source has not been read, and there are no last good quotas.
    `serve`: no client is throttled, and the log says so every minute. `refuse`: each connection is closed. The proxy is
    not ready in either case."""

    state_file: Annotated[FilePath, RESTART] = None
    """With source `file`: keeps changes made through Kafka's own API, which are refused without it. With the others:
    keeps the last good quotas, for a start while their source is down."""

    zookeeper: Annotated[ZooKeeperConfig, RESTART] = ZooKeeperConfig()
    """The ensemble of source `zookeeper`."""

    topic: Annotated[str | None, TOPIC_NAME, RESTART] = None
    """The topic of source `topic`. Default: `__kafka_throttle_quotas_` and the virtual cluster's name."""

    poll_interval_ms: Annotated[int, Whole(100, 3_600_000), RESTART] = 2_000
    """How often source `upstream` is read, in milliseconds."""

    windows: Annotated[WindowsConfig, RESTART] = WindowsConfig()
    """The windows that use is measured in."""

    request_costs: Many[RequestCost] = ()
    """Fixed upper limits of what requests cost. For the other APIs the proxy learns the cost from how fast each node
    responds. Until it has learned it, and for APIs whose response may wait, built-in costs apply: for Produce, Fetch,
    Heartbeat and others; for any other API 60 us, and 0.25 us for each KiB."""

    instances: Annotated[int, Whole(1, 1_000), RESTART] = 1
    """How many proxies serve this cluster with the same quotas. With more than one, or with a `fleet`, source `file`
    refuses changes through Kafka's API, as each proxy would have its own. An instance of a fleet that starts while
    ZooKeeper is down divides each limit by this number until it knows the others."""

    admin_users: Names = ()
    """Users who may describe and alter all quotas with Kafka's own tools."""

    admin_listeners: Names = ()
    """Names of listeners whose clients may do that, whatever their user is."""

    describe_users: Names = ()
    """Users who may describe all quotas. Each user may describe their own."""


class SaslConfig(Settings):
    """How the proxy reads SASL logins. Users that the nodes accept have their own quotas."""

    required: bool = False
    """`true`: the nodes require SASL of clients. Before a login has succeeded nothing else passes, and nothing is
    charged. `false`: clients are ANONYMOUS until then. Default: `true` if `upstream.admin` logs in by SASL."""

    user_names: NamesOfUsers = Field({})
    """Users by the names that logins show, like `{AKIAIOSFODNN7EXAMPLE: billing}`; all other logins are the user that
    they show. This holds for every mechanism. The name is that of PLAIN, SCRAM or a token; for Amazon MSK the id of the
    access key, for Event Hubs the `SharedAccessKeyName`. A login without a name shows `?` and its mechanism, like
    `?GSSAPI`. `?OAUTHBEARER` (and `?AWS_MSK_IAM`) also stands for all access keys that are not listed,
    `$ConnectionString` for all such keys of Event Hubs. Quotas, limits and rights are those of the user that is given
    here. A change applies to a connection at its next login."""

    oauth_claims: Many[OauthClaim] = ()
    """The claims of bearer tokens that name the user; the first one that a token has counts. Default: `sub`. As
    `sasl.oauthbearer.sub.claim.name` of the nodes, or Strimzi's `oauth.username.claim` and
    `oauth.fallback.username.claim`. `{claim: client_id, prefix: service-account-}` puts a prefix before the value. For
    OAUTHBEARER, and for tokens sent by PLAIN as the password of `$accessToken`."""

    GONE: ClassVar[Mapping[str, str]] = {
        "principals": "write user_names, like {'?GSSAPI': the name of the user}",
        "subject_claim": "write oauth_claims: [the name of the claim]",
    }

    def claims(self) -> tuple[Claim, ...]:
        """The claims that name the user, the first one first."""
        return self.oauth_claims or SUBJECT_CLAIMS


class VirtualClusterConfig(Settings):
    """A Kafka cluster as clients of the proxy see it."""

    name: Annotated[Name, RESTART]
    """The name of this virtual cluster in logs and metrics."""

    upstream: UpstreamConfig
    """The cluster behind it."""

    listeners: Annotated[Some[ListenerConfig], RESTART_IF_ADDED]
    """Where clients connect."""

    quotas: QuotasConfig = QuotasConfig()
    """Who may use how much of each node."""

    caps: CapsConfig = CapsConfig()
    """The caps for all connections of all its listeners together."""

    throttle: ThrottleConfig = ThrottleConfig()
    """How a client that is over its quota is slowed down."""

    connections: ClusterConnectionsConfig = ClusterConnectionsConfig()
    """What each address and each user may have."""

    sasl: SaslConfig = SaslConfig()
    """Users that log in by SASL. Open connections keep the settings they began with."""

    fleet: Annotated[FleetConfig | None, RESTART] = None
    """The other instances that serve this virtual cluster. Without it, each instance enforces whole limits."""

    @property
    def is_one_of_several(self) -> bool:
        """Whether other instances serve clients with the same quotas."""
        return self.fleet is not None or self.quotas.instances > 1

    @model_validator(mode="before")
    @classmethod
    def _require_sasl_if_proxy_uses_it(cls, data: Any) -> Any:
        if isinstance(data, dict):
            upstream, sasl = data.get("upstream"), data.get("sasl", {})
            admin = upstream.get("admin") if isinstance(upstream, dict) else None
            protocol = admin.get("security_protocol") if isinstance(admin, dict) else None
            if isinstance(sasl, dict) and "required" not in sasl and protocol in ("SASL_PLAINTEXT", "SASL_SSL"):
                return {**data, "sasl": {**sasl, "required": True}}
        return data

    def client_protocol(self, listener: ListenerConfig) -> str:
        """What clients of a listener have to set as `security.protocol`."""
        transport = "PLAINTEXT" if listener.tls is None else "SSL"
        return f"SASL_{transport}" if self.sasl.required else transport


class MetricsConfig(Settings):
    """The HTTP listener for Prometheus and for health probes."""

    bind: Annotated[Bind, RESTART] = "127.0.0.1"
    """The local address of /metrics, /livez and /readyz."""

    port: Annotated[Port, RESTART] = 9404
    """Their port."""

    top_entities: Annotated[int, Whole(0, 1_000)] = 20
    """How many entities have series of their own, for each node and quota type: this many with the highest use, and as
    many that are throttled now or were throttled for longest. The rest are summed up."""

    latency_sample: ClassVar[int] = 64
    """The added latency is measured in one of so many turns of the event loop: enough for a percentile each minute, and
    below a hundredth of the processor's time."""

    username: Annotated[str | None, Text("a name without colons (numbers need quotes)", is_user_of_http)] = None
    """The user that requests for /metrics must name (HTTP Basic). Without it /metrics is for everybody; /livez and
    /readyz always are."""

    password_file: FilePath = None
    """A file that holds the password of `username` and nothing else; read again when it changes."""

    hosts: HostNames = ()
    """Host names that requests for /metrics may use, besides those of this machine. Default: any name; but on a
    loopback address without a password only those of this machine (this protects against DNS rebinding)."""

    tls: Annotated[ServerTlsConfig | None, RESTART_IF_ADDED] = None
    """TLS; without this section the listener is plain. Adding or removing this section needs a restart."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        one_alone = (self.username is None) != (self.password_file is None)
        return self.unless(["expected username and password_file together"] if one_alone else [])


class AdminConfig(Settings):
    """The HTTP listener for operators: the status page, and the JSON API of `kafka-throttle explain` and `top`."""

    bind: Annotated[Bind, RESTART] = "127.0.0.1"
    """The local address of the API. One that is not loopback needs `token_file`, and should have `tls`."""

    port: Annotated[Port, RESTART] = 9405
    """The port of the API."""

    token_file: Annotated[FilePath, RESTART] = None
    """A file that holds the token that requests must carry; read again when it changes. Browsers ask for it as a
    password, for any user."""

    write_token_file: FilePath = None
    """A file that holds another token, which may also change something. Without it, no request may."""

    hosts: HostNames = ()
    """Host names that requests with a token may use, besides those of this machine and `bind`. Default: any name."""

    tls: Annotated[ServerTlsConfig | None, RESTART_IF_ADDED] = None
    """TLS; without this section the listener is plain. Adding or removing this section needs a restart."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        problems = []
        if self.token_file is None and not is_loopback(self.bind):
            problems.append(f"expected token_file, as others than this machine reach {self.bind}, got nothing")
        if self.token_file is None and self.hosts:
            problems.append("expected token_file with hosts: without a token only this machine may ask, got nothing")
        return self.unless(problems)


class LimitsConfig(Settings):
    """Bounds of memory and sockets."""

    max_frame_bytes: Annotated[int, Whole(1_024, INT32_MAX)] = 104_857_600
    """The largest request in bytes, as a node's socket.request.max.bytes; a larger one is refused."""

    max_response_bytes: ClassVar[int] = INT32_MAX
    """The largest response in bytes: that of the protocol. Responses are streamed: this guards against corrupt sizes,
    not memory."""

    max_in_flight: ClassVar[int] = 1_000
    """Requests in flight on one connection; at this number no more are read until a response has come. Clients have
    five to a few hundred."""

    write_buffer_bytes: ClassVar[int] = 262_144
    """Bytes that may wait in one direction of one connection; above it the other side is not read. The same bound holds
    for what is kept of its requests in flight: responses of the proxy that wait for their turn, client-ids above 1 KiB,
    notes on topics to be created or deleted. Above it no more requests are read until all have responses. It is what
    one read may bring: less would be slower, more would only be memory."""

    max_connections: Annotated[int, Whole(1, 1_000_000)] = 10_000
    """Sockets of clients in this process, connected, held, on their way in or out; one more is closed at once. Each
    takes two file descriptors: there are fewer where the system's hard limit of those (`ulimit -Hn`) says so, with a
    line in the log. To have connections wait instead, set a smaller `connections.max_connections`."""

    max_http_connections: ClassVar[int] = 32
    """The most connections to each of the HTTP listeners, `metrics` and `admin`. If there is one more, the oldest
    connection that waits for its peer is closed, of the address (for IPv6, the /64 network) with the most of these. If
    a request is under way on all, the address with the most connections loses its oldest; if the new connection's
    address would then have as many, the new one is closed. So many descriptors are reserved for each of the two
    listeners. A few scrapers and some operators have one each."""

    http_idle_timeout_ms: ClassVar[int] = 30_000
    """How long such a connection may take until its first or its next request is complete, in milliseconds."""

    max_held_connections: ClassVar[int] = 2_000
    """How many connections above their address's rate are held at a time, of all addresses; one more is reset at
    once. With several workers, in each."""

    first_byte_timeout_ms: ClassVar[int] = 60_000
    """How long a client may stay connected without sending anything, in milliseconds. Every client sends ApiVersions or
    Metadata at once; some open a second connection before they need it."""

    request_timeout_ms: Annotated[int, Whole(0, INT32_MAX)] = 120_000
    """How long a request may take from its first byte to its last, in milliseconds; 0: no limit. Time in which the
    client is not read, because it is throttled or the node takes no more, does not count."""

    idle_timeout_ms: Annotated[int, Whole(0, INT32_MAX)] = 600_000
    """After how long without a request a connection is closed, in milliseconds, as by a node's connections.max.idle.ms;
    0: never. Not while a response is due or the client is throttled."""

    unread_timeout_ms: ClassVar[int] = 600_000
    """How long a client may read nothing while responses wait for it, in milliseconds. Progress is measured by TCP
    acknowledgements: 3 bytes/s suffice in a network, some 100 on the same machine."""

    proxy_header_timeout_ms: ClassVar[int] = 5_000
    """How long a load balancer may take until its PROXY header is complete, in milliseconds; with `optional`, until its
    first bytes. It sends it in the first packet."""

    max_proxy_headers: ClassVar[int] = 1_000
    """Connections of each listener that have not sent their PROXY header yet; one more is closed at once. With several
    workers, at each."""

    handshake_timeout_ms: ClassVar[int] = 10_000
    """How long a TLS handshake with a client may take, in milliseconds. Clients wait about as long."""

    max_handshakes: ClassVar[int] = 1_000
    """TLS handshakes of each listener that are under way. If there is one more, the address with the most loses its
    oldest, or the new one if it is from there. They are computed in threads, one for each processor, about 1 ms
    each: more would take longer than clients wait. With several workers, in each."""

    max_sensors: Annotated[int, Whole(16, 10_000_000), RESTART] = 100_000
    """The most sensors of each virtual cluster, one for each entity, quota type and node; above it, new clients of a
    default quota share one."""

    drain_s: Annotated[int, Whole(0, 3_600)] = 10
    """The longest time that a process waits for responses when it ends, in seconds. If other processes accept the
    clients meanwhile (after SIGUSR2, with `drain.lame_duck_s`, or with another process at the same ports), the closing
    of connections is spread over this time; otherwise each is closed at once, or when its requests have responses."""


class DrainConfig(Settings):
    """The end of the process, after SIGTERM. `limits.drain_s` bounds its last step."""

    lame_duck_s: Annotated[int, Whole(0, 3_600)] = 0
    """How long the proxy still accepts connections after SIGTERM, in seconds, while /readyz says that it is not ready:
    so load balancers send no more clients before the ports are closed. Leave it at 0 if there is no other proxy: any
    other value says that others accept the clients, and closing connections is then spread over `limits.drain_s`."""


class RestartConfig(Settings):
    """How another process takes over from this one without a refused connection: docs/reference/operations.md."""

    successor_timeout_s: ClassVar[int] = 60
    """After SIGUSR2: how long the new process may take until it accepts connections, in seconds. After that it is
    ended, and this one goes on. A start takes one or two; a source of quotas that is down takes some more."""

    reuse_port: Annotated[bool, RESTART] = False
    """`true`: other processes that have this setting, too, may listen at the same ports, also those of `metrics` and
    `admin` (SO_REUSEPORT): so the next process can start before this one stops."""

    sensors_file: FilePath = None
    """A file in which a process that stops saves its sensors for the next one on the same machine. Without it, or after
    a crash, each client begins with a full burst. Not needed for SIGUSR2."""


class TraceConfig(Settings):
    """Every operation on the sensors of some entities, to the ms. Much data: use it for a while only."""

    entities: Many[EntitySettings] = ()
    """The entities: sensors with these names, or of a quota that is set on exactly this entity."""

    events_per_second: ClassVar[int] = 10_000
    """The most operations per second; the others are dropped, counted, and recorded as a gap. More than one process
    serves of a traced entity. With several workers, in each."""

    total_mib: ClassVar[int] = 1024
    """The most MiB of trace; above it the oldest files are deleted. With several workers, of each."""


class UsageTopicConfig(CredentialsConfig):
    """A Kafka topic that also gets each line of a file when the file is complete: docs/reference/records.md."""

    bootstrap_servers: Some[Server]
    """Nodes to ask first for the cluster's members, each as host:port (IPv6 in brackets)."""

    GONE: ClassVar[Mapping[str, str]] = {"compression": "batches are always compressed by gzip: remove it"}

    topic: Annotated[str, TOPIC_NAME]
    """Its name. Create it first: a cluster that creates topics automatically gives it its defaults."""


class UsageConfig(Settings):
    """Records of what every client uses, written to files for `kafka-throttle usage`. Off without a directory."""

    directory: FilePath = None
    """Where complete files appear. It is created if it is missing, and must have mode 0700."""

    instance: Annotated[
        str | None,
        Text(
            "1 to 64 letters, digits, dots, underscores and hyphens (numbers need quotes)",
            lambda text: INSTANCE.fullmatch(text) is not None,
        ),
    ] = None
    """The name of this proxy in the records; each proxy needs its own. Default: the host name."""

    window_s: Annotated[int, Whole(1, 3_600)] = 10
    """The length of a record in seconds. Windows start at multiples of it (UTC)."""

    max_clients: ClassVar[int] = 100_000
    """The most clients of a virtual cluster in a window; the others are counted as `<overflow>` of their user. As many
    as the default of `limits.max_sensors`."""

    file_mib: ClassVar[int] = 64
    """The size in MiB at which a file is complete: what a reader takes at once."""

    file_s: Annotated[int, Whole(1, 86_400)] = 60
    """A file is also complete at this age, in seconds."""

    total_mib: Annotated[int, Whole(1, 1_048_576)] = 4096
    """The most MiB of records; above it the oldest files are deleted."""

    keep_s: Annotated[int, Whole(3_600, INT32_MAX)] = 1_209_600
    """The age in seconds at which files are deleted."""

    keep_at_least_s: ClassVar[int] = 3_600
    """No file that is younger than this many seconds is deleted, however many there are: a reader that comes each hour
    finds all."""

    queue_records: Annotated[int, Whole(1_000, 10_000_000)] = 100_000
    """The most records that wait for the disk; the others are dropped, counted, and recorded as a gap."""

    GONE: ClassVar[Mapping[str, str]] = {"fsync": "files are always synced: remove it"}

    trace: TraceConfig = TraceConfig()
    """What is traced beside the records."""

    kafka: UsageTopicConfig | None = None
    """A topic that also gets the records of complete files. Default: none."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        problems = []
        if self.directory is None and self.trace.entities:
            problems.append("expected directory, as a trace is wanted, got nothing")
        elif self.directory is None and self.kafka is not None:
            problems.append("expected directory, as a topic gets what is in files, got nothing")
        return self.unless(problems)


class HistoryConfig(Settings):
    """Who was throttled in each second, by which quotas, for `kafka-throttle explain --at`. Off without a directory."""

    directory: FilePath = None
    """Where the files are. It is created if it is missing, and must have mode 0700. Each instance of the proxy needs
    its own directory; a process and its successor may share it."""

    keep_hours: Annotated[int, Whole(1, 8_760)] = 24
    """How far back the history goes, in hours."""

    max_mib: Annotated[int, Whole(8, 1_048_576)] = 256
    """All files together never have more MiB than this: the oldest are deleted, even if they are younger than
    `keep_hours`."""


class LogConfig(Settings):
    """What is logged to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""

    format: Annotated[Literal["json", "console"], RESTART] = "json"
    """`json`: one object a line; `console`: for people."""


class Config(Settings):
    """The whole file.

    What can be wrong between sections is looked for by `load_config`, not by this model.
    """

    workers: Annotated[Workers, RESTART] = 1
    """How many processes serve clients, all behind the same ports; `auto`: one for each processor. They share every
    quota: docs/reference/workers.md."""

    virtual_clusters: Annotated[Some[VirtualClusterConfig], RESTART_IF_ADDED]
    """The clusters that this proxy serves."""

    metrics: MetricsConfig = MetricsConfig()
    """The HTTP listener for Prometheus and for health probes."""

    admin: AdminConfig = AdminConfig()
    """The HTTP listener for operators."""

    limits: LimitsConfig = LimitsConfig()
    """Bounds of memory and sockets."""

    drain: DrainConfig = DrainConfig()
    """The end of the process."""

    restart: RestartConfig = RestartConfig()
    """How another process takes over."""

    connections: ConnectionLimitsConfig = ConnectionLimitsConfig()
    """How fast connections may come to this process, and how many."""

    usage: Annotated[UsageConfig, RESTART] = UsageConfig()
    """Usage records."""

    history: Annotated[HistoryConfig, RESTART] = HistoryConfig()
    """The history of throttles."""

    log: LogConfig = LogConfig()
    """What is logged to standard error."""

    def model_post_init(self, _context: Any) -> None:
        """Let each cluster know its virtual cluster, and where this proxy listens."""
        listeners = [listener for cluster in self.virtual_clusters for listener in cluster.listeners]
        ranges = [(listener.bind, ports) for listener in listeners for ports in listener.port_ranges()]
        ranges += [(http.bind, range(http.port, http.port + 1)) for http in (self.metrics, self.admin)]
        for cluster in self.virtual_clusters:
            cluster.upstream.belong(cluster.name, tuple(ranges))


def pinned_costs(quotas: QuotasConfig) -> dict[int, Cost]:
    """The costs of requests that are not to be learned, by API key."""
    return {API_KEYS[pinned.api]: Cost(pinned.base_us, pinned.per_kib_us) for pinned in quotas.request_costs}


def chroot_of(cluster: VirtualClusterConfig) -> str:
    """Where the znodes of a virtual cluster's quotas are, without a slash at the end: "" for Kafka's own root."""
    chroot = cluster.quotas.zookeeper.chroot
    return f"/kafka-throttle/{cluster.name}" if chroot is None else chroot.rstrip("/")


def fleet_path(cluster: VirtualClusterConfig) -> str:
    """Where the znodes of a virtual cluster's fleet are, if it has one, without a slash at the end."""
    path = None if cluster.fleet is None else cluster.fleet.path
    return f"{chroot_of(cluster)}/fleet" if path is None else path.rstrip("/")


def quota_entries(cluster: VirtualClusterConfig) -> dict[Entity, Entry]:
    """The quotas in the file for a virtual cluster that was loaded by `load_config`."""
    return {entry.entity(): entry.entry() for entry in cluster.quotas.entries}
