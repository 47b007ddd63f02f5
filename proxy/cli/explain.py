"""`kafka-throttle explain`: the quotas of a client, why they apply, and what a running proxy has measured."""

import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

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
from kafka_throttle.proxy.cli.opened_source import opened_source, print_problems, warn_of_problems
from kafka_throttle.proxy.cli.quota_text import amount, entity_text, past_lines, throttled_by_node
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.settings import VirtualClusterConfig
from kafka_throttle.proxy.decisions.client_ids import measured_client_id
from kafka_throttle.proxy.observe.explained import Cap, Form, Observed, Origin, explained_form, share_text
from kafka_throttle.proxy.observe.known_clients import Names
from kafka_throttle.proxy.observe.past.look_up import Past
from kafka_throttle.quotas.changes import tables_of
from kafka_throttle.quotas.entities import is_ip
from kafka_throttle.quotas.explain import explain as explain_client


@click.command()
@config_option
@virtual_cluster_option
@click.option(
    "--user",
    metavar="NAME",
    help="The user of the client; ANONYMOUS for a client that does not log in. Without it, those users are explained "
    "who are connected or measured with the client-id.",
)
@click.option(
    "--client-id",
    metavar="NAME",
    help="The client-id of the client, '' for an empty one. Without it, the client-ids of the user are explained.",
)
@click.option(
    "--ip",
    metavar="ADDRESS",
    help="The address of the client. Without a user or a client-id, the clients are explained that are connected from "
    "there.",
)
@click.option(
    "--at",
    metavar="TIME",
    help="Explain a second of the past, like 03:12:07, 2026-11-25T03:12:07Z or -15m (UTC, unless it ends with an "
    "offset).",
)
@admin_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def explain(
    path: Path,
    virtual_cluster: str | None,
    user: str | None,
    client_id: str | None,
    ip: str | None,
    at: str | None,
    way: AdminEndpoint,
    as_json: bool,
) -> None:
    """Explain which quotas bind a client, which have lower precedence, who shares them, and how much is used.

    Options that fit several clients explain up to ten of them, throttled ones first.

    Asks the running proxy at the configured admin address. If no proxy answers, the explanation comes from the source
    of the quotas alone, without measurements; that of the past comes from the files in history.directory. While the
    quotas are not known yet, it says so and ends with 1.
    """
    config = load(path)
    cluster = cluster_of(config, virtual_cluster)
    names = _names(user, client_id, ip)
    given = {"virtual_cluster": cluster.name, **names._asdict(), "at": at}
    parameters = {name: value for name, value in given.items() if value is not None}
    form: Form
    try:
        form = ask(config.admin, path, "explain", parameters, way)
    except NoProxy as error:
        if at is None:
            click.echo(
                f"no proxy answers at {error}: this is from the source alone, without what is measured", err=True
            )
            form = _from_source(cluster, path, names)
        else:
            form = from_history(config, error, partial(_explained, cluster.name, names, at))
    except ProxyRefuses as error:
        refuse(str(error), REFUSED)
    except ConfigErrors as error:
        refuse(str(error))
    else:
        click.echo(f"answered by the proxy at {way.address_of(config.admin)}", err=True)
        print_problems(form["problems"])
    click.echo(json.dumps(form, indent=1) if as_json else "\n".join(_lines(form)))
    if not _is_known(form):
        when = "are not known yet: their source has not been read" if at is None else "were not known then"
        refuse(f"the quotas of {cluster.name} {when}", REFUSED)


def _names(user: str | None, client_id: str | None, ip: str | None) -> Names:
    if user == "":
        refuse("--user: expected a name, got an empty one")
    if ip is not None and not is_ip(ip):
        refuse(f"--ip: expected an IP address, got {ip!r}")
    return Names(user, client_id, ip)


def _from_source(cluster: VirtualClusterConfig, path: Path, names: Names) -> Form:
    """The explanation from the quotas alone. Ends the process if they cannot be read."""
    client, notes = names.client, []
    if client is None:
        client, note = names.stand_in("without a proxy it is not known which clients are connected")
        notes = [note]
    with opened_source(cluster, path) as source:
        if warn_of_problems(source, cluster, path):
            refuse(f"the quotas of {cluster.name} cannot be read now", REFUSED)
        tables = tables_of(source.quotas)
        measured = measured_client_id(client.client_id.encode(errors="surrogateescape"), tables.enforced)
        client = client._replace(client_id=measured)
        origin = Origin(cluster.name, source.name, source.problems, source.state.known)
        explanations = explain_client(source.quotas, tables, client, known=origin.known)
    reported = [(explanation, Observed()) for explanation in explanations]
    return explained_form(
        origin, client, reported, (), None, _caps(cluster), user_names=cluster.sasl.user_names, notes=notes
    )


def _explained(cluster: str, names: Names, at: str, past: Past) -> Form:
    return past.explained(cluster, names, at, time.time())


def _caps(cluster: VirtualClusterConfig) -> Iterator[Cap]:
    for listener, caps in (("", cluster.caps), *((listener.name, listener.caps) for listener in cluster.listeners)):
        for direction, limit in (("ingress", caps.ingress_bytes_per_s), ("egress", caps.egress_bytes_per_s)):
            if limit is not None:
                yield Cap(listener, direction, limit)


# --------------------------------------------------------------------- as text


def _lines(form: Form) -> Iterator[str]:
    others, more = form.get("others", ()), form.get("more", 0)
    yield f"virtual cluster {form['virtual_cluster']}, source {form['source']}{_at(form)}: {_client(form)}"
    yield from form.get("notes", ())
    if others:
        which = "those that were muted for longest" if "at" in form else "throttled ones, then those that are connected"
        yield f"{1 + len(others) + more} clients fit, first {which}"
    yield from _client_lines(form, "no limit" if _is_known(form) else "not known yet")
    for other in others:
        yield ""
        yield f"{_client(other)}"
        yield from _client_lines(other, "no limit" if _is_known(form) else "not known yet")
    if more:
        yield ""
        yield f"and {more} more {'client' if more == 1 else 'clients'}: --user and --client-id choose one"
    if form.get("caps"):
        yield ""
        yield "bytes/s of all clients together, beyond which reads wait and no client is throttled:"
        yield from (f"  {_cap(cap)}" for cap in form["caps"])


def _client(explained: Form) -> str:
    """The names of a client, and whether it is throttled now."""
    client = explained["client"]
    parts = [
        f"{part}={printable(repr(client[part]))}" for part in ("user", "client_id", "ip") if client[part] is not None
    ]
    return f"{', '.join(parts)}{', throttled now' if explained.get('throttled') else ''}"


def _client_lines(explained: Form, without_rule: str) -> Iterator[str]:
    for reported in explained["quotas"]:
        yield ""
        yield from _quota_lines(reported, without_rule)
    for line in explained.get("node_throttled", ()):
        yield ""
        yield throttled_by_node(line)
    for past in explained.get("node_throttles", ()):
        yield ""
        yield f"throttled by node {past['node_id']} itself {_when(past)}"


def _at(form: Form) -> str:
    """The second of the past, how exact the explanation is, and whether it may lack something."""
    if "at" not in form:
        return ""
    seconds = f"at {form['at']}" if form["at"] == form["until"] else f"from {form['at']} to {form['until']}"
    exact = "exact, from the trace" if form["precision"] == "exact" else "to the second"
    skipped = f", {form['skipped']} damaged records were skipped" if form["skipped"] else ""
    return f", {seconds} ({exact}{skipped})"


def _is_known(form: Form) -> bool:
    """Whether the quotas are known. A proxy of an earlier version does not say."""
    return bool(form.get("known", True))


def _quota_lines(reported: Form, without_rule: str) -> Iterator[str]:
    rule, unit = reported["rule"], reported["unit"]
    yield f"{reported['quota']}: {without_rule if rule is None else amount(rule['limit'], unit)}"
    if rule is not None:
        yield f"  by {entity_text(rule['entity'])}, level {rule['level']}, of {printable(rule['layer'])}"
    for overridden in reported.get("overridden", ()):  # an earlier version had another name
        which = f"{entity_text(overridden['entity'])}, level {overridden['level']}, of {printable(overridden['layer'])}"
        yield f"  not by {which} ({amount(overridden['limit'], unit)}): {overridden['why']}"
    if reported["shared_by"]:
        yield f"  measured together: {printable(reported['shared_by'], 1_000)}"
    yield from (f"  {note}" for note in reported["notes"])
    if "throttled" in reported:
        yield from past_lines(reported)
    for use in reported["use"]:
        where = "all nodes" if use["node_id"] is None else f"node {use['node_id']}"
        yield f"  {where}: {_use(use, unit)}"
        if use.get("share") is not None:
            yield f"    {amount(use['limit'], unit)} here, {share_text(use['share'])}"
    for past in reported["throttles"]:
        who = f"user={printable(repr(past['user']))}, client_id={printable(repr(past['client_id']))} from {past['ip']}"
        yield f"  throttled at node {past['node_id']} {_when(past)}: {who}{_measured(past, unit)}"


def _cap(cap: Form) -> str:
    where = f"listener {cap['listener']}" if cap["listener"] else "all listeners"
    text = f"{where}, {cap['direction']}: {cap['limit']} bytes/s"
    if cap["waits"] is None:
        return text
    return (
        f"{text}; {cap['waits']} reads have waited, {cap['waited_ms'] / 1000:.1f} s in all, {cap['waiting']} wait now"
    )


def _use(use: Form, unit: str) -> str:
    throttles = "1 throttle" if use["throttles"] == 1 else f"{use['throttles']} throttles"
    words = [_used(use, unit), f"{throttles}, {use['throttled_ms'] / 1000:.1f} s in all"]
    if use["capped"]:
        words.append(f"{use['capped']} cut short")
    if use.get("refusals"):
        words.append("1 refusal" if use["refusals"] == 1 else f"{use['refusals']} refusals")
    if use.get("debt_ms"):
        words.append(f"{use['debt_ms'] / 1000:.1f} s still owed")
    if use["shared_by"] is not None:
        words.append(f"shared by new clients of {entity_text(use['shared_by'])}, because the table of sensors was full")
    return ", ".join(words)


def _used(use: Form, unit: str) -> str:
    if "rate" in use:
        return f"{use['rate']:.1f} {unit} used"
    bucket = use["bucket"]
    return "no limit" if bucket is None else f"{bucket['tokens']:.1f} of {bucket['burst']:.1f} tokens left"


def _when(past: Form) -> str:
    left = f", {past['left_ms'] / 1000:.1f} s left" if past["left_ms"] else ""
    times = f", {past['throttles']} throttles" if past["throttles"] > 1 else ""
    return f"at {past['at']} for {past['throttle_time_ms'] / 1000:.1f} s{left}{times}"


def _measured(past: Form, unit: str) -> str:
    if past["tokens"] is not None:
        return f", with {past['tokens']:.1f} tokens"
    if past["rate"] is None or past["limit"] is None:
        return ""
    return f", measured {past['rate']:.1f} of {amount(past['limit'], unit)}"
