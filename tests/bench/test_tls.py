"""The measurement of TLS works; what it finds on a busy machine says nothing."""

import pytest

from tests.bench.processes import two_or_three_cores
from tests.bench.tls import COLUMNS, SIDES, loads, rounds, table


@pytest.mark.nightly
def test_a_short_round_measures_every_side():
    figures = rounds(1, 40, 40)
    assert list(figures) == list(COLUMNS)
    assert all(value > 0 for by_side in figures.values() for [value] in by_side.values())
    assert table(figures).count("\n") == 1 + len(COLUMNS)


@pytest.mark.nightly
def test_every_load_can_be_run_for_a_time():
    with loads(SIDES, two_or_three_cores(), seconds=0.05) as sides:
        assert list(sides) == list(SIDES)
        for load, pid in sides.values():
            for column in COLUMNS:
                figures = load(column)
                assert figures["requests"] == figures["requests_in_all"] > 0
                assert (figures["megabytes_per_second"] > 0) == (column != "handshakes")
            assert pid > 0
