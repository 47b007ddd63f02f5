"""Kafka's own cases of connection quotas come out alike on a broker and on the proxy."""

from contextlib import ExitStack

import pytest

from tests.admission.cases import CASES, results
from tests.admission.sides import both


@pytest.mark.kafka
@pytest.mark.exclusive
@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_a_broker_and_the_proxy_admit_as_many():
    with ExitStack() as stack:
        sides = both(stack)
        for case in CASES:
            if not case.slow:
                counts = results(case, sides)
                assert all(case.agrees(of_side) for of_side in counts.values()), (case.name, counts)
