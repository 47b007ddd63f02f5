"""What an operator's file says of quotas: the sections that the proxy's configuration and a candidate of `usage` share.

An entry is a mapping: whom it is set on (`user` or `default_user: true`, `client_id` or `default_client_id: true`, or
`ip` or `default_ip: true`) and at least one quota by its key.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal, Self

from pydantic import model_validator

from kafka_throttle.common.kinds import INT32_MAX, Number, Text, Whole
from kafka_throttle.common.problems import Problem, either
from kafka_throttle.common.settings import Settings, valid
from kafka_throttle.quotas.changes import check_scope
from kafka_throttle.quotas.entities import DEFAULT, Entity, InvalidQuota, QuotaKey, QuotaType, Scope, is_ip, is_name
from kafka_throttle.quotas.limits import MAX_BYTE_RATE, MAX_CONNECTION_RATE, valid_limit
from kafka_throttle.quotas.sources.overlay import Entry

LONGEST_DELAY_MS = 8_000
"""Below the 10 s that franz-go waits for a response, and KafkaJS's 30 s."""

EntityName = Annotated[str | None, Text("a string of 1 to 32767 bytes (numbers need quotes)", is_name)]


IpName = Annotated[str | None, Text("an IP address", is_ip)]


ByteRate = Annotated[int | None, Whole(1, MAX_BYTE_RATE)]


Rate = Annotated[float | None, Number("a number above 0", lambda number: number > 0)]


ConnectionRate = Annotated[int | None, Whole(0, MAX_CONNECTION_RATE)]


_KEYS = {key.text: key for quota_type in QuotaType for key in (QuotaKey(quota_type), QuotaKey(quota_type, True))}


class EntitySettings(Settings):
    """One entity: a user, a client-id, both together, or an IP address."""

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

    @model_validator(mode="after")
    def _is_one_entity(self) -> Self:
        return self.unless(self._problems())

    def _problems(self) -> list[str]:
        problems = [
            f"expected either {part} or default_{part}, got both"
            for part in ("user", "client_id", "ip")
            if getattr(self, f"default_{part}") and getattr(self, part) is not None
        ]
        try:
            self.entity()
        except InvalidQuota as error:
            problems.append(str(error))
        return problems

    def entity(self) -> Entity:
        """Which one it is. InvalidQuota if there is no such entity."""
        return Entity(
            user=DEFAULT if self.default_user else self.user,
            client_id=DEFAULT if self.default_client_id else self.client_id,
            ip=DEFAULT if self.default_ip else self.ip,
        )


class QuotaEntry(EntitySettings):
    """The quotas of one entity: of a user, of a client-id, of both together, or of an IP address."""

    producer_byte_rate: ByteRate = None
    """Bytes per second that may be produced to each node, or with `scope: cluster` to all nodes together."""

    consumer_byte_rate: ByteRate = None
    """Bytes per second that may be fetched from each node, or with `scope: cluster` from all nodes together."""

    request_percentage: Rate = None
    """Time of each node that requests may take, in percent of one thread; with `scope: cluster` of all nodes."""

    controller_mutation_rate: Rate = None
    """Partitions per second that may be created and deleted in the cluster."""

    connection_creation_rate: ConnectionRate = None
    """Connections per second from an address, over all listeners of the virtual cluster; 0 bans it."""

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

    scope: Literal["node", "cluster"] | None = None
    """Of the byte rates and request percentages of this entry: `node` (also if not given) is Kafka's meaning, each node
    has the whole limit; `cluster` is one limit over all nodes. The other quotas are over all nodes always."""

    def _problems(self) -> list[str]:
        limits, problems = self.limits(), super()._problems()
        if not limits:
            problems.append(f"expected {either([quota_type.value for quota_type in QuotaType])}, got nothing")
        try:
            entity = self.entity()
            for key, limit in limits.items():
                valid_limit(entity, key.quota_type, limit)
            if self.scope is not None and limits:
                check_scope(entity, limits)
        except InvalidQuota as error:
            if str(error) not in problems:
                problems.append(str(error))
        return problems

    def limits(self) -> dict[QuotaKey, float]:
        """The quotas that are set."""
        return {key: float(rate) for text, key in _KEYS.items() if (rate := getattr(self, text)) is not None}

    def entry(self) -> Entry:
        """The quotas that are set, and their scope."""
        return Entry(self.limits(), Scope(self.scope or Scope.NODE))


class WindowsConfig(Settings):
    """Over which time use is measured; as the broker settings whose names are like these."""

    quota_window_num: Annotated[int, Whole(1, 3_600)] = 11
    """How many windows byte and connection rates are measured over."""

    quota_window_size_seconds: Annotated[int, Whole(1, 3_600)] = 1
    """The length of a window in seconds."""

    controller_quota_window_num: Annotated[int, Whole(1, 3_600)] = 11
    """For `controller_mutation_rate`: how many windows' worth the bucket holds."""

    controller_quota_window_size_seconds: Annotated[int, Whole(1, 3_600)] = 1
    """The length of one of these in seconds."""


class ThrottleConfig(Settings):
    """How a client that is over its quota is slowed down."""

    mode: Literal["mute", "delay"] = "mute"
    """`mute`: send the response at once with its throttle time, then do not read until it is over. `delay`: hold the
    response for that long, as brokers before 2.0; clients that would wait again are told 0. Open connections keep the
    mode they began with."""

    max_throttle_ms: Annotated[int, Whole(1, INT32_MAX)] = 20_000
    """The longest single throttle in milliseconds; with `delay` the default is 8000. For `request_percentage` it is one
    window, as in Kafka. Stay below the request timeout of the clients. It also bounds the throttle times that a node
    reports."""

    max_debt_ms: Annotated[int, Whole(0, INT32_MAX)] = 60_000
    """The most debt that is remembered when throttles are cut to `max_throttle_ms`, as a time in ms. 0: none is.
    Otherwise at least `max_throttle_ms`."""

    fetch: Literal["paced", "empty"] = "paced"
    """What happens to a fetch under a quota. `paced`: it asks for what is left of the quota and waits for its turn if
    that is nothing; all that the node sends is delivered. `empty`: over the quota, a response without data, as from a
    broker, and the client asks again; what the node has sent for it is lost. Not with `mode: delay`. Open connections
    keep the mode they began with."""

    charge_validate_only: bool = False
    """`true`: creating topics or partitions with validate_only counts for `controller_mutation_rate`, as with KRaft."""

    @model_validator(mode="before")
    @classmethod
    def _defaults_of_delay(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("mode") == "delay":
            return {"max_throttle_ms": LONGEST_DELAY_MS, **data}
        return data

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        problems: list[str | Problem] = []
        if self.mode == "delay" and self.fetch == "empty":
            problems.append("expected fetch: paced with mode: delay, got 'empty': an empty answer is never late")
        if 0 < self.max_debt_ms < self.max_throttle_ms:
            expected = f"0 or at least max_throttle_ms, {self.max_throttle_ms}"
            problems.append(Problem("max_debt_ms", f"expected {expected}, got {self.max_debt_ms}"))
        return self.unless(problems)


def repeated_entities(entries: Any, path: str) -> Iterator[Problem]:
    """Entries of the list at `path`, of those that are valid by themselves, whose entity has one before them."""
    seen: dict[Entity, str] = {}
    for i, raw in enumerate(entries if isinstance(entries, list | tuple) else ()):
        if entry := valid(QuotaEntry, raw):
            place = f"{path}[{i}]"
            if (first := seen.setdefault(entry.entity(), place)) != place:
                yield Problem(place, f"expected one entry for each entity, got the entity of {first}")
