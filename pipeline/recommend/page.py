"""The advice as a page of text: it is printed, and written as recommendation.txt."""

from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kafka_throttle.pipeline.recommend.advice import Advice, Recommendation, Refusal, Settings
from kafka_throttle.pipeline.report import words
from kafka_throttle.quotas.entities import BYTE_RATES, QuotaType

SHOWN = 40
_WIDTH = 190
_STYLES = {"high": "green", "medium": "yellow", "low": "red"}


def print_advice(advice: Advice, settings: Settings, known: Mapping[str, Any], to: IO[str], shown: int = SHOWN) -> None:
    """Print the limits with their evidence, the limits that were cut, and the refusals, each at most `shown` lines."""
    console = Console(file=to, width=None if to.isatty() else _WIDTH, highlight=False)
    for line in _head(advice, settings, known):
        console.print(line, markup=False)
    if advice.recommendations:
        console.print()
        console.print(_recommended(advice.recommendations, settings, shown))
        uncertain = [one for one in advice.recommendations if one.penalties]
        for line in _lines(uncertain, _penalties, "Why the confidence is not high", shown):
            console.print(line, markup=False)
    for line in _fits(advice):
        console.print(line, markup=False)
    cut = [one for one in advice.recommendations if one.cut > 0]
    for line in _lines(cut, _cut, "Cut by the capacity", shown):
        console.print(line, markup=False)
    leaving = [one for one in advice.recommendations if one.evidence.leaves.count]
    for line in _lines(leaving, _leaves, "Taken out of quotas that hold for others, too", shown):
        console.print(line, markup=False)
    for line in _lines(advice.refusals, _refused, "Nothing is recommended for", shown):
        console.print(line, markup=False)


def _head(advice: Advice, settings: Settings, known: Mapping[str, Any]) -> Iterator[str]:
    period = f"{words.moment(known['begin_ms'])} to {words.moment(known['end_ms'])} UTC"
    yield f"{known['records']:,} usage records, {period}, windows of {words.duration(known['window_ms'])}"
    formula = f"{_percentile(settings)} of the windows at the busiest node x {settings.headroom:g}"
    stages = words.plural(advice.stages, "stage")
    yield f"{words.plural(len(advice.recommendations), 'limit')} in {stages}: {formula}; per node, as quotas hold"
    yield from (f"warning: {warning}" for warning in known["warnings"])


def _percentile(settings: Settings) -> str:
    return f"p{100 * settings.percentile:.6g}"


def _recommended(recommendations: Sequence[Recommendation], settings: Settings, shown: int) -> Table:
    table = Table(header_style="bold", box=None, pad_edge=False)
    left = ("cluster", "entity", "quota", "stages", "confidence")
    heads = (
        "cluster",
        "entity",
        "quota",
        "today",
        _percentile(settings),
        "peak",
        "days",
        "windows",
        "throttled",
        "recommended",
    )
    for head in (*heads, "stages", "would throttle", "confidence"):
        table.add_column(head, justify="left" if head in left else "right", overflow="fold")
    for one in recommendations[:shown]:
        table.add_row(*_cells(one))
    if len(recommendations) > shown:
        table.caption = f"{shown} of {len(recommendations):,}: the rest is in recommendation.csv"
    return table


def _cells(one: Recommendation) -> Iterator[str | Text]:
    evidence = one.evidence
    quota_type = evidence.subject.quota_type
    assert evidence.node is not None
    yield Text(words.name(evidence.subject.virtual_cluster, 24))
    yield Text(words.name(str(evidence.subject)))
    yield quota_type.value
    yield _today(one)
    yield f"{'>= ' if evidence.node.at_least else ''}{amount(evidence.node.demand, quota_type)}"
    yield amount(evidence.peak, quota_type)
    yield str(evidence.days)
    yield words.count(evidence.windows)
    yield words.share(evidence.throttled_share)
    yield Text(amount(one.limit, quota_type), style="bold")
    yield _path(one)
    yield _simulated(one)
    yield Text(one.confidence, style=_STYLES[one.confidence])


def _path(one: Recommendation) -> str:
    """The limits of the stages; stages in which nothing changes are shown once."""
    limits = list(dict.fromkeys(one.path))
    return (
        "at once"
        if len(limits) == 1
        else " > ".join(amount(limit, one.evidence.subject.quota_type) for limit in limits)
    )


def _today(one: Recommendation) -> str:
    evidence = one.evidence
    if evidence.limit is None:
        return "none"
    shared = "" if evidence.today is not None else " shared"
    return f"{amount(evidence.limit, evidence.subject.quota_type)}{shared}"


def _simulated(one: Recommendation) -> str:
    simulated = one.simulated
    if simulated is None:
        return "not asked"
    low, high = words.duration(simulated.throttled_ms), words.duration(simulated.greedy_throttled_ms)
    if not simulated.greedy_throttled_ms:
        return "never"
    return low if low == high else f"{low} to {high}"


def amount(value: float, quota_type: QuotaType) -> str:
    """A limit or a rate with its unit."""
    if quota_type in BYTE_RATES:
        return f"{words.size(value)}/s"
    return f"{words.about(value)} %" if quota_type is QuotaType.REQUEST else f"{words.about(value)}/s"


def _lines(found: Sequence[Any], tell: Any, title: str, shown: int) -> Iterator[str]:
    if not found:
        return
    yield ""
    yield f"{title}:"
    for one in found[:shown]:
        yield f"  {tell(one)}"
    if len(found) > shown:
        yield f"  and {len(found) - shown:,} more: recommendation.csv has them all"


def _who(one: Recommendation | Refusal) -> str:
    subject = one.evidence.subject
    return f"{words.name(subject.virtual_cluster, 24)}: {words.name(str(subject))}, {subject.quota_type.value}"


def _penalties(one: Recommendation) -> str:
    return f"{_who(one)}: {words.visible('; '.join(penalty.reason for penalty in one.penalties))}"


def _cut(one: Recommendation) -> str:
    limit, asked = (amount(value, one.evidence.subject.quota_type) for value in (one.limit, one.asked))
    return f"{_who(one)}: {limit} of {asked}"


def _leaves(one: Recommendation) -> str:
    return f"{_who(one)}: {left_quotas(one)}"


def left_quotas(one: Recommendation) -> str:
    """The shared quotas that the entity leaves, with their limits, the number of the others, and how much of its use
    they counted; empty if there is none.
    """
    evidence = one.evidence
    kind = "client" if evidence.subject.client_id else "user"
    named = []
    for quota in evidence.leaves.named:
        rule = words.name(quota.rule)
        of = f" ({words.name(quota.name, 40)})" if "<default>" in quota.rule else ""
        limit = amount(quota.limit, evidence.subject.quota_type)
        others = words.plural(quota.others, f"other {kind}") if quota.others else f"no other {kind} so far"
        named.append(f"{rule}{of} of {limit}, shared with {others}, {words.share(quota.use_share)} of its use")
    if more := evidence.leaves.count - len(named):
        named.append(f"and {words.count(more)} more")
    return "; ".join(named)


def _refused(one: Refusal) -> str:
    return f"{_who(one)}: {words.visible(one.reason)}"


def comment_of(one: Recommendation, stage: int) -> str:
    """What a quota file says beside a limit: the goal, the limit of today and its quota, and all doubts."""
    evidence, quota_type = one.evidence, one.evidence.subject.quota_type
    parts = [] if one.path[stage] == one.limit else [f"goal {amount(one.limit, quota_type)}"]
    by = f" by {words.name(evidence.rule)}" if evidence.rule else ""
    shared = ", shared" if evidence.limit is not None and evidence.today is None else ""
    parts.append(f"today {'none' if evidence.limit is None else amount(evidence.limit, quota_type)}{by}{shared}")
    return "; ".join([*parts, *(words.visible(penalty.reason) for penalty in one.penalties)])


def _fits(advice: Advice) -> Iterator[str]:
    if advice.fits:
        yield ""
        yield "Capacity of a node, less its reserve:"
    for fit in advice.fits:
        carried, asked, given = (amount(value, fit.quota_type) for value in (fit.capacity, fit.asked, fit.given))
        what = f"{words.name(fit.virtual_cluster)}, {fit.quota_type.value}"
        yield f"  {what}: {carried}; asked for {asked}, given {given}, {fit.cut:,} cut"
