"""The configuration file as frozen, strict models, and everything that can be wrong with it, told in one run.

A string literal below a setting is its documentation: docs/configuration.md is made from it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from ipaddress import IPv6Address, ip_address
from itertools import combinations
from math import inf
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, ValidationInfo, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from proxy.yaml_file import YamlFileError, YamlFileUnreadable, parse_yaml, read_yaml_file
from quotas.entities import DEFAULT, Entity, InvalidQuota, QuotaKey, QuotaType
from quotas.explain import always_beaten_by
from quotas.quota_table import valid_limit

INT32_MAX = 2_147_483_647
INT64_MAX = 9_223_372_036_854_775_807
MAX_PORT = 65_535

Item = TypeVar("Item")
Model = TypeVar("Model", bound=BaseModel)


# ------------------------------------------------------------------ problems


class ConfigError(Exception):
    """One problem: where in the YAML file, and what was expected and found there."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class ConfigErrors(Exception):
    """All problems that one run has found; its text has one line for each."""

    def __init__(self, problems: Sequence[ConfigError]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = tuple(problems)


class ConfigUnreadable(ConfigErrors):
    """The file is not to be had, now at least."""


# ------------------------------------------------------------- kinds of value


def _expected(expected: str) -> PydanticCustomError:
    return PydanticCustomError("expected", "{expected}", {"expected": expected})


class Kind:
    """Checks one scalar of the file; `expected` says in words what it takes."""

    expected: str

    def parse(self, value: Any) -> Any:
        """What the model holds for `value`. ValueError if it is not of this kind."""
        raise NotImplementedError

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(self._validate)

    def _validate(self, value: Any) -> Any:
        try:
            return self.parse(value)
        except ValueError as error:
            raise _expected(self.expected) from error


@dataclass(frozen=True)
class Whole(Kind):
    """A whole number from `low` to `high`; True is none."""

    low: int
    high: int

    @property
    def expected(self) -> str:  # type: ignore[override]
        """In words."""
        return f"a whole number from {self.low} to {self.high}"

    def parse(self, value: Any) -> int:
        """The number itself."""
        if type(value) is not int or not self.low <= value <= self.high:
            raise ValueError
        return value


@dataclass(frozen=True)
class Text(Kind):
    """A string that `accepts`."""

    expected: str
    accepts: Callable[[str], bool]

    def parse(self, value: Any) -> str:
        """The string itself."""
        if not isinstance(value, str) or not self.accepts(value):
            raise ValueError
        return value


class _Rate(Kind):
    expected = "a number above 0"

    def parse(self, value: Any) -> float:
        """The number as a double."""
        if type(value) not in (int, float) or not 0 < value < inf:
            raise ValueError
        return float(value)


class _FilePath(Kind):
    expected = "the path of a file, which counts from the folder of this one"

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(self._validate_in)

    def _validate_in(self, value: Any, info: ValidationInfo) -> str:
        """The path, from the folder in the context of the validation."""
        text: str = self._validate(value)
        return str(Path((info.context or {}).get("folder", "")) / text)

    def parse(self, value: Any) -> str:
        """The path as it is written."""
        if not isinstance(value, str) or not value.strip() or "\0" in value:
            raise ValueError
        return value


class HostPort(NamedTuple):
    """An address to connect to; an IPv6 host stands here without brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class _Server(Kind):
    expected = "host:port (IPv6 in brackets)"
    _pattern = re.compile(r"(?:\[([^\[\]]+)\]|([^:\[\]]+)):([0-9]{1,5})")

    def parse(self, value: Any) -> HostPort:
        """The two parts of "host:port"."""
        if isinstance(value, HostPort):
            return value
        match = self._pattern.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError
        bracketed, plain, digits = match.groups()
        valid = _is_ip(bracketed, 6) if bracketed else _is_host(plain)
        if not valid or not 1 <= int(digits) <= MAX_PORT:
            raise ValueError
        return HostPort(bracketed or plain, int(digits))


@dataclass(frozen=True)
class _Numbers(Kind):
    """One number, or a range of them as "first-last"; held as a `range`."""

    what: str
    low: int
    high: int

    @property
    def expected(self) -> str:  # type: ignore[override]
        """In words."""
        return f'a {self.what} or an ascending range "first-last" from {self.low} to {self.high}'

    def parse(self, value: Any) -> range:
        """The numbers, never none."""
        if isinstance(value, range) and value.step == 1:
            numbers = value
        elif type(value) is int:
            numbers = range(value, value + 1)
        elif isinstance(value, str) and (match := re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", value)):
            first = int(match[1])
            numbers = range(first, int(match[2] or first) + 1)
        else:
            raise ValueError
        if numbers.stop <= numbers.start or numbers.start < self.low or numbers.stop - 1 > self.high:
            raise ValueError
        return numbers


def show_range(numbers: range) -> str:
    """The range as the file writes it: "3" or "0-5"."""
    return f"{numbers.start}-{numbers.stop - 1}" if len(numbers) > 1 else str(numbers.start)


def _is_ip(text: str, version: int = 0) -> bool:
    try:
        return version in (0, ip_address(text).version)
    except ValueError:
        return False


def _is_concrete_ip(text: str) -> bool:
    return _is_ip(text) and "%" not in text and not ip_address(text).is_unspecified


def is_loopback(address: str) -> bool:
    """Whether only this machine reaches what listens at an IP address."""
    ip = ip_address(address)
    mapped = ip.ipv4_mapped if isinstance(ip, IPv6Address) else None
    return (mapped or ip).is_loopback


def _is_host(text: str) -> bool:
    """True for an IP address or a name; underscores are common in container networks."""
    if _is_ip(text):
        return True
    labels = text.removesuffix(".").split(".")
    named = all(re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", label) for label in labels)
    return named and len(text) <= 253 and not labels[-1].isdigit()


def _is_znode_path(text: str) -> bool:
    """True for an absolute path without empty, "." or ".." steps."""
    steps = text[1:].split("/") if text != "/" else []
    plain = all(step not in ("", ".", "..") and step.isprintable() for step in steps)
    return text.startswith("/") and plain and len(text) <= 1_000


def _is_advertisable(text: str) -> bool:
    return _is_host(text) and (not _is_ip(text) or _is_concrete_ip(text))


def _as_tuple(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(value)
    raise _expected("a list")


def _not_empty(value: Any) -> Any:
    if not value:
        raise _expected("a list with at least one entry")
    return value


Many = Annotated[tuple[Item, ...], BeforeValidator(_as_tuple)]
Some = Annotated[tuple[Item, ...], BeforeValidator(_not_empty), BeforeValidator(_as_tuple)]

Name = Annotated[
    str,
    Text(
        "a name of 1 to 64 letters, digits, '.', '_' or '-'",
        lambda text: re.fullmatch(r"[A-Za-z0-9._-]{1,64}", text) is not None,
    ),
]
EntityName = Annotated[
    str | None,
    Text("a string of 1 to 32767 bytes (numbers need quotes)", lambda text: 0 < len(text.encode()) <= 32_767),
]
Bind = Annotated[str, Text("an IP address", _is_ip)]
Port = Annotated[int, Whole(1, MAX_PORT)]
Server = Annotated[HostPort, _Server()]
NodeIds = Annotated[range, _Numbers("node id", 0, INT32_MAX)]
Ports = Annotated[range, _Numbers("port", 1, MAX_PORT)]
IpName = Annotated[str | None, Text("an IP address", _is_ip)]
ByteRate = Annotated[int | None, Whole(1, INT64_MAX)]
Rate = Annotated[float | None, _Rate()]
ConnectionRate = Annotated[int | None, Whole(0, INT32_MAX)]
FilePath = Annotated[str | None, _FilePath()]
Names = Many[Annotated[str, Text("a string that is not empty (numbers need quotes)", bool)]]


# -------------------------------------------------------------------- models


class Settings(BaseModel):
    """A mapping of the file: frozen, no unknown keys, no value converted from another type."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid", use_attribute_docstrings=True)

    def problems(self) -> list[str]:
        """What is wrong with settings that are valid each."""
        return []


class CredentialsConfig(Settings):
    """Who the proxy is to the cluster on connections of its own: when it learns nodes, and reads or writes quotas."""

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    """As in Kafka's clients. Connections of clients are carried in plain, whatever stands here."""

    ca_file: FilePath = None
    """PEM certificates that the nodes' certificates must go back to; the system's without it."""

    certificate_file: FilePath = None
    """The proxy's own certificate, as PEM."""

    key_file: FilePath = None
    """Its key, as PEM without a password."""

    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = None
    """How the proxy proves who it is."""

    username: Annotated[str | None, Text("a string that is not empty (numbers need quotes)", bool)] = None
    """Its user name."""

    password_file: FilePath = None
    """A file that holds its password and nothing else."""

    def problems(self) -> list[str]:
        """What is wrong with them together."""
        problems = []
        needed = (self.sasl_mechanism, self.username, self.password_file)
        if self.security_protocol.startswith("SASL") != any(needed):
            problems.append("expected sasl_mechanism with security_protocol SASL_PLAINTEXT or SASL_SSL only")
        elif any(needed) and not all(needed):
            problems.append("expected sasl_mechanism, username and password_file together")
        if (self.certificate_file is None) != (self.key_file is None):
            problems.append("expected certificate_file and key_file together")
        return problems


class UpstreamConfig(Settings):
    """The cluster behind a virtual cluster."""

    bootstrap_servers: Some[Server]
    """Nodes to ask first for the cluster's members, each as host:port (IPv6 in brackets)."""

    connect_timeout_ms: Annotated[int, Whole(100, 300_000)] = 10_000
    """How long a connection to a node may take to stand, in milliseconds."""

    metadata_refresh_s: Annotated[int, Whole(1, 3_600)] = 30
    """How often the proxy asks the cluster on a connection of its own for node addresses, in seconds."""

    default_partitions: Annotated[int | None, Whole(1, INT32_MAX)] = None
    """What a topic that is created without a number of partitions counts for `controller_mutation_rate`. If not given,
    the cluster is asked for its `num.partitions`, and 1 is taken where it does not tell."""

    admin: CredentialsConfig = CredentialsConfig()
    """Who the proxy is to the cluster on connections of its own."""


class ListenerConfig(Settings):
    """The ports that clients of one virtual cluster connect to: one to bootstrap, one for each node."""

    name: Name
    """What logs and metrics call this listener."""

    bind: Bind = "0.0.0.0"
    """The local address of all its ports."""

    port: Port
    """The bootstrap port."""

    advertised_host: Annotated[str, Text("a host name or IP address that clients can reach", _is_advertisable)]
    """The host that clients are told for every node. May be left out where `bind` is one address."""

    node_ids: Many[NodeIds] = ()
    """Node ids, as numbers or ranges like "0-5"; in this order they take the ports after `port`, one each."""

    spare_ports: Many[Ports] = ()
    """Ports, as numbers or ranges, for nodes whose id is not in `node_ids`."""

    @model_validator(mode="before")
    @classmethod
    def _advertise_bind(cls, data: Any) -> Any:
        if isinstance(data, dict) and "advertised_host" not in data:
            bind = data.get("bind")
            if isinstance(bind, str) and _is_advertisable(bind):
                return {**data, "advertised_host": bind}
        return data

    def ports(self) -> dict[int, int]:
        """The port of each id in `node_ids`."""
        ids = [node_id for ids in self.node_ids for node_id in ids]
        return dict(zip(ids, range(self.port + 1, self.port + 1 + len(ids)), strict=True))

    def spares(self) -> list[int]:
        """The single ports of `spare_ports`, in order."""
        return [port for ports in self.spare_ports for port in ports]


class QuotaEntry(Settings):
    """The quotas of one entity: of a user, of a client-id, of both together, or of an IP address."""

    user: EntityName = None
    """The name of a user. Clients on listeners without authentication are ANONYMOUS."""

    default_user: bool = False
    """`true`: for each user that has no quota of its own."""

    client_id: EntityName = None
    """What clients call themselves."""

    default_client_id: bool = False
    """`true`: for each client-id that has no quota of its own."""

    ip: IpName = None
    """The address of clients, by itself."""

    default_ip: bool = False
    """`true`: for each address that has no quota of its own."""

    producer_byte_rate: ByteRate = None
    """Bytes per second that may be produced to each node."""

    consumer_byte_rate: ByteRate = None
    """Bytes per second that may be fetched from each node."""

    request_percentage: Rate = None
    """Time of each node that requests may take, in percent of one thread. Kept and described, not enforced yet."""

    controller_mutation_rate: Rate = None
    """Partitions per second that may be created and deleted in the cluster."""

    connection_creation_rate: ConnectionRate = None
    """Connections per second from an address. Kept and described, not enforced yet."""

    shadow_producer_byte_rate: ByteRate = None
    """The same, only measured: clients never feel it."""

    shadow_consumer_byte_rate: ByteRate = None
    """The same, only measured."""

    shadow_request_percentage: Rate = None
    """The same, only measured."""

    shadow_controller_mutation_rate: Rate = None
    """The same, only measured."""

    shadow_connection_creation_rate: ConnectionRate = None
    """The same, only measured."""

    def problems(self) -> list[str]:
        """What is wrong with them together."""
        problems = [
            f"expected either {part} or default_{part}, got both"
            for part in ("user", "client_id", "ip")
            if getattr(self, part) is not None and getattr(self, f"default_{part}")
        ]
        limits = self.limits()
        if not limits:
            problems.append(f"expected {_either([quota_type.value for quota_type in QuotaType])}, got nothing")
        try:
            entity = self.entity()
            for key, limit in limits.items():
                valid_limit(entity, key.quota_type, limit)
        except InvalidQuota as error:
            problems.append(str(error))
        return problems

    def entity(self) -> Entity:
        """Whom the quotas are set on. InvalidQuota if there is no such entity."""
        return Entity(
            user=DEFAULT if self.default_user else self.user,
            client_id=DEFAULT if self.default_client_id else self.client_id,
            ip=DEFAULT if self.default_ip else self.ip,
        )

    def limits(self) -> dict[QuotaKey, float]:
        """The quotas that are set."""
        keys = (QuotaKey(quota_type, shadow) for quota_type in QuotaType for shadow in (False, True))
        rates = {key: getattr(self, key.text) for key in keys}
        return {key: float(rate) for key, rate in rates.items() if rate is not None}


class WindowsConfig(Settings):
    """Over which time use is measured; as the broker settings whose names are like these."""

    quota_window_num: Annotated[int, Whole(1, 3_600)] = 11
    """Samples of the rates that byte and connection quotas bound."""

    quota_window_size_seconds: Annotated[int, Whole(1, 3_600)] = 1
    """Their length in seconds."""

    controller_quota_window_num: Annotated[int, Whole(1, 3_600)] = 11
    """For `controller_mutation_rate`: the bucket holds so many windows' worth."""

    controller_quota_window_size_seconds: Annotated[int, Whole(1, 3_600)] = 1
    """The length of one of these in seconds."""


class ZooKeeperConfig(Settings):
    """An ensemble that holds quotas in Kafka's own layout."""

    servers: Many[Server] = ()
    """Its servers, each as host:port (IPv6 in brackets)."""

    chroot: Annotated[str | None, Text("a path like /kafka-throttle/main", _is_znode_path)] = None
    """Where `config` stands; `/kafka-throttle/` and the virtual cluster's name without it, `/` for Kafka's own root."""

    session_timeout_ms: Annotated[int, Whole(1_000, 120_000)] = 10_000
    """How long the ensemble keeps a session that it does not hear of, in milliseconds."""

    resync_s: Annotated[int, Whole(1, 3_600)] = 30
    """How often all is read again, for changes that nobody gave notice of, in seconds."""

    username: Annotated[str | None, Text("a string that is not empty (numbers need quotes)", bool)] = None
    """The user of the scheme `digest`, or of SASL with `sasl`."""

    password_file: FilePath = None
    """A file that holds its password and nothing else."""

    sasl: bool = False
    """`true`: prove user and password by SASL DIGEST-MD5 instead of the scheme `digest`."""

    creator_only: bool = False
    """`true`: nodes that the proxy makes are for its own user only (users' nodes may hold SCRAM secrets)."""

    tls: bool = False
    """`true`: speak TLS."""

    ca_file: FilePath = None
    """PEM certificates that the servers' certificates must go back to."""

    certificate_file: FilePath = None
    """The proxy's own certificate, as PEM."""

    key_file: FilePath = None
    """Its key, as PEM without a password."""

    def problems(self) -> list[str]:
        """What is wrong with them together."""
        problems = []
        if (self.username is None) != (self.password_file is None):
            problems.append("expected username and password_file together")
        if (self.sasl or self.creator_only) and self.username is None:
            problems.append("expected username and password_file with sasl or creator_only")
        if (self.certificate_file is None) != (self.key_file is None):
            problems.append("expected certificate_file and key_file together")
        if not self.tls and (self.ca_file or self.certificate_file):
            problems.append("expected tls: true with certificates")
        return problems


class QuotasConfig(Settings):
    """Who may use how much of each node, and who may change that."""

    source: Literal["file", "zookeeper", "upstream"] = "file"
    """Where quotas come from: `file` is this file, overlaid by `state_file`; `upstream` is the cluster itself."""

    entries: Many[QuotaEntry] = ()
    """The quotas of source `file`, one entry for each entity. Kafka's order of precedence says which one binds."""

    state_file: FilePath = None
    """Of source `file`: keeps changes that come through Kafka's own API, without it they are refused. Of the others:
    keeps the last good quotas, for a start while their source is away."""

    zookeeper: ZooKeeperConfig = ZooKeeperConfig()
    """The ensemble of source `zookeeper`."""

    poll_interval_ms: Annotated[int, Whole(100, 3_600_000)] = 2_000
    """How often source `upstream` is read, in milliseconds."""

    windows: WindowsConfig = WindowsConfig()
    """Over which time use is measured."""

    admin_users: Names = ()
    """Users who may describe and alter all quotas with Kafka's own tools."""

    admin_listeners: Names = ()
    """Names of listeners whose clients may do that, whoever they are."""

    describe_users: Names = ()
    """Users who may describe all quotas. Everybody may describe their own."""


class ThrottleConfig(Settings):
    """How a client that is over its quota is slowed down."""

    mode: Literal["mute"] = "mute"
    """`mute`: answer at once and tell the throttle time, then do not read until it is over."""

    max_throttle_ms: Annotated[int, Whole(1, INT32_MAX)] = 20_000
    """The longest single throttle in milliseconds; stay below the request timeout of the clients."""

    max_debt_ms: Annotated[int, Whole(1, INT32_MAX)] = 60_000
    """How far ahead of now what the cap cut off may add up, in ms; not less than `max_throttle_ms`."""

    charge_validate_only: bool = False
    """`true`: creating topics or partitions with validate_only counts for `controller_mutation_rate`, as with KRaft."""


class VirtualClusterConfig(Settings):
    """A Kafka cluster as clients of the proxy see it."""

    name: Name
    """What logs and metrics call this virtual cluster."""

    upstream: UpstreamConfig
    """The cluster behind it."""

    listeners: Some[ListenerConfig]
    """Where clients connect."""

    quotas: QuotasConfig = QuotasConfig()
    """Who may use how much of each node."""

    throttle: ThrottleConfig = ThrottleConfig()
    """How a client that is over its quota is slowed down."""


class MetricsConfig(Settings):
    """The HTTP listener for Prometheus and for health probes."""

    bind: Bind = "127.0.0.1"
    """The local address of /metrics, /livez and /readyz."""

    port: Port = 9404
    """Their port."""

    top_entities: Annotated[int, Whole(0, 1_000)] = 20
    """How many entities have series of their own, for each node and quota type; the rest are summed up."""


class AdminConfig(Settings):
    """The HTTP listener for operators: what `kafka-throttle explain` asks, as a JSON API."""

    bind: Bind = "127.0.0.1"
    """The local address of the API. One that is not loopback needs `token_file`; there is no TLS yet."""

    port: Port = 9405
    """The port of the API."""

    token_file: FilePath = None
    """A file, relative to this one, that holds the token which requests must bear; read at start and at each reload."""

    def problems(self) -> list[str]:
        """What is wrong with them together."""
        if self.token_file is None and not is_loopback(self.bind):
            return [f"expected token_file, as others than this machine reach {self.bind}, got nothing"]
        return []


class LimitsConfig(Settings):
    """Bounds of memory and sockets."""

    max_frame_bytes: Annotated[int, Whole(1_024, INT32_MAX)] = 104_857_600
    """The largest request in bytes, as a node's socket.request.max.bytes; a larger one is refused."""

    max_answer_bytes: Annotated[int, Whole(1_024, INT32_MAX)] = INT32_MAX
    """The largest answer in bytes. Answers are streamed, so this guards against nonsense, not memory."""

    max_in_flight: Annotated[int, Whole(1, 100_000)] = 1_000
    """Unanswered requests of one connection; at this number no more are taken until one is answered."""

    write_buffer_bytes: Annotated[int, Whole(4_096, 1_073_741_824)] = 262_144
    """Bytes that may wait in one direction of one connection; above it the other side is not read."""

    max_connections: Annotated[int, Whole(1, 1_000_000)] = 10_000
    """Client connections of this process; one more is closed at once. Each takes two file descriptors."""

    max_sensors: Annotated[int, Whole(16, 10_000_000)] = 100_000
    """Rows of each virtual cluster to measure entities with; beyond it, newcomers of a default share one."""

    drain_s: Annotated[int, Whole(0, 3_600)] = 10
    """How long the closing of connections is spread out at the end of the process, in seconds."""


class LogConfig(Settings):
    """What is logged to standard error."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least grave level that is logged."""

    format: Literal["json", "console"] = "json"
    """`json`: one object a line; `console`: for people."""


class Config(Settings):
    """The whole file.

    Checks over several settings are made by `load_config`, not by this model.
    """

    NEEDS_RESTART: ClassVar[frozenset[str]] = frozenset(
        {
            "virtual_clusters[].name",
            "virtual_clusters[].listeners",
            "metrics.bind",
            "metrics.port",
            "admin.bind",
            "admin.port",
            "admin.token_file",
        }
        | {f"virtual_clusters[].quotas.{name}" for name in ("source", "state_file", "zookeeper", "windows")}
        | {"virtual_clusters[].quotas.poll_interval_ms", "virtual_clusters[].upstream.admin"}
        | {"limits.max_sensors", "log.format"}
    )

    virtual_clusters: Some[VirtualClusterConfig]
    """The clusters that this proxy serves."""

    metrics: MetricsConfig = MetricsConfig()
    """The HTTP listener for Prometheus and for health probes."""

    admin: AdminConfig = AdminConfig()
    """The HTTP listener for operators."""

    limits: LimitsConfig = LimitsConfig()
    """Bounds of memory and sockets."""

    log: LogConfig = LogConfig()
    """What is logged to standard error."""


# ------------------------------------------------------------------- loading


def load_config(path: Path) -> Config:
    """The configuration in the file. ConfigErrors with every problem; ConfigUnreadable if it cannot be read."""
    try:
        data = read_yaml_file(path)
    except YamlFileUnreadable as error:
        raise ConfigUnreadable([ConfigError(error.place, error.problem)]) from error
    except YamlFileError as error:
        raise ConfigErrors([ConfigError(error.place, error.problem)]) from error
    return config_of(data, path.absolute().parent)


def parse_config(text: str) -> Config:
    """The configuration in a YAML text. ConfigErrors with every problem."""
    try:
        data = parse_yaml(text, "(file)")
    except YamlFileError as error:
        raise ConfigErrors([ConfigError(error.place, error.problem)]) from error
    return config_of(data)


def config_of(data: Any, folder: Path | None = None) -> Config:
    """The configuration that lists, dicts and scalars describe. ConfigErrors with every problem.

    Paths of files count from `folder`.
    """
    config = None
    problems: list[ConfigError] = []
    try:
        config = Config.model_validate(data, context={"folder": folder or ""})
    except ValidationError as error:
        problems = [_problem(details) for details in error.errors(include_url=False)]
    problems += [problem for check in _CHECKS for problem in check(data)]
    if config is None or problems:
        raise ConfigErrors(problems)
    return config


def _problem(details: ErrorDetails) -> ConfigError:
    loc, kind = details["loc"], details["type"]
    if kind == "extra_forbidden":
        return ConfigError(_path(loc), _unknown_key(loc))
    got = "nothing" if kind == "missing" else show(details["input"])
    if kind == "expected":
        expected = details["msg"]
    elif kind == "missing":
        expected = expected_at(loc)
    elif kind == "literal_error":
        expected = str(details["ctx"]["expected"])
    elif kind == "bool_type":
        expected = "true or false"
    else:
        expected = "a mapping"
    return ConfigError(_path(loc), f"expected {expected}, got {got}")


def _unknown_key(loc: tuple[int | str, ...]) -> str:
    key = str(loc[-1])
    known = list(_model_at(loc[:-1]).model_fields)
    close = get_close_matches(key, known, n=1)
    return f"unknown key, did you mean {close[0]!r}?" if close else f"unknown key, expected {_either(known)}"


def _either(names: Sequence[str]) -> str:
    return " or ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _path(loc: Sequence[int | str]) -> str:
    path = ""
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
        elif re.fullmatch(r"\w{1,64}", step, re.ASCII):
            path += f".{step}" if path else step
        else:
            path += f"[{show(step)}]"
    return path or "(file)"


def show(value: Any) -> str:
    """What was found in the file, in one short line."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list | tuple | set):
        return "a list" if value else "an empty list"
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of {value.bit_length()} bits"
    text = repr(value) if isinstance(value, str | int | float | bytes) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


def _model_at(loc: Sequence[int | str]) -> type[Settings]:
    """The model of the mapping at `loc`."""
    annotation: Any = Config
    for step in loc:
        annotation = get_args(annotation)[0] if isinstance(step, int) else annotation.model_fields[step].annotation
    model: type[Settings] = annotation
    return model


def expected_at(loc: Sequence[int | str]) -> str:
    """What the setting at `loc` takes, in words."""
    field = _model_at(loc[:-1]).model_fields[str(loc[-1])]
    return expected_of(field)


def expected_of(field: FieldInfo) -> str:
    """What a setting takes, in words."""
    for kind in field.metadata:
        if isinstance(kind, Kind):
            return kind.expected
    annotation: Any = field.annotation
    if annotation is bool:
        return "true or false"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a mapping"
    if get_args(annotation) and get_args(annotation)[-1] is Ellipsis:
        return "a list"
    return _either([repr(choice) for choice in get_args(annotation)])


# -------------------------------------------------- checks over several settings
#
# They look at the raw data and take up each part that is valid by itself: one mistake hides no other.


def _valid(model: type[Model], data: Any) -> Model | None:
    try:
        return model.model_validate(data)
    except ValidationError:
        return None


def _items(data: Any, key: str) -> list[Any]:
    value = data.get(key) if isinstance(data, Mapping) else None
    return list(value) if isinstance(value, list | tuple) else []


def _listeners(data: Any) -> Iterator[tuple[str, ListenerConfig]]:
    """Each listener whose ports are valid, with its path."""
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        for k, raw in enumerate(_items(cluster, "listeners")):
            if listener := _listener_with_ports(raw):
                yield f"virtual_clusters[{i}].listeners[{k}]", listener


def _listener_with_ports(raw: Any) -> ListenerConfig | None:
    """The listener if its ports are valid; a wrong name or host is replaced by one that is nobody's."""
    if not isinstance(raw, Mapping):
        return None
    ports = {key: raw[key] for key in ("bind", "port", "node_ids", "spare_ports") if key in raw}
    host = raw.get("advertised_host")
    known = isinstance(host, str) and _is_advertisable(host)
    return _valid(ListenerConfig, {**ports, "name": "-", "advertised_host": host if known else "host.invalid"})


def _name_problems(data: Any) -> Iterator[ConfigError]:
    clusters = _items(data, "virtual_clusters")
    yield from _repeated(clusters, "virtual_clusters")
    for i, cluster in enumerate(clusters):
        yield from _repeated(_items(cluster, "listeners"), f"virtual_clusters[{i}].listeners")


def _repeated(items: Sequence[Any], path: str) -> Iterator[ConfigError]:
    seen: dict[str, int] = {}
    for i, item in enumerate(items):
        name = item.get("name") if isinstance(item, Mapping) else None
        if isinstance(name, str) and seen.setdefault(name, i) != i:
            problem = f"expected a name of its own, got {show(name)}, the name of {path}[{seen[name]}]"
            yield ConfigError(f"{path}[{i}].name", problem)


def _node_id_problems(data: Any) -> Iterator[ConfigError]:
    for path, listener in _listeners(data):
        if not listener.node_ids and not listener.spare_ports:
            yield ConfigError(f"{path}.node_ids", "expected node ids, or spare_ports, got nothing")
        for (i, one), (k, other) in combinations(enumerate(listener.node_ids), 2):
            if both := _common(one, other):
                problem = f"expected each node id once, got {show_range(both)}, also in {path}.node_ids[{i}]"
                yield ConfigError(f"{path}.node_ids[{k}]", problem)


class PortClaim(NamedTuple):
    """Ports that one setting takes."""

    path: str
    bind: str
    ports: range


def listener_ports(path: str, listener: ListenerConfig) -> list[PortClaim]:
    """All ports of a listener, setting by setting."""
    claims = [PortClaim(f"{path}.port", listener.bind, range(listener.port, listener.port + 1))]
    start = listener.port + 1
    for i, ids in enumerate(listener.node_ids):
        claims.append(PortClaim(f"{path}.node_ids[{i}]", listener.bind, range(start, start + len(ids))))
        start += len(ids)
    for i, ports in enumerate(listener.spare_ports):
        claims.append(PortClaim(f"{path}.spare_ports[{i}]", listener.bind, ports))
    return claims


def _claims(data: Any) -> list[PortClaim]:
    claims = [claim for path, listener in _listeners(data) for claim in listener_ports(path, listener)]
    sections: tuple[tuple[str, type[MetricsConfig | AdminConfig]], ...] = (
        ("metrics", MetricsConfig),
        ("admin", AdminConfig),
    )
    for name, model in sections:
        settings = _valid(model, data.get(name, {})) if isinstance(data, Mapping) else None
        if settings:
            claims.append(PortClaim(f"{name}.port", settings.bind, range(settings.port, settings.port + 1)))
    return claims


def _port_problems(data: Any) -> Iterator[ConfigError]:
    claims = _claims(data)
    for claim in claims:
        if claim.ports.stop - 1 > MAX_PORT:
            problem = f"expected ports up to {MAX_PORT}, got {show_range(claim.ports)}"
            yield ConfigError(claim.path, problem)
    for one, other in combinations(claims, 2):
        both = _common(one.ports, other.ports)
        if both and _same_address(one.bind, other.bind):
            taken = f"{show_range(both)}, taken by {one.path}"
            yield ConfigError(other.path, f"expected ports that nothing else takes, got {taken}")


def _common(one: range, other: range) -> range:
    return range(max(one.start, other.start), min(one.stop, other.stop))


def _same_address(one: str, other: str) -> bool:
    """True if a port of one is a port of the other: the address of all interfaces meets every other."""
    a, b = ip_address(one), ip_address(other)
    return a == b or a.is_unspecified or b.is_unspecified


def _entry_problems(data: Any) -> Iterator[ConfigError]:
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        quotas = cluster.get("quotas") if isinstance(cluster, Mapping) else None
        seen: dict[Entity, str] = {}
        for k, raw in enumerate(_items(quotas, "entries")):
            path = f"virtual_clusters[{i}].quotas.entries[{k}]"
            if entry := _valid(QuotaEntry, raw):
                found = entry.problems()
                yield from (ConfigError(path, problem) for problem in found)
                first = path if found else seen.setdefault(entry.entity(), path)
                if first != path:
                    yield ConfigError(path, f"expected one entry for each entity, got the entity of {first}")


def _loop_problems(data: Any) -> Iterator[ConfigError]:
    """A bootstrap server that is a port of this proxy would have it connect to itself for ever."""
    own = {
        (host, listener.port): path
        for path, listener in _listeners(data)
        for host in (listener.bind, listener.advertised_host)
    }
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        upstream = _valid(UpstreamConfig, cluster.get("upstream")) if isinstance(cluster, Mapping) else None
        for k, server in enumerate(upstream.bootstrap_servers if upstream else ()):
            if listener_path := own.get((server.host, server.port)):
                path = f"virtual_clusters[{i}].upstream.bootstrap_servers[{k}]"
                problem = f"expected a node of the cluster, got '{server}', the address of {listener_path}"
                yield ConfigError(path, problem)


def _source_problems(data: Any) -> Iterator[ConfigError]:
    """Settings of one source beside another, and sections that are wrong as a whole."""
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        if not isinstance(cluster, Mapping):
            continue
        path = f"virtual_clusters[{i}]"
        quotas = cluster.get("quotas")
        if isinstance(quotas, Mapping):
            yield from _settings_of_other_sources(f"{path}.quotas", quotas)
        sections: tuple[tuple[Any, str, type[Settings]], ...] = (
            (quotas, "quotas.zookeeper", ZooKeeperConfig),
            (cluster.get("upstream"), "upstream.admin", CredentialsConfig),
        )
        for section, where, model in sections:
            raw = section.get(where.partition(".")[2]) if isinstance(section, Mapping) else None
            settings = _valid(model, raw) if raw is not None else None
            for problem in settings.problems() if settings else ():
                yield ConfigError(f"{path}.{where}", problem)


def _settings_of_other_sources(path: str, quotas: Mapping[str, Any]) -> Iterator[ConfigError]:
    source = quotas.get("source", "file")
    if source != "file" and quotas.get("entries"):
        yield ConfigError(f"{path}.entries", f"expected none, as quotas come from the source {source!r}, got a list")
    if source == "zookeeper" and not _items(quotas.get("zookeeper"), "servers"):
        yield ConfigError(f"{path}.zookeeper.servers", "expected at least one with the source 'zookeeper', got nothing")
    if source != "zookeeper" and quotas.get("zookeeper"):
        yield ConfigError(f"{path}.zookeeper", f"expected nothing with the source {source!r}, got a mapping")


def _throttle_problems(data: Any) -> Iterator[ConfigError]:
    for i, cluster in enumerate(_items(data, "virtual_clusters")):
        throttle = _valid(ThrottleConfig, cluster.get("throttle")) if isinstance(cluster, Mapping) else None
        if throttle and throttle.max_debt_ms < throttle.max_throttle_ms:
            expected = f"at least max_throttle_ms, {throttle.max_throttle_ms}"
            problem = f"expected {expected}, got {throttle.max_debt_ms}"
            yield ConfigError(f"virtual_clusters[{i}].throttle.max_debt_ms", problem)


def _admin_problems(data: Any) -> Iterator[ConfigError]:
    admin = _valid(AdminConfig, data.get("admin", {})) if isinstance(data, Mapping) else None
    for problem in admin.problems() if admin else ():
        yield ConfigError("admin", problem)


_CHECKS = (
    _name_problems,
    _node_id_problems,
    _port_problems,
    _entry_problems,
    _loop_problems,
    _source_problems,
    _throttle_problems,
    _admin_problems,
)


# -------------------------------------------------------------------- quotas


def quota_entries(cluster: VirtualClusterConfig) -> dict[Entity, dict[QuotaKey, float]]:
    """The quotas in the file for a virtual cluster that was loaded by `load_config`."""
    return {entry.entity(): entry.limits() for entry in cluster.quotas.entries}


# ------------------------------------------------------------------ warnings


def ephemeral_ports() -> range:
    """The ports that this system gives to outgoing connections; Linux's default where it does not say."""
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        first, last = map(int, text.split())
    except (OSError, ValueError):
        first, last = 32_768, 60_999
    return range(first, last + 1)


def warnings_of(config: Config, ephemeral: range) -> list[ConfigError]:
    """What is allowed but may surprise.

    That is: ports that outgoing connections may take first, no quotas, quotas that bind nobody, a token in plain text.
    """
    warnings = []
    for i, cluster in enumerate(config.virtual_clusters):
        path = f"virtual_clusters[{i}]"
        for k, listener in enumerate(cluster.listeners):
            for claim in listener_ports(f"{path}.listeners[{k}]", listener):
                if both := _common(claim.ports, ephemeral):
                    problem = f"expected ports outside of the system's ephemeral range {show_range(ephemeral)}"
                    warnings.append(ConfigError(claim.path, f"{problem}, got {show_range(both)}"))
        if not cluster.quotas.entries and cluster.quotas.source == "file" and not cluster.quotas.state_file:
            warnings.append(ConfigError(f"{path}.quotas.entries", "expected quotas, got none: nobody is throttled"))
        warnings += _beaten_entries(f"{path}.quotas.entries", cluster.quotas.entries)
        warnings += _source_warnings(f"{path}.quotas", cluster.quotas)
    if not is_loopback(config.admin.bind):
        problem = f"expected a loopback address, as there is no TLS yet, got {config.admin.bind!r}: the token and what"
        warnings.append(ConfigError("admin.bind", f"{problem} is told can be overheard"))
    return warnings


def _source_warnings(path: str, quotas: QuotasConfig) -> Iterator[ConfigError]:
    if quotas.zookeeper.chroot == "/":
        problem = "is Kafka's own root: brokers in ZooKeeper mode enforce the same quotas, clients are throttled twice"
        yield ConfigError(f"{path}.zookeeper.chroot", problem)
    admins = bool(quotas.admin_users or quotas.admin_listeners)
    if quotas.state_file is None and (quotas.source != "file" or admins):
        expected = "a file to keep changes in" if quotas.source == "file" else "a file for the last good quotas"
        lost = "changes through Kafka's API are refused" if quotas.source == "file" else "a start needs the source"
        yield ConfigError(f"{path}.state_file", f"expected {expected}, got nothing: {lost}")


def _beaten_entries(path: str, entries: Sequence[QuotaEntry]) -> Iterator[ConfigError]:
    """Quotas that bind nobody, or nearly nobody, because another entry always comes first."""
    places: dict[QuotaKey, dict[Entity, int]] = {}
    for i, entry in enumerate(entries):
        for key in entry.limits():
            places.setdefault(key, {})[entry.entity()] = i
    for i, entry in enumerate(entries):
        for key in entry.limits():
            if first := always_beaten_by(entry.entity(), places[key]):
                whom = "more than clients without a client-id" if first.but_for_empty else "somebody"
                other = f"entries[{places[key][first.entity]}], {first.entity}, always comes before"
                yield ConfigError(
                    f"{path}[{i}].{key.text}", f"expected a quota that binds {whom}, got one that {other}"
                )


# -------------------------------------------------------------------- reload


def needs_restart(setting: str) -> bool:
    """Whether a change of the setting, as "virtual_clusters[].name", waits for a restart."""
    return any(setting == fixed or setting.startswith((f"{fixed}.", f"{fixed}[")) for fixed in Config.NEEDS_RESTART)


def changes_needing_restart(old: Config, new: Config) -> list[str]:
    """Paths, in the new file, of changes that a running proxy cannot take up; everything else it can.

    Virtual clusters and listeners are told apart by name, so their order in the file does not matter.
    """
    changes = []
    before = {cluster.name: (i, cluster) for i, cluster in enumerate(old.virtual_clusters)}
    for i, cluster in enumerate(new.virtual_clusters):
        known = before.pop(cluster.name, None)
        if known is None:
            changes.append(f"virtual_clusters[{i}]: added")
        else:
            changes += _listener_changes(f"virtual_clusters[{i}]", known[1], cluster)
            changes += _fixed_changes(f"virtual_clusters[{i}]", known[1], cluster)
    changes += [f"virtual_clusters[{i}]: removed" for i, _ in before.values()]
    for path in sorted(Config.NEEDS_RESTART):
        section, _, name = path.partition(".")
        if section in Config.model_fields:
            changes += [path] if getattr(getattr(old, section), name) != getattr(getattr(new, section), name) else []
    return changes


def _fixed_changes(path: str, old: VirtualClusterConfig, new: VirtualClusterConfig) -> list[str]:
    """Settings of a section of a virtual cluster that wait for a restart."""
    changes = []
    for fixed in sorted(Config.NEEDS_RESTART):
        _, _, setting = fixed.partition("virtual_clusters[].")
        section, _, name = setting.partition(".")
        if name and getattr(getattr(old, section), name) != getattr(getattr(new, section), name):
            changes.append(f"{path}.{setting}")
    return changes


def _listener_changes(path: str, old: VirtualClusterConfig, new: VirtualClusterConfig) -> list[str]:
    changes = []
    before = {listener.name: (i, listener) for i, listener in enumerate(old.listeners)}
    for i, listener in enumerate(new.listeners):
        known = before.pop(listener.name, None)
        where = f"{path}.listeners[{i}]"
        if known is None:
            changes.append(f"{where}: added")
        else:
            fields = ListenerConfig.model_fields
            changes += [f"{where}.{f}" for f in fields if getattr(known[1], f) != getattr(listener, f)]
    return changes + [f"{path}.listeners[{i}]: removed" for i, _ in before.values()]
