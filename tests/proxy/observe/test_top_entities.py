"""The entities that have series: chosen among all; of very many a part is read for each scrape, and none is lost."""

import pytest

from kafka_throttle.proxy.observe import top_entities
from kafka_throttle.proxy.observe.top_entities import EntitySource, EntityUse, TopEntities

RULE = ("main", "1", "produce")


class Sensors:
    """Entities that can be changed: how much each uses, how long it was throttled, and which are throttled now."""

    def __init__(self, count):
        self.rates = {f"c{number}": float(number) for number in range(count)}
        self.throttled_ms = {}
        self.now = set()
        self.read = 0

    def use(self, name):
        self.read += 1
        if name not in self.rates:
            return None
        throttled_ms, now = self.throttled_ms.get(name, 0), name in self.now
        return EntityUse(
            "main", 1, "produce", "", name, self.rates[name], 50.0, throttled_ms, throttled=now, sensor=name
        )

    def source(self):
        return EntitySource(
            lambda: map(self.use, list(self.rates)),
            lambda: map(self.use, sorted(self.now)),
            lambda use: self.use(use.sensor),
        )


def read(top):
    """One scrape: the entities with series of the only rule, and the rule."""
    steps = sum(1 for _ in top.read())
    rule = top.enforced[RULE]
    return {client_id: row for (_, client_id), row in rule.shown().items()}, rule, steps


@pytest.fixture(autouse=True)
def few_are_read_at_once(monkeypatch):
    monkeypatch.setattr(top_entities, "MOST_READ", 100)


@pytest.fixture
def sensors():
    return Sensors(250)


@pytest.fixture
def top(sensors):
    made = TopEntities(3)
    made.add(sensors.source())
    return made


def test_few_entities_are_all_read_for_each_scrape():
    sensors = Sensors(90)
    top = TopEntities(3)
    top.add(sensors.source())
    assert set(read(top)[0]) == {"c89", "c88", "c87"}
    sensors.rates["c1"] = 1000.0
    shown, rule, _ = read(top)
    assert set(shown) == {"c1", "c89", "c88"}
    assert (rule.count, rule.rate) == (90, sum(sensors.rates.values()))
    assert sensors.read == 180


def test_a_scrape_reads_a_part_and_after_some_scrapes_all_are_known(top, sensors):
    assert set(read(top)[0]) == {"c99", "c98", "c97"}
    assert sensors.read < 100 + 20
    read(top)
    shown, rule, _ = read(top)
    assert set(shown) == {"c249", "c248", "c247"}
    assert (rule.count, rule.rate) == (250, sum(sensors.rates.values()))


def test_the_last_whole_round_is_shown_until_the_next_one_is_over(top, sensors):
    for _ in range(3):
        read(top)
    sensors.rates["c1"] = 1000.0
    for _ in range(2):
        assert "c1" not in read(top)[0]
    assert "c1" in read(top)[0]


def test_chosen_entities_are_read_anew_for_each_scrape(top, sensors):
    for _ in range(3):
        read(top)
    sensors.rates["c249"] = 500.0
    shown, rule, _ = read(top)
    assert shown["c249"].rate == 500
    assert rule.rate == sum(sensors.rates.values())


def test_an_entity_that_is_not_measured_any_more_is_not_shown(top, sensors):
    for _ in range(3):
        read(top)
    del sensors.rates["c249"]
    shown, rule, _ = read(top)
    assert "c249" not in shown
    assert rule.count == 249


def test_an_entity_that_is_throttled_now_does_not_wait_for_its_turn(top, sensors):
    for _ in range(3):
        read(top)
    sensors.now.add("c200")
    sensors.throttled_ms["c200"] = 7
    shown, rule, _ = read(top)
    assert shown["c200"].throttled_ms == 7
    assert rule.throttled == 1
    sensors.now.clear()
    assert read(top)[1].throttled == 0


def test_a_rule_that_was_not_read_yet_has_the_entities_that_it_throttles(top, sensors):
    sensors.now.add("c240")
    shown, rule, _ = read(top)
    assert "c240" in shown
    assert rule.throttled == 1


def test_of_very_many_that_are_throttled_some_are_read_and_all_are_counted(top, sensors, monkeypatch):
    monkeypatch.setattr(top_entities, "_MOST_THROTTLED", 20)
    sensors.now = set(sensors.rates)
    for _ in range(3):
        read(top)
    before = sensors.read
    assert read(top)[1].throttled == 250
    assert sensors.read - before <= 100 + 20 + 6
