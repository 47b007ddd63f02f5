"""What the table knows of usage records that are missing."""

from kafka_throttle.pipeline.report.findings import KilledProcess, Missing
from kafka_throttle.pipeline.table.accounts import Accounts, lost_ends


def missing_of(accounts: Accounts) -> list[Missing]:
    """The usage records that are missing according to the table's log, by writer."""
    return [
        Missing(writer.instance, writer.epoch, first, last, dropped)
        for writer, account in sorted(accounts.items())
        if writer.stream == "usage"
        for dropped, intervals in ((False, account.gaps), (True, account.dropped))
        for first, last in intervals
    ]


def killed_of(accounts: Accounts) -> list[KilledProcess]:
    """The processes whose last usage records are missing."""
    return [
        KilledProcess(lost.writer.instance, lost.writer.epoch, lost.before_ms, lost.flush_ms)
        for lost in lost_ends(accounts)
        if lost.writer.stream == "usage"
    ]
