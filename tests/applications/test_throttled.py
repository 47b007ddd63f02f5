"""The row of a run."""

from collections import Counter

from tests.applications.throttled import Run, line
from tests.parity.transactional import CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_EPOCH, Seen


def test_a_run_is_a_row_of_what_was_committed_and_what_was_sent_for_it():
    seen = Seen(committed=30_000, request_bytes=9_140_000, records=150_000, distinct=145_000)
    seen.errors = Counter({CONCURRENT_TRANSACTIONS: 8, INVALID_PRODUCER_EPOCH: 33})
    assert line(Run("nodes", seen, 5)) == "| nodes | 30,000 | 9.1 | 150,000 | 5,000 | 8 | 0 | 33 | 5 |"
