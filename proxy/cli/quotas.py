"""`kafka-throttle quotas`: read and change quotas in the configured source, with or without a running proxy."""

import json
import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.cli.admin_client import AdminEndpoint, NoProxy, ProxyRefuses, admin_options
from kafka_throttle.proxy.cli.config_file import (
    REFUSED,
    cluster_of,
    config_option,
    load,
    refuse,
    virtual_cluster_option,
)
from kafka_throttle.proxy.cli.entity_options import entity_of, entity_options, parts_of
from kafka_throttle.proxy.cli.opened_source import opened_source, print_problems, warn_of_problems
from kafka_throttle.proxy.cli.overrides import overridden_in
from kafka_throttle.proxy.cli.running_quotas import RunningProxy
from kafka_throttle.proxy.config.settings import VirtualClusterConfig
from kafka_throttle.proxy.net.turns import finish_at_once
from kafka_throttle.proxy.observe.explained import Form, Origin, limit_form, quotas_form
from kafka_throttle.quotas.changes import Alteration, AlterationRefused, Quotas, SourceUnavailable, scope_of
from kafka_throttle.quotas.entities import SCOPE, SCOPED, Entity, InvalidQuota, Name, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.explain import always_overridden_by
from kafka_throttle.quotas.limits import limit_text
from kafka_throttle.quotas.sources.entry_forms import entity_of as entity_in_form

_KEYS = [QuotaKey(quota_type, shadow).text for shadow in (False, True) for quota_type in QuotaType]


@click.group()
def quotas() -> None:
    """Read and change quotas in the configured source.

    KEYs are Kafka's (producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate,
    connection_creation_rate), or of a shadow quota (shadow_producer_byte_rate, ...), which is only measured.
    """


@quotas.command()
@config_option
@virtual_cluster_option
@entity_options
@admin_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def describe(path: Path, virtual_cluster: str | None, way: AdminEndpoint, as_json: bool, **options: Any) -> None:
    """Show quotas and the layer that each comes from: of all entities, or of those with the given parts.

    Asks the running proxy at the configured admin address. If no proxy answers, the quotas are those of the source.
    Quotas of the configuration file that changes in the state file override are shown as overridden.
    """
    config, parts = load(path), parts_of(options)
    clusters = config.virtual_clusters if virtual_cluster is None else [cluster_of(config, virtual_cluster)]
    proxy, forms, away = RunningProxy(config.admin, path, way), [], False
    for cluster in clusters:
        form = _of_proxy(proxy, cluster.name)
        if form is None:
            form, is_away = _of_source(cluster, path)
            away |= is_away
        form = _having(parts, {**form, "overridden": [each.form() for each in overridden_in(cluster, path)]})
        away |= not form.get("known", True)
        forms.append(form)
        if not as_json:
            click.echo(_listed(form))
    if as_json:
        click.echo(json.dumps({"virtual_clusters": forms}, indent=1))
    if away:
        raise SystemExit(REFUSED)


@quotas.command("set")
@config_option
@virtual_cluster_option
@entity_options
@admin_options
@click.option(
    "--scope",
    type=click.Choice([scope.value for scope in Scope]),
    help="Where byte rates and request percentages of the entity are measured: at each node by itself, or over all "
    "nodes. If not given, it stays as it is.",
)
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1)
def set_quotas(
    path: Path,
    virtual_cluster: str | None,
    way: AdminEndpoint,
    scope: str | None,
    settings: tuple[str, ...],
    **options: Any,
) -> None:
    """Set quotas of one entity, and their scope.

    This changes the source, which a running proxy reads by itself. It takes up a new `source` or `state_file` only at a
    restart. The proxy is asked for a few seconds whether it has taken the change up.
    """
    if not settings and scope is None:
        refuse("expected KEY=VALUE or --scope, got nothing")
    entity = entity_of(options)
    config = load(path)
    cluster = cluster_of(config, virtual_cluster)
    try:
        alteration = Alteration(entity, _limits(settings), None if scope is None else Scope(scope))
    except InvalidQuota as error:
        refuse(str(error))
    with opened_source(cluster, path) as source:
        [problem] = source.alter([alteration])
        if problem is not None:
            refuse(str(problem), REFUSED)
        in_source = source.quotas
    click.echo(_in_force(entity, in_source))
    _warn_if_overridden(entity, alteration.limits, in_source)
    keys = [*alteration.limits, *(_scoped(entity, in_source) if scope else ())]
    _report_taken_up(RunningProxy(config.admin, path, way), cluster, entity, keys, in_source)


@quotas.command()
@config_option
@virtual_cluster_option
@entity_options
@admin_options
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def unset(path: Path, virtual_cluster: str | None, way: AdminEndpoint, keys: tuple[str, ...], **options: Any) -> None:
    """Remove quotas of one entity. With the source `file`, remove their changes: the values of the file apply again.

    The KEY `scope` removes the scope.
    """
    from kafka_throttle.proxy.server.quota_sources import unset as unset_in

    entity = entity_of(options)
    config = load(path)
    cluster = cluster_of(config, virtual_cluster)
    gone = [_key(key) for key in keys if key != SCOPE]
    with_scope = SCOPE in keys
    with opened_source(cluster, path) as source:
        before = source.quotas.get(entity, {})
        try:
            unset_in(source, entity, gone, scope=with_scope)
        except (AlterationRefused, SourceUnavailable) as problem:
            refuse(str(problem), REFUSED)
        in_source = source.quotas
    after = in_source.get(entity, {})
    click.echo(_in_force(entity, in_source))
    asked = [*gone, *(_scoped(entity, in_source) if with_scope else ())]
    _report_taken_up(RunningProxy(config.admin, path, way), cluster, entity, asked, in_source)
    kept = [key.text for key in gone if key in after and after.get(key) == before.get(key)]
    if with_scope and scope_of(after) is scope_of(before) is Scope.CLUSTER:
        kept.append(SCOPE)
    if kept:
        layers = ", ".join(sorted({limit.layer for key, limit in after.items() if key.text in kept or SCOPE in kept}))
        refuse(f"{', '.join(kept)} of {entity}: set in {layers} itself, remove it there", REFUSED)


# ---------------------------------------------------------------------- asking


def _of_proxy(proxy: RunningProxy, virtual_cluster: str) -> Form | None:
    """The quotas in force in the running proxy; None if it cannot be asked, and why is printed."""
    try:
        form = proxy.quotas(virtual_cluster)
    except NoProxy as error:
        click.echo(f"no proxy answers at {error}: these quotas are those of the source", err=True)
    except ProxyRefuses as error:
        click.echo(f"the proxy cannot be asked, these quotas are those of the source: {error}", err=True)
    else:
        click.echo(f"answered by the proxy at {proxy.address}", err=True)
        print_problems(form["problems"])
        return form
    return None


def _of_source(cluster: VirtualClusterConfig, path: Path) -> tuple[Form, bool]:
    """The quotas of the source. True: they may not be those in force."""
    with opened_source(cluster, path) as source:
        origin = Origin(cluster.name, source.name, source.problems, source.state.known)
        form = finish_at_once(quotas_form(origin, source.quotas, 0, len(source.quotas)))
        return form, warn_of_problems(source, cluster, path)


def _report_taken_up(
    proxy: RunningProxy, cluster: VirtualClusterConfig, entity: Entity, keys: Iterable[QuotaKey], in_source: Quotas
) -> None:
    """Print whether the running proxy has what is in the source by now."""
    limits = in_source.get(entity, {})
    expected = {key: limits.get(key) for key in keys}
    proxy.report_taken_up(cluster.name, entity, expected)


def _scoped(entity: Entity, quotas: Quotas) -> list[QuotaKey]:
    """The quotas of an entity that have a scope."""
    return [key for key in quotas.get(entity, {}) if key.quota_type in SCOPED]


# -------------------------------------------------------------------- reading


def _limits(settings: Iterable[str]) -> dict[QuotaKey, float | None]:
    """The limits in `key=value` pairs. Ends the process if a pair is invalid, or a key is given twice."""
    limits: dict[QuotaKey, float | None] = {}
    for setting in settings:
        text, equals, value = setting.partition("=")
        if not equals:
            refuse(f"expected KEY=VALUE, got {setting!r}")
        key = _key(text)
        if key in limits:
            refuse(f"{key.text}: expected once, got it again")
        limits[key] = _number(key, value)
    return limits


def _key(text: str) -> QuotaKey:
    try:
        return QuotaKey.parse(text)
    except InvalidQuota:
        close = get_close_matches(text, _KEYS, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"expected {', '.join(_KEYS)}"
        refuse(f"{text!r}: unknown quota, {hint}")


def _number(key: QuotaKey, text: str) -> float:
    try:
        value = float(text) if "_" not in text else math.nan
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        refuse(f"{key.text}: expected a number, got {text!r}")
    return value


# -------------------------------------------------------------------- output


def _having(parts: Mapping[str, Name], form: Form) -> Form:
    """The quotas of entities with these parts, sorted by name."""

    def is_wanted(entry: Form) -> bool:
        entity = entity_in_form(entry["entity"])
        return all(getattr(entity, part) == name for part, name in parts.items())

    shown = sorted(filter(is_wanted, form["quotas"]), key=lambda entry: str(entity_in_form(entry["entity"])))
    return {**form, "total": len(shown), "quotas": shown, "overridden": list(filter(is_wanted, form["overridden"]))}


def _listed(form: Form) -> str:
    limits = {entity_in_form(entry["entity"]): entry["limits"] for entry in form["quotas"]}
    overridden: dict[Entity, list[Form]] = {}
    for each in form["overridden"]:
        overridden.setdefault(entity_in_form(each["entity"]), []).append(each)
    count = "1 entity" if len(limits) == 1 else f"{len(limits) or 'no'} entities"
    lines = [f"virtual cluster {form['virtual_cluster']}, source {form['source']}: {count}"]
    for entity in sorted({*limits, *overridden}, key=str):
        lines.append(_quotas_of(entity, limits.get(entity, {})))
        lines += [f"  overridden: {_overridden(each)}" for each in overridden.get(entity, ())]
    return "\n".join(lines)


def _overridden(each: Form) -> str:
    of_file = f"{each['quota']} {limit_text(each['limit'])} of {printable(each['layer'])}"
    by = "removed" if each["by"]["limit"] is None else limit_text(each["by"]["limit"])
    return f"{of_file}, by {printable(each['by']['layer'])}: {by}"


def _in_force(entity: Entity, quotas: Quotas) -> str:
    """An entity and its quotas, one line each."""
    return _quotas_of(entity, {key.text: limit_form(key, limit) for key, limit in quotas.get(entity, {}).items()})


def _quotas_of(entity: Entity, limits: Mapping[str, Form]) -> str:
    """An entity and its limits by the text of their key, one line each."""
    name = printable(str(entity), 1_000)
    if not limits:
        return f"{name}\n  no quotas"
    rows = [
        (key, "no limit" if limit["limit"] is None else limit_text(limit["limit"]), printable(limit["layer"], 1_000))
        for key, limit in sorted(limits.items(), key=_by_text)
    ]
    if any(_is_of_cluster(key, limit) for key, limit in limits.items()):
        rows.append((SCOPE, Scope.CLUSTER.value, "all nodes share each byte rate and request percentage"))
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = (f"  {key:<{widths[0]}}  {limit:>{widths[1]}}  {layer}" for key, limit, layer in rows)
    return "\n".join([name, *lines])


def _is_of_cluster(key: str, limit: Form) -> bool:
    """Whether a quota that could be at each node by itself is over all nodes. An earlier proxy does not say."""
    return QuotaKey.parse(key).quota_type in SCOPED and limit.get("scope") == Scope.CLUSTER.value


def _by_text(item: tuple[str, Any]) -> tuple[bool, str]:
    return QuotaKey.parse(item[0]).shadow, item[0]


def _warn_if_overridden(entity: Entity, keys: Iterable[QuotaKey], quotas: Quotas) -> None:
    """Warn if the quotas that were set can bind no client, or only clients without a client-id."""
    for key in keys:
        if first := always_overridden_by(entity, {other for other, limits in quotas.items() if key in limits}):
            click.echo(f"warning: {key.text}: {first.warning()}", err=True)
