"""A round's report as text."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.conservation.checker import Report
from tests.conservation.records import LARGE_BYTES

_SHOWN = 10
_VIOLATIONS = ("lost", "doubled", "out of order", "corrupt", "never sent", "unanswered")


def describe(report: Report, logs: Path) -> str:
    """Everything that a reader wants to know; the first ten violations, and where the logs are, if there are any."""
    return "\n".join(_lines(report, logs))


def _lines(report: Report, logs: Path) -> Iterator[str]:
    records = report.records
    through = "without the proxy" if report.direct else "through the proxy"
    yield f"Kafka {report.kafka}, {through}, seed {report.seed}: {report.seconds:.0f} s"
    yield (
        f"  records      {records['sent']:,} sent, {report.sent_bytes / 1e6:,.0f} MB: {records['acknowledged']:,} "
        f"acknowledged, {records['failed']:,} reported failed ({records['failed but present']:,} of them present)"
    )
    yield "  violations   " + ", ".join(f"{records[kind]} {kind}" for kind in _VIOLATIONS)
    yield f"  read again   {records['read again']:,} by live readers"
    yield f"  sizes        {_sizes(report.sizes)}"
    yield f"  faults       {report.faults.total()}"
    yield from _table(report.faults)
    if report.missing_faults:
        yield f"  never seen   {', '.join(report.missing_faults)}"
    throttles = report.throttles
    if not report.direct:
        yield (
            f"  throttles    produce {throttles['produce']:,} ({throttles['produce s']:,} s), "
            f"fetch {throttles['fetch']:,} ({throttles['fetch s']:,} s), "
            f"{throttles['told to librdkafka']:,} told to librdkafka's producers"
        )
        yield f"  connections  {report.connections_opened:,} opened; closed:"
        yield from _table({reason: count for reason, count in report.connections_closed.items() if count})
        yield f"  internal errors of the proxy: {report.internal_errors}"
    yield f"  producers    {report.producers_made} made"
    if report.troubles:
        yield "  errors that clients of the checker have raised and survived"
        yield from _table(report.troubles)
    if report.remarks:
        yield f"  doubled by librdkafka itself: {records['doubled by librdkafka']}"
        yield from (f"    {remark}" for remark in report.remarks)
    if report.violations:
        yield f"VIOLATIONS: {len(report.violations)}; logs in {logs}"
        yield from (f"  {violation}" for violation in report.violations[:_SHOWN])
    else:
        yield "no violation"


def _sizes(sizes: Mapping[int, int]) -> str:
    large = LARGE_BYTES.bit_length()
    small = [f"< {_bytes(1 << bits)}: {count:,}" for bits, count in sorted(sizes.items()) if bits < large]
    return ", ".join([*small, f"{_bytes(LARGE_BYTES)}: {sizes.get(large, 0):,}"])


def _bytes(count: int) -> str:
    return f"{count >> 20} MiB" if count >> 20 else f"{count >> 10} KiB" if count >> 10 else f"{count} B"


def _table(counts: Mapping[str, int]) -> Iterator[str]:
    for name, count in sorted(counts.items()):
        yield f"    {count:7,}  {name}"
