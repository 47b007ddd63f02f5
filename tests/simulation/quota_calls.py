"""DescribeClientQuotas and AlterClientQuotas: as bytes, the right responses, and the book of quotas."""

from collections.abc import Mapping, Sequence
from struct import pack

from kafka_throttle.protocol.api_key import DESCRIBE_CLIENT_QUOTAS as DESCRIBE
from kafka_throttle.proxy.decisions.steps import QuotaAlteration
from kafka_throttle.quotas.changes import Alteration, AlterationRefused, Limit, Quotas, SourceUnavailable, tables_of
from kafka_throttle.quotas.client_quotas import ClientQuotaManager
from kafka_throttle.quotas.entities import DEFAULT, Entity, Name, QuotaKey, QuotaType
from tests.simulation.oracle import Violation
from tests.simulation.plan import EntryPlan, FilterPlan, QuotaPlan, RequestPlan
from tests.simulation.wire import count, text
from tests.support import quota_frames

_EXACT, _DEFAULT = 0, 1
_NOT_AUTHORISED, _INVALID, _REFUSED, _UNAVAILABLE = 31, 42, 44, 7

_BYTE_RATES = ("producer_byte_rate", "consumer_byte_rate")
MOST_NAMED = 100
"""So many entities, parts and values of a request are read to refuse it."""
_KEYS = (*_BYTE_RATES, "request_percentage", "controller_mutation_rate")

Parts = frozenset[tuple[str, str | None]]
Known = dict[Parts, dict[str, float]]


def request_body(plan: RequestPlan) -> bytes:
    """The body that a plan describes."""
    compact = plan.version >= 1
    end = b"\0" if compact else b""

    def name(value: str | None) -> bytes:
        return text(None if value is None else value.encode(), compact)

    if plan.api_key == DESCRIBE:
        filters = [name(f.part) + pack(">b", f.match) + name(f.name) + end for f in plan.filters]
        return count(len(filters), compact) + b"".join(filters) + bytes([plan.strict]) + end
    entries = []
    for entry in plan.entries:
        parts = [name(part) + name(who) + end for part, who in entry.parts]
        operations = [name(key) + pack(">d?", value or 0.0, value is None) + end for key, value in entry.limits]
        arrays = count(len(parts), compact) + b"".join(parts) + count(len(operations), compact) + b"".join(operations)
        entries.append(arrays + end)
    return count(len(entries), compact) + b"".join(entries) + bytes([plan.validate_only]) + end


# ------------------------------------------------------------------------ the book


def quotas_of(plans: Sequence[QuotaPlan], shadows: Sequence[QuotaPlan]) -> Quotas:
    """All quotas that plans describe."""
    quotas: dict[Entity, dict[QuotaKey, Limit]] = {}
    for shadow, plan in [*((False, plan) for plan in plans), *((True, plan) for plan in shadows)]:
        limits = quotas.setdefault(Entity(_name(plan.user), _name(plan.client_id)), {})
        rates: dict[QuotaType, float | None] = {QuotaType.PRODUCE: plan.produce, QuotaType.FETCH: plan.fetch}
        rates |= {QuotaType.CONTROLLER_MUTATION: plan.mutation, QuotaType.REQUEST: plan.request}
        for quota_type, rate in rates.items():
            if rate is not None:
                limits[QuotaKey(quota_type, shadow)] = Limit(float(rate), "plan")
    return {entity: limits for entity, limits in quotas.items() if limits}


def _name(name: str | None) -> Name:
    return DEFAULT if name == "*" else name


def _parts_of(entity: Entity) -> Parts:
    return frozenset((part, None if name is DEFAULT else str(name)) for part, name in entity.parts if name is not None)


class Book:
    """The quotas of a world, where alterations are written; beside it what they must be."""

    def __init__(self, quotas: Quotas) -> None:
        self.quotas = quotas
        self.alterations_begun = 0
        self.alterations_done = 0
        self.altered = 0
        """Entities whose quotas were altered."""
        self.known: Known = {}
        """What Describe must respond; it is replaced, never changed."""
        self.put(quotas)

    def put(self, quotas: Quotas) -> None:
        """An operator puts others in the place of all."""
        self.quotas = quotas
        self.known = _described_of(quotas)

    def write(
        self,
        alteration_request: QuotaAlteration,
        plan: RequestPlan | None,
        quota_manager: ClientQuotaManager,
        now_ms: int,
    ) -> list[Exception | None]:
        """Write the alterations, except those that fail by plan; return what became of each."""
        self.alterations_done += 1
        fails = plan.alteration_fails if plan is not None else ()
        results: list[Exception | None] = []
        quotas: dict[Entity, Mapping[QuotaKey, Limit]] = dict(self.quotas)
        for number, alteration in enumerate(alteration_request.alterations):
            if number in fails:
                results.append(SourceUnavailable("away") if number % 2 else AlterationRefused("no"))
                continue
            results.append(None)
            _apply(quotas, alteration)
        self.quotas = quotas
        self.altered += results.count(None)
        tables = tables_of(quotas)
        changed = [
            alteration.entity
            for alteration, result in zip(alteration_request.alterations, results, strict=True)
            if not result
        ]
        quota_manager.replace(tables.enforced, now_ms, tables.shadow, changed)
        if plan is not None:
            self._expect(plan)
        else:  # a bit of the request was turned over: what it wants is not known
            self.known = _described_of(self.quotas)
        return results

    def _expect(self, plan: RequestPlan) -> None:
        """Each alteration that is to be written and does not fail is applied once, and nothing else."""
        known = {parts: dict(limits) for parts, limits in self.known.items()}
        for number, entry in enumerate(_to_be_written(plan)):
            if number in plan.alteration_fails:
                continue
            limits = known.setdefault(frozenset(entry.parts), {})
            for key, value in entry.limits:
                if value is None:
                    limits.pop(key, None)
                elif key in _KEYS:
                    limits[key] = value
        self.known = {parts: limits for parts, limits in known.items() if limits}
        if self.known != _described_of(self.quotas):
            there = _described_of(self.quotas)
            wrong = [parts for parts in there.keys() | self.known.keys() if there.get(parts) != self.known.get(parts)]
            reported = [(sorted(parts), there.get(parts), self.known.get(parts)) for parts in wrong[:3]]
            raise Violation(f"the quotas are (entity, found, right): {reported}")

    # ------------------------------------------------------------------ the responses

    def check_described(self, response: bytes, plan: RequestPlan, user: str, may_describe: bool, known: Known) -> None:
        """A description has what was known when it was begun."""
        reported = quota_frames.described(response, plan.version)
        error = _error_of_filters(plan.filters)
        own = any(f.part == "user" and f.match == _EXACT and f.name == user for f in plan.filters)
        if not may_describe and not own:
            error = _NOT_AUTHORISED
        right = None if error else {p: limits for p, limits in known.items() if _is_asked_for(p, plan)}
        if (reported.error_code, reported.entries) != (error, right):
            raise Violation(f"describes {reported}, error {error}, {right} is right")

    def check_altered(self, response: bytes, plan: RequestPlan, may_alter: bool, written: bool) -> None:
        """The response to an alteration has for each entity what became of it."""
        reported = [
            (entry.error_code, frozenset(entry.entity)) for entry in quota_frames.altered(response, plan.version)
        ]
        right = _results(plan, written) if may_alter else _refused(plan)
        if reported != right:
            raise Violation(f"reports of its alterations {reported}, {right} is right")


def _refused(plan: RequestPlan) -> list[tuple[int, frozenset[tuple[str, str | None]]]]:
    """What a user without the right gets: of a long request the first entities, and one more for all others."""
    named, left = list[tuple[int, frozenset[tuple[str, str | None]]]](), MOST_NAMED
    for entry in plan.entries:
        left -= 1 + len(entry.parts)
        if left < 0:
            return [*named, (_NOT_AUTHORISED, frozenset())]
        named.append((_NOT_AUTHORISED, frozenset(entry.parts)))
        left -= len(entry.limits)
        if left < 0 and len(named) < len(plan.entries):
            return [*named, (_NOT_AUTHORISED, frozenset())]
    return named


def _described_of(quotas: Quotas) -> Known:
    known: Known = {}
    for entity, limits in quotas.items():
        reported = {key.quota_type.value: limit.value for key, limit in limits.items() if not key.shadow}
        if reported:
            known[_parts_of(entity)] = reported
    return known


def _apply(quotas: dict[Entity, Mapping[QuotaKey, Limit]], alteration: Alteration) -> None:
    limits = dict(quotas.get(alteration.entity, {}))
    for key, value in alteration.limits.items():
        if value is None:
            limits.pop(key, None)
        else:
            limits[key] = Limit(value, "api")
    if limits:
        quotas[alteration.entity] = limits
    else:
        quotas.pop(alteration.entity, None)


def writes(plan: RequestPlan, may_alter: bool) -> bool:
    """Whether an alteration has to be written anywhere."""
    return may_alter and not plan.validate_only and bool(_to_be_written(plan))


def _to_be_written(plan: RequestPlan) -> list[EntryPlan]:
    """Of each entity the first entry, if it is sound and changes anything."""
    seen: set[Parts] = set()
    wanted = []
    for entry in plan.entries:
        if frozenset(entry.parts) in seen:
            continue
        seen.add(frozenset(entry.parts))
        if not _error_of_entry(entry) and any(key in _KEYS for key, _ in entry.limits):
            wanted.append(entry)
    return wanted


def _results(plan: RequestPlan, written: bool) -> list[tuple[int, Parts]]:
    wanted = _to_be_written(plan) if written else []
    failures = {frozenset(wanted[i].parts): i for i in plan.alteration_fails if i < len(wanted)}
    everybody = [frozenset(entry.parts) for entry in plan.entries]
    results: list[tuple[int, Parts]] = []
    for entry in plan.entries:
        parts = frozenset(entry.parts)
        if parts in [known for _, known in results]:
            continue
        error = _INVALID if everybody.count(parts) > 1 else _error_of_entry(entry)
        if not error and parts in failures:
            error = _UNAVAILABLE if failures[parts] % 2 else _REFUSED
        results.append((error, parts))
    return results


def _error_of_entry(entry: EntryPlan) -> int:
    parts = dict(entry.parts)
    sound = bool(parts) and set(parts) <= {"user", "client-id"} and "" not in parts.values()
    for key, value in entry.limits:
        sound = sound and (value is None or (key in _KEYS and value > 0))
        sound = sound and (key not in _BYTE_RATES or value is None or value == int(value))
    return 0 if sound else _INVALID


def _error_of_filters(filters: Sequence[FilterPlan]) -> int:
    return _INVALID if len({f.part for f in filters}) < len(filters) else 0


def _is_asked_for(parts: Parts, plan: RequestPlan) -> bool:
    names = dict(parts)
    if plan.strict and set(names) != {f.part for f in plan.filters}:
        return False
    for f in plan.filters:
        if f.part not in names:
            return False
        if f.match == _EXACT and names[f.part] != f.name:
            return False
        if f.match == _DEFAULT and names[f.part] is not None:
            return False
    return True
