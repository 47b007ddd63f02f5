"""`kafka-throttle top`: the clients that a running proxy throttles now."""

import json
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from time import sleep, time
from typing import NamedTuple

import click

from kafka_throttle.common.printable import printable
from kafka_throttle.proxy.cli.admin_client import AdminEndpoint, NoProxy, ProxyRefuses, admin_options, ask
from kafka_throttle.proxy.cli.config_file import (
    REFUSED,
    cluster_of,
    config_option,
    load,
    refuse,
    virtual_cluster_option,
)
from kafka_throttle.proxy.cli.history import from_history
from kafka_throttle.proxy.cli.number_range import NumberRange
from kafka_throttle.proxy.cli.quota_text import entity_text
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.settings import AdminConfig, Config
from kafka_throttle.proxy.observe.explained import Form
from kafka_throttle.proxy.observe.throttled_now import MAX_THROTTLED, RANKS

_GAP = "  "


@click.command()
@config_option
@virtual_cluster_option
@click.option(
    "--sort",
    type=click.Choice(list(RANKS)),
    default="left",
    show_default=True,
    help="Which client is first: the one with the longest time left, the highest use as a share of its limit, the "
    "oldest throttle, or the longest throttle time since then.",
)
@click.option(
    "--limit",
    type=click.IntRange(1, MAX_THROTTLED),
    default=20,
    show_default=True,
    help="The most lines to show.",
)
@click.option(
    "--every",
    "every_s",
    type=NumberRange(0.2, 3600),
    default=2,
    show_default=True,
    metavar="SECONDS",
    help="How often to ask the proxy.",
)
@admin_options
@click.option("--once", is_flag=True, help="Ask once and end.")
@click.option(
    "--at",
    metavar="TIME",
    help="Show who was throttled in a second of the past, like 03:12:07, 2026-11-25T03:12:07Z or -15m (UTC, unless it "
    "ends with an offset), those first that were muted for longest; and end.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one line each time.")
def top(
    path: Path,
    virtual_cluster: str | None,
    sort: str,
    limit: int,
    every_s: float,
    way: AdminEndpoint,
    once: bool,
    at: str | None,
    as_json: bool,
) -> None:
    """Show which clients are throttled now: by which rule, for how long still, since when, and how much they use.

    Asks the running proxy at the configured admin address, again and again until Ctrl-C. Without --virtual-cluster the
    clients of all virtual clusters are shown.
    """
    config = load(path)
    if at is not None:
        form = _of_the_past(config, path, virtual_cluster, limit, at, way)
        click.echo(json.dumps(form) if as_json else "\n".join(_lines(form, len(config.virtual_clusters) > 1)))
        return
    parameters = {"sort": sort, "limit": str(limit)}
    several_clusters = len(config.virtual_clusters) > 1
    if virtual_cluster is not None:
        parameters["virtual_cluster"] = cluster_of(config, virtual_cluster).name
    try:
        while True:
            form = _asked(config.admin, path, parameters, way)
            if as_json:
                click.echo(json.dumps(form))
            else:
                if not once:
                    click.clear()
                click.echo("\n".join(_lines(form, several_clusters)))
            if once:
                return
            sleep(every_s)
    except KeyboardInterrupt:
        return


def _asked(admin: AdminConfig, path: Path, parameters: dict[str, str], way: AdminEndpoint) -> Form:
    """The response of the running proxy. Ends the process if there is none."""
    try:
        return ask(admin, path, "throttled", parameters, way)
    except NoProxy as error:
        refuse(f"no proxy answers at {error} (the address is admin.bind and admin.port of {path})", REFUSED)
    except ProxyRefuses as error:
        refuse(str(error), REFUSED)
    except ConfigErrors as error:
        refuse(str(error))


def _of_the_past(
    config: Config, path: Path, virtual_cluster: str | None, limit: int, at: str, way: AdminEndpoint
) -> Form:
    """Who was throttled in a second, from the running proxy, or from the files. Ends the process if it is not known."""
    clusters = [each.name for each in config.virtual_clusters]
    parameters = {"limit": str(limit), "at": at}
    if virtual_cluster is not None:
        clusters = [cluster_of(config, virtual_cluster).name]
        parameters["virtual_cluster"] = virtual_cluster
    try:
        return ask(config.admin, path, "throttled", parameters, way)
    except NoProxy as error:
        return from_history(config, error, lambda past: past.throttled(clusters, at, limit, time()))
    except ProxyRefuses as error:
        refuse(str(error), REFUSED)
    except ConfigErrors as error:
        refuse(str(error))


# --------------------------------------------------------------------- as text


def _lines(form: Form, several_clusters: bool) -> Iterator[str]:
    for origin in form.get("quotas_unknown", ()):
        yield _unknown(origin)
    one, several, when = ("was", "were", f"at {form['at']}") if "at" in form else ("is", "are", "now")
    if not form["total"]:
        yield f"no client {one} throttled {when}{_why_none(form)}"
        return
    clients = f"1 client {one}" if form["clients"] == 1 else f"{form['clients']} clients {several}"
    yield f"{clients} throttled {when}, {RANKS[form['sort']].first} first"
    yield from _table([_CLUSTER, *_COLUMNS] if several_clusters else _COLUMNS, form["throttled"])
    if form["more"]:
        yield f"and {form['more']} more {'line' if form['more'] == 1 else 'lines'} (--limit)"


def _why_none(form: Form) -> str:
    """Why no client is throttled now, as far as the proxy says it; of the past, and of an earlier version, nothing."""
    if "connections" not in form:
        return ""
    why = []
    if not form["connections"]:
        why.append("no client is connected")
    if not form["entities"] and not form["quotas_unknown"]:
        why.append("no quota is in force")
    if not why:
        one = form["connections"] == 1
        why.append(
            f"{form['connections']} {'connection is' if one else 'connections are'} open, all within their quotas"
        )
    if form["other_instances"]:
        why.append("clients of other instances are shown there")
    return f": {'; '.join(why)}"


def _unknown(origin: Form) -> str:
    """What is said of quotas that are not known yet, and why."""
    reasons = "; ".join(f"{place}: {problem}" for place, problem in origin["problems"].items())
    why = printable(reasons, 1_000) or f"the source {origin['source']} has not been read"
    return f"the quotas of {printable(origin['virtual_cluster'])} are not known yet: {why}"


def _table(columns: Sequence["_Column"], clients: Sequence[Form]) -> Iterator[str]:
    table = [[column.name, *map(column.cell, clients)] for column in columns]
    for column, cells in zip(columns, table, strict=True):
        width = max(map(len, cells))
        cells[:] = [cell.rjust(width) if column.to_the_right else cell.ljust(width) for cell in cells]
    for line in zip(*table, strict=True):
        yield _GAP.join(line).rstrip()


def _limit(client: Form) -> str:
    """The limit that is enforced; of an instance in a fleet its share, and the whole limit."""
    limit, share = client["limit"], client.get("share")
    if limit is None or share is None or share == 1:
        return "" if limit is None else f"{limit} {client['unit']}"
    return f"{limit * share:.6g} of {limit} {client['unit']}"


def _used(client: Form) -> str:
    """What is used of the quota; of a token bucket, how much is left."""
    if client["bucket"] is not None:
        return f"{client['bucket']['tokens']:.1f} of {client['bucket']['burst']:.1f} tokens left"
    return "" if client["rate"] is None else f"{client['rate']:.1f}"


def _rule(rule: Form | None) -> str:
    if rule is None:
        return "the node throttles by itself"
    layer = "removed meanwhile" if rule["layer"] is None else f"of {printable(rule['layer'])}"
    return f"{entity_text(rule['entity'])}, {layer}"


class _Column(NamedTuple):
    """A column of the table: its name, and what it says of a client."""

    name: str
    cell: Callable[[Form], str]
    to_the_right: bool = False


_CLUSTER = _Column("VIRTUAL CLUSTER", itemgetter("virtual_cluster"))
_COLUMNS = (
    _Column("LEFT", lambda client: f"{client['left_ms'] / 1000:.1f} s", True),
    _Column("SINCE", lambda client: client["since"].partition(".")[0] + "Z"),
    _Column("USER", lambda client: printable(client["user"])),
    _Column("CLIENT-ID", lambda client: printable(client["client_id"]) or "''"),
    _Column("NODE", lambda client: str(client["node_id"]), True),
    _Column("QUOTA", itemgetter("quota_type")),
    _Column("USED", _used, True),
    _Column("LIMIT", _limit, True),
    _Column("CONNS", lambda client: str(client["connections"]), True),
    _Column("THROTTLED", lambda client: f"{client['throttled_ms'] / 1000:.1f} s", True),
    _Column("RULE", lambda client: _rule(client["rule"])),
)
