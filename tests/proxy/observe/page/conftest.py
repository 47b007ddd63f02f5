"""A process for the status page, on a clock that a test sets."""

import pytest

from tests.fakes.clock import FakeClock
from tests.proxy.observe.page.shown import Shown


@pytest.fixture
def clock():
    return FakeClock()


@pytest.fixture
def shown(clock):
    return Shown(clock)
