"""What quotas cost a request does not depend on how many entities have some: judged by the work that is counted."""

import json

import pytest

from tests.bench import quota_cost, quota_relays
from tests.bench.quota_relays import ALL, LOADS, NONE, OVER, OVER_LOAD, PRODUCE_ONLY, Bench, Cell, ratios


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("quotas", [PRODUCE_ONLY, ALL])
def test_a_request_takes_as_many_calls_with_one_entity_as_with_many(quotas, load):
    few, many = Bench(quotas, 1), Bench(quotas, 3000)
    for bench in (few, many):
        for _ in range(2):
            bench.calls_per_turn(load)  # a sensor's window begins with its first charge
    assert few.calls_per_turn(load) == many.calls_per_turn(load)


@pytest.mark.parametrize("load", LOADS)
def test_all_clients_are_measured_and_none_is_throttled(load):
    bench = Bench(ALL, 200)
    charged = sum(reading.charges for _, reading in bench.quota_manager.readings(0))
    bench.ns_per_request(load, turns=3)
    requests = 4 * quota_relays.CONNECTIONS * LOADS[load].depth
    readings = [reading for _, reading in bench.quota_manager.readings(0)]
    assert sum(reading.charges for reading in readings) >= charged + requests
    assert sum(reading.throttles for reading in readings) == 0
    assert len({key.tags for key, _ in bench.quota_manager.readings(0)}) >= 200


def test_each_request_of_a_client_over_its_quota_is_throttled():
    bench = Bench(OVER, 1)
    bench.clients(OVER_LOAD)
    [(_, before)] = bench.quota_manager.readings(0)
    bench.ns_per_request(OVER_LOAD, turns=3)
    [(_, after)] = bench.quota_manager.readings(0)
    assert after.throttles - before.throttles == after.charges - before.charges == 3 * quota_relays.CONNECTIONS


def test_the_report_has_every_load_at_every_count(tmp_path, capsys):
    file = tmp_path / "cost.json"
    quota_cost.main(["--counts", "1,20", "--rounds", "2", "--blocks", "1", "--live-rounds", "0", "--json", str(file)])
    reported = json.loads(file.read_text())
    assert set(reported["in_process"]) == {*LOADS, "bind"}
    for load, rows in reported["in_process"].items():
        assert [(row["quotas"], row["entities"]) for row in rows] == [
            (NONE, 1),
            (PRODUCE_ONLY, 1),
            (PRODUCE_ONLY, 20),
            (ALL, 1),
            (ALL, 20),
            *([(OVER, 1)] if load == OVER_LOAD else []),
        ]
        assert all(row["ns"]["min"] > 0 and len(row["rounds"]) == 2 for row in rows)
    assert "all types" in capsys.readouterr().out


def test_ratios_are_made_within_a_round():
    none, some = Cell(NONE, 1), Cell(ALL, 5)
    assert ratios({none: [100.0, 400.0], some: [150.0, 500.0]}, some) == [1.5, 1.25]
