"""`kafka-throttle quotas`: read and change quotas in the configured source, with or without a running proxy."""

import json
import logging
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click

from common.printable import printable
from proxy.cli.config_file import (
    REFUSED,
    cluster_of,
    config_option,
    load,
    refuse,
    virtual_cluster_option,
)
from proxy.cli.entity_options import entity_of, entity_options, parts_of
from proxy.config.problems import ConfigErrors
from proxy.config.settings import VirtualClusterConfig
from proxy.observe.explained import Origin, quotas_form
from quotas.changes import Alteration, AlterationRefused, Quotas, SourceUnavailable
from quotas.entities import Entity, InvalidQuota, Name, QuotaKey, QuotaType
from quotas.explain import always_beaten_by
from quotas.limits import limit_text
from quotas.sources.source import Source

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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def describe(path: Path, virtual_cluster: str | None, as_json: bool, **options: Any) -> None:
    """Show quotas and the layer that each comes from: of all entities, or of those with the given parts."""
    config, parts = load(path), parts_of(options)
    clusters = config.virtual_clusters if virtual_cluster is None else [cluster_of(config, virtual_cluster)]
    forms, away = [], False
    for cluster in clusters:
        with opened_source(cluster, path) as source:
            reported = {entity: source.quotas[entity] for entity in _sorted(source.quotas, parts)}
            origin = Origin(cluster.name, source.name, source.problems, source.state.known)
            forms.append(quotas_form(origin, reported, 0, len(reported)))
            away |= warn_of_problems(source, cluster, path)
            if not as_json:
                click.echo(_listed(cluster.name, source.name, reported))
    if as_json:
        click.echo(json.dumps({"virtual_clusters": forms}, indent=1))
    if away:
        raise SystemExit(REFUSED)


@quotas.command("set")
@config_option
@virtual_cluster_option
@entity_options
@click.argument("settings", metavar="KEY=VALUE...", nargs=-1, required=True)
def set_quotas(path: Path, virtual_cluster: str | None, settings: tuple[str, ...], **options: Any) -> None:
    """Set quotas of one entity.

    This changes the source, which a running proxy reads by itself. It takes up a new `source` or `state_file` only at a
    restart. `kafka-throttle explain` shows which quotas it applies.
    """
    entity = entity_of(options)
    cluster = cluster_of(load(path), virtual_cluster)
    try:
        alteration = Alteration(entity, _limits(settings))
    except InvalidQuota as error:
        refuse(str(error))
    with opened_source(cluster, path) as source:
        [problem] = source.alter([alteration])
        if problem is not None:
            refuse(str(problem), REFUSED)
        click.echo(_in_force(entity, source.quotas))
        _warn_if_beaten(entity, alteration.limits, source.quotas)


@quotas.command()
@config_option
@virtual_cluster_option
@entity_options
@click.argument("keys", metavar="KEY...", nargs=-1, required=True)
def unset(path: Path, virtual_cluster: str | None, keys: tuple[str, ...], **options: Any) -> None:
    """Remove quotas of one entity. With the source `file`, remove their changes: the values of the file apply again."""
    from proxy.server.quota_sources import unset as unset_in

    entity = entity_of(options)
    cluster = cluster_of(load(path), virtual_cluster)
    gone = [_key(key) for key in keys]
    with opened_source(cluster, path) as source:
        before = source.quotas.get(entity, {})
        try:
            unset_in(source, entity, gone)
        except (AlterationRefused, SourceUnavailable) as problem:
            refuse(str(problem), REFUSED)
        after = source.quotas.get(entity, {})
        click.echo(_in_force(entity, source.quotas))
    kept = [key for key in gone if key in after and after.get(key) == before.get(key)]
    if kept:
        layers = ", ".join(sorted({after[key].layer for key in kept}))
        refuse(f"{', '.join(key.text for key in kept)} of {entity}: set in {layers} itself, remove it there", REFUSED)


# --------------------------------------------------------------------- source


@contextmanager
def opened_source(cluster: VirtualClusterConfig, path: Path) -> Iterator[Source]:
    """The source of a virtual cluster, started. Ends the process if its configuration is invalid."""
    from proxy.server.quota_sources import source_of

    logging.getLogger().setLevel(logging.CRITICAL)  # errors of libraries are also in the problems of the source
    try:
        source = source_of(cluster, path, remembers=False)
    except ConfigErrors as problems:
        refuse(str(problems))
    source.start(lambda: None)
    try:
        yield source
    finally:
        source.stop()


def warn_of_problems(source: Source, cluster: VirtualClusterConfig, path: Path) -> bool:
    """Print the problems of a source on standard error. Returns True if its quotas may not be those in force."""
    state_file = cluster.quotas.state_file
    itself = (source.name, str(path.parent / state_file)) if state_file else (source.name,)
    print_problems(source.problems)
    return any(place.startswith(itself) for place in source.problems)


def print_problems(problems: Mapping[str, str]) -> None:
    """Print what is wrong with a source on standard error, a line for each problem."""
    for place, problem in problems.items():
        click.echo(f"warning: {printable(place, 1_000)}: {printable(problem, 1_000)}", err=True)


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


def _sorted(quotas: Quotas, parts: Mapping[str, Name]) -> list[Entity]:
    """The entities with these parts, sorted by name."""
    having = (entity for entity in quotas if all(getattr(entity, part) == name for part, name in parts.items()))
    return sorted(having, key=str)


def _listed(virtual_cluster: str, source: str, quotas: Quotas) -> str:
    count = "1 entity" if len(quotas) == 1 else f"{len(quotas) or 'no'} entities"
    lines = [f"virtual cluster {virtual_cluster}, source {source}: {count}"]
    return "\n".join([*lines, *(_in_force(entity, quotas) for entity in quotas)])


def _in_force(entity: Entity, quotas: Quotas) -> str:
    """An entity and its quotas, one line each."""
    limits = quotas.get(entity, {})
    if not limits:
        return f"{entity}\n  no quotas"
    rows = [
        (key.text, limit_text(limit.value), printable(limit.layer, 1_000))
        for key, limit in sorted(limits.items(), key=_by_text)
    ]
    widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
    lines = (f"  {key:<{widths[0]}}  {limit:>{widths[1]}}  {layer}" for key, limit, layer in rows)
    return "\n".join([str(entity), *lines])


def _by_text(item: tuple[QuotaKey, Any]) -> tuple[bool, str]:
    return item[0].shadow, item[0].text


def _warn_if_beaten(entity: Entity, keys: Iterable[QuotaKey], quotas: Quotas) -> None:
    """Warn if the quotas that were set can bind no client, or only clients without a client-id."""
    for key in keys:
        if first := always_beaten_by(entity, {other for other, limits in quotas.items() if key in limits}):
            click.echo(f"warning: {key.text}: {first.warning()}", err=True)
