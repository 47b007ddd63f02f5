"""Explains the quotas of a client: the rule that binds it, the rules that have lower precedence, and its sensors."""

from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import Final, NamedTuple

from kafka_throttle.quotas.changes import Limit, Quotas, Tables
from kafka_throttle.quotas.entities import DEFAULT, Entity, QuotaKey, QuotaType, Scope, SensorTags, plain_ip
from kafka_throttle.quotas.precedence import always_before, covering, level_of
from kafka_throttle.quotas.quota_table import QuotaTable

UNIT: Final[Mapping[QuotaType, str]] = {
    QuotaType.PRODUCE: "bytes/s",
    QuotaType.FETCH: "bytes/s",
    QuotaType.REQUEST: "percent of a thread",
    QuotaType.CONTROLLER_MUTATION: "partitions/s",
    QuotaType.CONNECTION: "connections/s",
}

_NOT_KNOWN = "the source of the quotas has not been read yet"
_NO_CLIENT_ID = "an empty client-id is covered by no default for client-ids"


class Client(NamedTuple):
    """The client to explain; its client-id may be empty. Without an `ip`, quotas of addresses are left out."""

    user: str
    client_id: str
    ip: str | None = None


class Rule(NamedTuple):
    """A quota that covers the client: its entity, level of precedence, limit, its layer, and its scope.

    Of Kafka's eight levels for users and client-ids the first with a quota binds; addresses have two other levels.
    """

    entity: Entity
    level: int
    limit: float
    layer: str
    scope: Scope


class OverriddenRule(NamedTuple):
    """A rule that covers the client and does not bind it, and the reason."""

    rule: Rule
    why: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The explanation of one quota type, enforced or shadow, for one client.

    `rule` is None if no quota binds. `tags` are those that the client is measured under, None if it is not measured.
    `shared_by` says in words which clients are measured together; `notes` has further remarks.
    """

    key: QuotaKey
    rule: Rule | None
    overridden: tuple[OverriddenRule, ...] = ()
    tags: SensorTags | None = None
    shared_by: str = ""
    notes: tuple[str, ...] = ()


def explain(
    quotas: Quotas, tables: Tables, client: Client, hosts: Collection[str] = (), *, known: bool = True
) -> list[Explanation]:
    """The explanations for all quota types, and for the shadow quotas that exist. `tables` are made from `quotas`.

    `hosts` are the known host names of the client's address. Until the quotas are `known`, a quota type without a rule
    says just that.

    `tables` are needed because they remember which kinds of entity ever had a quota; this decides under which tags
    clients without a quota are measured.
    """
    explanations = []
    for key in (QuotaKey(quota_type, shadow) for quota_type in QuotaType for shadow in (False, True)):
        table = tables.shadow if key.shadow else tables.enforced
        if key.quota_type is QuotaType.CONNECTION:
            explanation = None if client.ip is None else _of_address(quotas, key, client.ip, hosts)
        else:
            explanation = _of_client(quotas, table, key, client)
        if explanation is not None and (explanation.rule is not None or not key.shadow or table.is_on(key.quota_type)):
            is_unknown = explanation.rule is None and not known
            explanations.append(replace(explanation, notes=(_NOT_KNOWN,)) if is_unknown else explanation)
    return explanations


# --------------------------------------------------------------------- clients


def _of_client(quotas: Quotas, table: QuotaTable, key: QuotaKey, client: Client) -> Explanation:
    quota_type = key.quota_type
    rules = [
        Rule(entity, level_of(entity), limit.value, limit.layer, table.scope_of(quota_type, entity))
        for entity in starmap(Entity, covering(client.user, client.client_id))
        if (limit := _limit(quotas, entity, key)) is not None
    ]
    if not table.is_on(quota_type):
        return Explanation(key, None, notes=("no entity has this quota, so use is not measured",))
    tags, _, binding = table.tags_and_limit(quota_type, client.user, client.client_id)
    rule = next((rule for rule in rules if rule.entity == binding), None)
    overridden = tuple(OverriddenRule(other, _why_overridden(other, rule)) for other in rules if other is not rule)
    if rule is None and key.shadow:
        return Explanation(key, None, overridden, notes=("no shadow quota covers this client, so none is measured",))
    notes = () if rule is not None else ("no quota applies",)
    return Explanation(key, rule, overridden, tags, _sharers(tags, table.scope_of(quota_type, binding)), notes)


def _limit(quotas: Quotas, entity: Entity, key: QuotaKey) -> Limit | None:
    limits: Mapping[QuotaKey, Limit] = quotas.get(entity, {})
    return limits.get(key)


def _why_overridden(overridden: Rule, binding: Rule | None) -> str:
    """Why a rule that covers the client does not bind it: its level comes later, or the client-id is empty."""
    if binding is None or binding.level > overridden.level:
        return _NO_CLIENT_ID
    return f"level {binding.level} comes before level {overridden.level}"


def _sharers(tags: SensorTags, scope: Scope) -> str:
    """In words: the clients that are measured together under `tags`."""
    if tags.user and tags.client_id:
        who = f"only {Entity(tags.user, tags.client_id)}"
    elif tags.user:
        who = f"all client-ids of {Entity(tags.user)}"
    elif tags.client_id:
        who = f"{Entity(client_id=tags.client_id)} of all users"
    else:
        who = "all clients with an empty client-id"
    return f"{who}, at each node by itself" if scope is Scope.NODE else f"{who}, at all nodes together"


# ------------------------------------------------------------------- addresses


def _of_address(quotas: Quotas, key: QuotaKey, address: str, hosts: Collection[str]) -> Explanation:
    ip = plain_ip(address)
    own, *of_hosts, default = (
        [Rule(entity, level_of(entity), limit.value, limit.layer, Scope.CLUSTER)]
        if (limit := _limit(quotas, entity, key)) is not None
        else []
        for entity in (Entity(ip=ip), *(Entity(ip=host) for host in hosts), Entity(ip=DEFAULT))
    )
    by_name = sorted((rule for rules in of_hosts for rule in rules), key=lambda rule: rule.limit)
    rules = [*own, *by_name, *default]
    overridden = tuple(OverriddenRule(other, _why_address_overridden(other, own)) for other in rules[1:])
    if not rules:
        notes = ("no quota covers this address, so its connections are not measured",)
        return Explanation(key, None, overridden, notes=notes)
    sharers = f"all connections from {ip}, at all listeners"
    return Explanation(key, rules[0], overridden, SensorTags("", ""), sharers)


def _why_address_overridden(overridden: Rule, own: Sequence[Rule]) -> str:
    if overridden.level == 1:
        return "the address itself comes before host names" if own else "of host names the lowest limit comes first"
    return "a quota of the address comes before the default"


# ------------------------------------------------------------- never binding


class Precedence(NamedTuple):
    """An entity that always has precedence; with `but_for_empty`, except for clients with an empty client-id."""

    entity: Entity
    but_for_empty: bool

    def warning(self, place: str = "") -> str:
        """What is to be said of a quota that has lower precedence; `place` is where the other quota stands."""
        subject = "only clients without a client-id" if self.but_for_empty else "nobody"
        return f"binds {subject}, as {place}{self.entity} always comes before"


def always_overridden_by(entity: Entity, others: Container[Entity]) -> Precedence | None:
    """Which of `others`, entities with a quota of one type, binds all clients of `entity`; None if none does."""
    found = next((other for other in always_before(entity) if other in others), None)
    return None if found is None else Precedence(found, but_for_empty=entity.client_id is None)
