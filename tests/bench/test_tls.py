"""The measurement of TLS works; what it finds on a busy machine says nothing."""

import pytest

from tests.bench.tls import COLUMNS, rounds, table


@pytest.mark.long
def test_a_short_round_measures_every_side():
    figures = rounds(1, 40, 40)
    assert list(figures) == list(COLUMNS)
    assert all(value > 0 for by_side in figures.values() for [value] in by_side.values())
    assert table(figures).count("\n") == 1 + len(COLUMNS)
