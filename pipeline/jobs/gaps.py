"""`usage gaps`: which records are missing, and of which epochs the end is."""

import sys

from pipeline.ingest.summary import gap_lines
from pipeline.table.accounts import lost_ends
from pipeline.table.table import state_of


def main(table: str) -> int:
    """Print every interval of missing numbers and every lost end; 1 if there is any, else 0.

    Raises BadTable, ValueError for a URI.
    """
    accounts = state_of(None, table).accounts
    for line in gap_lines(accounts, most=sys.maxsize):
        print(line)
    return int(any(account.gaps for account in accounts.values()) or bool(lost_ends(accounts)))
