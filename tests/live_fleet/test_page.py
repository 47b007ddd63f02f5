"""The page and the picture, of a run that was short."""

import pytest

from tests.live_fleet import page, plot
from tests.live_fleet.__main__ import parse_options, scenarios_of
from tests.live_fleet.scenarios import SCENARIOS


@pytest.fixture
def found():
    """Ninety seconds at nine tenths of the limit on all sides; one instance is killed."""
    sides = {side: {"produce": {"a": [900] * 90}} for side in ("fleet", "single", "broker")}
    events = [{"at": 40.2, "action": "kill", "instances": [2], "words": "2 killed"}]
    scenario = {
        "title": "two instances, one killed",
        "kinds": ["produce"],
        "limit": 1000,
        "seconds": 90,
        "clients": [{"name": "a", "kind": "produce", "demand": None}],
        "events": events,
        "sides": sides,
    }
    return {"format": 1, "scenarios": {"killed": scenario}}


def test_the_table_has_a_line_for_each_side(found):
    lines = page.table(found["scenarios"]).splitlines()[2:]
    assert [line.split(" | ")[2] for line in lines] == ["fleet", "one instance", "Kafka's own quota"]
    assert lines[0] == "| two instances, one killed | produce | fleet | 0.900 | -6.0, -6.0 | 0.0 | 1.000 |  |"


def test_the_page_says_what_was_wrong(found):
    found["chaos"] = {
        "seconds": 60,
        "limit": 1000,
        "kills": 12,
        "long_run": 0.8,
        "over_s": None,
        "records": {"acknowledged": 1000, "present": 999},
        "violations": ["lost: record 7"],
    }
    text = page.markdown(found, "fleet.webp")
    assert "](fleet.webp)" in text
    assert "1,000 records were acknowledged, 999 are there; 1 lost, doubled or out of order.\n- lost: record 7" in text
    found["chaos"].update(violations=[], remarks=["2 records of producer 1"])
    told = "none lost, doubled or out of order. What librdkafka itself has doubled (its issue 4953):"
    assert f"{told}\n- 2 records of producer 1" in page.markdown(found)


def test_the_cost_is_beside_that_without_a_fleet(found):
    of_fleet = {"writes_per_second": 2.96, "document_bytes": [41_000, 40_000]}
    found["cost"] = {
        "entities": 1000,
        "without": {"cpu": [0.2, 0.21], "requests_per_second": 900.0},
        "fleet": {"cpu": [0.3, 0.31], "requests_per_second": 901.0, "zookeeper": of_fleet},
    }
    text = page.markdown(found)
    assert "| without a fleet | 20 / 21 | 900 |  |  |" in text
    assert "| in a fleet | 30 / 31 | 901 | 3.0 | 41 / 40 |" in text


def test_the_picture_is_drawn(found, tmp_path):
    plot.draw(found["scenarios"], tmp_path / "fleet.webp")
    assert (tmp_path / "fleet.webp").read_bytes()[8:12] == b"WEBP"


def test_a_scenario_that_was_run_is_not_run_again_unless_it_is_asked_for():
    names = [scenario.name for scenario in SCENARIOS]
    assert [one.name for one in scenarios_of(parse_options([]), {"before": {}})] == names[1:]
    assert [one.name for one in scenarios_of(parse_options(["--again"]), {"before": {}})] == names
    assert scenarios_of(parse_options(["--chaos", "60"]), {}) == []
    [short] = scenarios_of(parse_options(["--chaos", "60", "--scenario", "killed", "--part", "0.5"]), {})
    assert (short.seconds, [event.at for event in short.events]) == (55, [20, 35])
