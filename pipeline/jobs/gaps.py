"""`usage gaps`: which records are missing, and of which epochs the end is."""

import sys
from collections.abc import Mapping

from kafka_throttle.pipeline.ingest.summary import gap_lines
from kafka_throttle.pipeline.spark.session import spark_session
from kafka_throttle.pipeline.table.accounts import lost_ends, read_accounts


def main(table: str, master: str | None = None, memory: str = "2g", settings: Mapping[str, str] | None = None) -> int:
    """Print every interval of missing numbers and every lost end; 1 if there is any, else 0. Raises BadTable."""
    accounts = read_accounts(spark_session(master, memory, "kafka-throttle usage gaps", settings), table)
    for line in gap_lines(accounts, most=sys.maxsize):
        print(line)
    return int(any(account.gaps for account in accounts.values()) or bool(lost_ends(accounts)))
