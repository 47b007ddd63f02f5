"""When instances are killed and started."""

from tests.live_fleet.chaos import Kills


class Noted:
    def __init__(self, name, notes):
        self._name, self._notes = name, notes

    def crash(self):
        self._notes.append(f"{self._name} killed")

    def launch(self):
        self._notes.append(f"{self._name} started")


def test_one_instance_after_the_other_is_killed_and_comes_back_before_the_next():
    notes = []
    kills = Kills([Noted("a", notes), Noted("b", notes)], now=100.0)
    for tenth in range(0, 170):
        kills.go_on(100.0 + tenth / 10)
    kills.end()
    assert notes == ["a killed", "a started", "b killed", "b started", "a killed", "a started"]
    assert kills.count == 3
