"""Runs against rows."""

from hypothesis import given
from hypothesis import strategies as st

from pipeline.ingest.duplicates import Run, judged
from pipeline.table.accounts import Account, Writer
from pipeline.table.intervals import union

WRITERS = [Writer("usage", "a", 1), Writer("usage", "b", 1)]
INTERVAL = st.tuples(st.integers(1, 30), st.integers(0, 8)).map(lambda pair: (pair[0], sum(pair)))
RUNS = st.lists(st.tuples(st.sampled_from(WRITERS), INTERVAL)).map(
    lambda pairs: [Run(writer, offset, interval) for offset, (writer, interval) in enumerate(pairs)]
)


def rows(runs):
    return [(run.writer, n) for run in runs for n in range(run.interval[0], run.interval[1] + 1)]


@given(RUNS, st.lists(INTERVAL))
def test_each_new_row_is_taken_once_from_a_run_that_has_it(runs, present):
    known = {WRITERS[0]: Account(union(present))}
    decision = judged(runs, known)
    before = {(WRITERS[0], n) for first, last in present for n in range(first, last + 1)}
    assert sorted(rows(decision.taken)) == sorted(set(rows(runs)) - before)
    assert decision.new == len(rows(decision.taken))
    assert decision.new + decision.duplicates == len(rows(runs))
    of_offset = {run.offset: run for run in runs}
    for run in decision.taken:
        whole = of_offset[run.offset]
        assert whole.writer == run.writer
        assert whole.interval[0] <= run.interval[0] <= run.interval[1] <= whole.interval[1]
    now = {
        (writer, n)
        for writer, account in decision.accounts.items()
        for a, b in account.present
        for n in range(a, b + 1)
    }
    assert now == set(rows(decision.taken))
