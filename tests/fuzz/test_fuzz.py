"""The targets of `make fuzz`, given what fuzzing begins with, cut and damaged."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fuzz.targets import TARGETS


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_holds_for_its_seeds_and_every_part_of_them(name):
    target = TARGETS[name]
    for seed in target.seeds:
        for end in range(len(seed) + 1):
            target.try_out(seed[:end])


@pytest.mark.parametrize("name", TARGETS)
@settings(deadline=None)
@given(data=st.data())
def test_a_target_holds_for_damaged_seeds(name, data):
    target = TARGETS[name]
    damaged = bytearray(data.draw(st.sampled_from(target.seeds)))
    for at, byte in data.draw(st.lists(st.tuples(st.integers(0, len(damaged) - 1), st.integers(0, 255)), max_size=4)):
        damaged[at] = byte
    target.try_out(bytes(damaged) + data.draw(st.binary(max_size=8)))
