"""The most important findings, in sentences."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, groupby

from kafka_throttle.pipeline.report import words
from kafka_throttle.pipeline.report.figures import SENSOR
from kafka_throttle.pipeline.report.findings import Findings, KilledProcess, Missing, Row
from kafka_throttle.pipeline.report.price_sheet import UNASSIGNED
from kafka_throttle.pipeline.report.views import TYPE_NAMES, limit_in_words, muted_share, utilisation_in_words

MOST_MISSING = 5


@dataclass(frozen=True, slots=True)
class Remark:
    """One sentence, or a few. `tone`: `bad`, `warning`, `good` or `plain`; `place`: the section of the page with the
    details.
    """

    text: str
    tone: str
    place: str


def summary(findings: Findings) -> list[Remark]:
    """The remarks: first what limits the data, then use, throttled clients, utilisation, neighbours, costs and
    forecast.
    """
    if not findings.records:
        return [Remark(_nothing(findings), "warning", ""), *_penalties(findings)]
    parts = (_use(findings), _throttling(findings), _utilisation(findings), _noise(findings), _shadows(findings),
             _costs(findings), _future(findings))  # fmt: skip
    return [*_penalties(findings), *(remark for part in parts for remark in part)]


def _nothing(findings: Findings) -> str:
    if findings.since_ms is None and findings.until_ms is None:
        return "The table holds no usage records."
    since = "the beginning" if findings.since_ms is None else words.moment(findings.since_ms)
    until = "the end" if findings.until_ms is None else words.moment(findings.until_ms)
    return f"The table holds no usage records from {since} to {until} (UTC)."


def who(row: Row) -> str:
    """The name of a client in a sentence."""
    user, client_id = row.get("user"), row.get("client_id")
    if row.get("ip"):
        return f"address {words.name(row['ip'], 40)}"
    if user and client_id:
        return f"“{words.name(user, 40)}” ({words.name(client_id, 40)})"
    return f"“{words.name(user, 40)}”" if user else "logins"


def _penalties(findings: Findings) -> Iterator[Remark]:
    lost = [one for one in findings.missing if not one.dropped]
    dropped = [one for one in findings.missing if one.dropped]
    if lost:
        yield Remark(f"{_ranges(lost)} missing: all sums are too small by their use.", "bad", "missing")
    if findings.killed:
        yield Remark(f"{killed(findings.killed)} All sums are too small by this use.", "bad", "missing")
    if dropped:
        yield Remark(f"{_ranges(dropped)} missing because the proxy had no room for them.", "bad", "missing")
    if findings.quarantined:
        lines = words.plural(findings.quarantined, "line")
        yield Remark(f"{lines} could not be read and {_are(findings.quarantined)} in quarantine.", "warning", "missing")
    for row in findings.clocks_ahead:
        seconds = f"{words.count(row['ahead_ms'] // 1_000)} s"
        yield Remark(
            f"The clock of {words.name(row['instance'], 40)} is ahead by {seconds} or more: it has records of times "
            "that are still to come.",
            "warning",
            "time",
        )
    if findings.silences:
        begin, end = max(findings.silences, key=lambda one: one[1] - one[0])
        more = f", and {len(findings.silences) - 1} shorter times" if len(findings.silences) > 1 else ""
        at = f"from {words.moment(begin)} to {words.moment(end)}{more}"
        yield Remark(f"There are no records {at}: the cluster was idle, or no proxy wrote records.", "warning", "time")


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _ranges(missing: list[Missing]) -> str:
    parts = [
        f"{_span(one.first, one.last)} of instance {words.name(one.instance, 40)}" for one in missing[:MOST_MISSING]
    ]
    left = sum(one.records for one in missing[MOST_MISSING:])
    if left:
        parts.append(f"{words.count(left)} more")
    return f"Records {words.listed(parts, MOST_MISSING + 1)} are"


def killed(processes: Sequence[KilledProcess]) -> str:
    """How often processes were killed, and how much of their use at most has no records."""
    times = words.plural(len(processes), "process of the proxy was", "processes of the proxy were")
    longest = max(one.flush_ms for one in processes)
    most = words.duration(longest) if longest and all(one.flush_ms for one in processes) else "usage.window_s"
    return (
        f"{times} killed: the use of the last {most} at most before that has no records "
        "(if the machine crashed, also the use in the last file)."
    )


def _span(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first}-{last}"


def _use(findings: Findings) -> Iterator[Remark]:
    totals = findings.totals
    text = (
        f"In {words.duration(findings.end_ms - findings.begin_ms)}, "
        f"{words.plural(findings.client_count, 'client')} sent {words.size(totals['in_bytes'])} "
        f"and got {words.size(totals['out_bytes'])} in {words.about(totals['requests'])} requests."
    )
    if few := _few(findings):
        text = f"{text} {few}"
    yield Remark(text, "plain", "talkers")
    if totals["unsent_bytes"]:
        lost = words.size(totals["unsent_bytes"])
        yield Remark(f"{lost} of the responses never reached a client, because it had hung up.", "plain", "talkers")
    if findings.unlimited_bytes and totals["bytes"]:
        part = words.share(findings.unlimited_bytes / totals["bytes"])
        yield Remark(f"{part} of all bytes are under no quota of their type.", "warning", "utilisation")


def _few(findings: Findings) -> str:
    """How few clients make half of all bytes."""
    everything = findings.totals["bytes"]
    sums = list(accumulate(sorted((row["bytes"] for row in findings.clients), reverse=True)))
    few = next((i + 1 for i, part in enumerate(sums) if part * 2 >= everything), 0)
    if not everything or not few or few == findings.client_count:
        return ""
    part = words.share(sums[few - 1] / everything)
    if few == 1:
        return f"{who(max(findings.clients, key=lambda row: row['bytes']))} alone makes {part} of all bytes."
    return f"{few} of them make {part} of all bytes."


def _throttling(findings: Findings) -> Iterator[Remark]:
    if not findings.throttled:
        yield Remark("No client was throttled.", "good", "throttling")
        return
    worst = max(findings.throttled, key=lambda row: row["throttled_ms"])
    waiting = worst["backlogged_ms"] / worst["throttled_ms"]
    counts = [(findings.throttled_clients, "client", ""), (findings.throttled_addresses, "address", "addresses")]
    others = " and ".join(words.plural(*one) for one in counts if one[0])
    were = "was" if findings.throttled_clients + findings.throttled_addresses == 1 else "were"
    share = muted_share(worst)
    added_up = f"{words.duration(worst['throttled_ms'])}, added up over nodes and connections,"
    length = added_up if share is None else f"{words.share(share)} of its time"
    text = (
        f"{others} {were} throttled. Most: {who(worst)}, for {length} "
        f"by its {TYPE_NAMES.get(worst['quota_type'], worst['quota_type'])} quota"
    )
    felt = f", {words.share(waiting)} of it with a request already waiting." if waiting else ", and hardly felt it."
    felt = "." if worst.get("ip") else felt
    yield Remark(f"{text}{felt}", "bad" if waiting >= 0.5 else "warning", "throttling")
    if texts := held(findings):
        yield Remark(texts[0], "warning", "held")


def held(findings: Findings) -> list[str]:
    """Who held whom: of each shared quota, the client that waited most beyond its part of the use, and the largest."""
    found = []
    for _, group in groupby(findings.shared, lambda row: tuple(row[name] for name in SENSOR)):
        rows = list(group)
        holder = max(rows, key=lambda row: row["use_share"] or 0)
        waiting = [row for row in rows if row is not holder and row["wait_share"] > (row["use_share"] or 0)]
        if waiting:
            row = max(waiting, key=lambda row: row["wait_share"] - (row["use_share"] or 0))
            rule = f"{words.name(row['rule'])}{named_default(row)}"
            quota = f"the {TYPE_NAMES.get(row['quota_type'], row['quota_type'])} quota of {rule}"
            found.append(
                f"{_sharer(row)} was held {words.share(row['muted_share'] or 0)} of its time by {_sharer(holder)}: "
                f"{words.plural(row['sharers'], 'client')} share {quota}."
            )
    return found


def _sharer(row: Row) -> str:
    name = who({"user": row["by_user"], "client_id": row["by_client_id"]})
    return f"{name} at {limit_in_words(row['rate'] or 0, row['quota_type'])}"


def named_default(row: Row) -> str:
    """The name that the sensor of a default quota measures, in brackets; "" for other quotas."""
    name = next(filter(None, (row["user"], row["client_id"], row["ip"])), "")
    return f" ({words.name(name, 30)})" if "<default>" in row["rule"] and name else ""


def _utilisation(findings: Findings) -> Iterator[Remark]:
    if not findings.quotas_in_use:
        yield Remark("No quota applied to any client.", "warning", "utilisation")
        return
    near = max(findings.utilisation, key=lambda row: row["p99"])
    exceeded = findings.quotas_exceeded
    text = (
        f"Of {words.plural(findings.quotas_in_use, 'quota')} in use {words.count(exceeded)} "
        f"{_are(exceeded)} exceeded in some window"
    )
    yield Remark(
        f"{text}. Most used: {words.name(near['rule'])}, {TYPE_NAMES.get(near['quota_type'], near['quota_type'])}: "
        f"{utilisation_in_words(near, findings.window_ms)}",
        "warning" if exceeded else "good",
        "utilisation",
    )


def _noise(findings: Findings) -> Iterator[Remark]:
    if findings.episodes:
        names = {who(row): None for row in findings.episodes}
        times = words.plural(findings.episode_count, "time")
        yield Remark(
            f"{times} one client had most of a node while others were throttled there: {words.listed(list(names))}.",
            "bad",
            "noise",
        )


def _shadows(findings: Findings) -> Iterator[Remark]:
    if not findings.shadow_seen:
        return
    if not findings.shadow_hurt:
        yield Remark("The shadow quotas would have throttled no client.", "good", "shadows")
        return
    worst = findings.shadows[0]
    hurt = words.plural(findings.shadow_hurt, "client")
    share = words.share(worst["shadow_windows"] / worst["windows"])
    yield Remark(
        f"The shadow quotas would throttle {hurt}; most often {who(worst)}, in {share} of its windows.",
        "warning",
        "shadows",
    )


def _costs(findings: Findings) -> Iterator[Remark]:
    if findings.sheet is None or not findings.bills:
        return
    currency = findings.sheet.currency
    by_tenant = sorted(findings.bills, key=lambda bill: bill.tenant)
    sums = {name: sum(bill.total for bill in group) for name, group in groupby(by_tenant, lambda bill: bill.tenant)}
    nobodys = sums.get(UNASSIGNED, 0)
    text = f"All this costs {words.money(findings.owed, currency)}"
    paying = {name: amount for name, amount in sums.items() if name != UNASSIGNED}
    if paying:
        first = max(paying, key=lambda name: paying[name])
        text += f"; of the tenants {words.name(first, 40)} owes most, {paying[first]:,f} {currency}"
    yield Remark(f"{text}.", "plain", "chargeback")
    if nobodys:
        yield Remark(f"{nobodys:,f} {currency} of it are of clients without a tenant.", "warning", "chargeback")


def _future(findings: Findings) -> Iterator[Remark]:
    found = findings.forecasts.get("bytes")
    if found is None:
        return
    if found.month is None:
        yield Remark(f"No forecast: {found.refusal}.", "plain", "trend")
        return
    month = found.month
    growth = found.trend.growth_per_week if found.trend else 0.0
    way = f"grows by {words.share(growth)} a week" if growth > 0 else f"shrinks by {words.share(-growth)} a week"
    yield Remark(
        f"Use {way if abs(growth) >= 0.005 else 'stays as it is'}; {words.month(month.month)} will carry "
        f"{words.size(month.expected)}, in nine of ten cases {words.size(month.low)} to {words.size(month.high)}. "
        f"{month.checked().capitalize()}.",
        "plain",
        "trend",
    )
