"""A connection may name any number of client-ids; it remembers the latest of them."""

import pytest

from kafka_throttle.quotas.entities import Entity
from tests.relay.frames import produce, produced
from tests.relay.script import NOW_MS, Script, quota_manager_with, table_with

REMEMBERED = 64


class Counting(Script):
    """Notes the client-ids whose sensors and counters the relay has looked up."""

    def __init__(self, make, quota_manager=None):
        self.bound, self.met = [], []
        super().__init__(make, quota_manager)

    def _bind(self, raw_client_id, now_ms):
        self.bound.append(raw_client_id)
        return super()._bind(raw_client_id, now_ms)

    def _usage_of(self, raw_client_id):
        self.met.append(raw_client_id)
        return super()._usage_of(raw_client_id)

    def looked_up_for(self, names):
        """Those of these client-ids that have their sensors looked up when each sends a request."""
        self.bound.clear()
        for name in names:
            self.client(produce(size=100 + len(name), client_id=name), NOW_MS)
            self.node(produced(), NOW_MS)
        return list(self.bound)


@pytest.fixture
def script(make_relay):
    return Counting(make_relay).connected()


def names(count, first=0):
    return [b"client-%d" % number for number in range(first, first + count)]


def test_as_many_as_are_remembered_are_looked_up_once(script):
    assert script.looked_up_for(names(REMEMBERED)) == names(REMEMBERED)
    assert script.looked_up_for(names(REMEMBERED)) == []


def test_one_more_has_only_the_oldest_forgotten(script):
    script.looked_up_for(names(REMEMBERED))
    assert script.looked_up_for([b"one more"]) == [b"one more"]
    assert script.looked_up_for([*names(REMEMBERED - 1, first=1), b"one more"]) == []
    assert script.looked_up_for(names(1)) == names(1)


def test_new_quotas_of_a_remembered_one_have_no_other_forgotten(make_relay):
    concerned, *others = names(REMEMBERED)
    script = Counting(make_relay, quota_manager_with(produce=2**40, client_id=concerned.decode())).connected()
    script.looked_up_for([concerned, *others])
    changed = [Entity(client_id=concerned.decode())]
    script.quota_manager.replace(table_with(produce=2**41, client_id=concerned.decode()), NOW_MS, changed=changed)
    assert script.looked_up_for([concerned, *others]) == [concerned]


def test_the_counters_of_client_ids_are_remembered_like_their_sensors(script):
    script.looked_up_for([*names(REMEMBERED), b"one more", *names(REMEMBERED - 1, first=1), *names(1)])
    assert script.met == script.bound


def test_of_very_long_ones_a_single_one_is_remembered(script):
    long = [b"%d" % number * 2000 for number in range(2)]
    assert script.looked_up_for([*long, long[1], long[0]]) == [*long, long[0]]
