"""Shares of a key never add up to more than 1, whatever the order of events. The scheduler that tries finds errors."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_throttle.quotas.shares.member import Member
from tests.quotas.shares.adversary import Adversary, Violation


@pytest.mark.rule("fleet")
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 2**32))
def test_shares_never_add_up_to_more_than_one(seed):
    adversary = Adversary(seed)
    adversary.run(1500)
    assert adversary.done == 1500


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(10))
def test_shares_never_add_up_to_more_than_one_in_long_runs(seed):
    adversary = Adversary(seed)
    adversary.run(100_000)
    assert min(adversary.seen.values()) > 100
    assert sum(member.totals.raises for member in adversary.members) > 100
    assert sum(member.totals.conflicts for member in adversary.members) > 0


def everything_is_acknowledged(self):
    for claim in self._claims.values():
        claim.is_acknowledged = True


def known_at_once(self):
    return self._publications.has_joined


def enforced_without_a_look_at_others(self, claim, to, now_ms):
    claim.enforced = claim.published.claim
    self._enforced.set(claim.key, self._own_share(claim.key), False)


def no_floor_for_what_others_claim(self):
    self._publications.offered = []
    ORIGINAL["_acknowledge_others"](self)


def the_implicit_share_on_top_of_the_floor(self, key, now_ms):
    if self._enforced.has_own(key):
        self._enforced.release(key)
    ORIGINAL["_enter"](self, key, now_ms)


def enforced_before_it_is_published(self, claim, division, now_ms):
    ORIGINAL["_divide"](self, claim, division, now_ms)
    claim.enforced = claim.claim


def acknowledged_unseen(self, now_ms):
    self._publications.look(self._others.documents, [])
    return ORIGINAL["document"](self, now_ms)


class Adversaries:
    def __init__(self, count):
        self.adversaries = [Adversary(seed) for seed in range(count)]

    def run(self, steps):
        for adversary in self.adversaries:
            adversary.run(steps)


MUTANTS = {
    "_acknowledge_claims": everything_is_acknowledged,
    "_is_acknowledged": known_at_once,
    "_raise": enforced_without_a_look_at_others,
    "_acknowledge_others": no_floor_for_what_others_claim,
    "_enter": the_implicit_share_on_top_of_the_floor,
    "_divide": enforced_before_it_is_published,
    "document": acknowledged_unseen,
}
ORIGINAL = {name: getattr(Member, name) for name in MUTANTS}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_scheduler_finds_a_rule_that_is_broken(name, monkeypatch):
    monkeypatch.setattr(Member, name, MUTANTS[name])
    adversary = Adversaries(10)
    with pytest.raises(Violation):
        adversary.run(3000)
