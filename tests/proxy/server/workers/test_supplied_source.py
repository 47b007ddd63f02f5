"""Quotas that the supervisor reads and its workers have: in the store of a worker, over a real link."""

import asyncio

import pytest

from kafka_throttle.proxy.server.workers.link import LinkLost
from kafka_throttle.proxy.server.workers.supplied_source import SuppliedSource, Supply
from kafka_throttle.quotas.changes import Alteration, Limit, SourceUnavailable
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from kafka_throttle.quotas.sources.source import SourceState

ALICE, PRODUCE = Entity(user="alice"), QuotaKey(QuotaType.PRODUCE, shadow=False)
KNOWN = SourceState(known=True, up=True, age_s=1.0)


async def test_it_has_what_was_sent_and_tells_of_each_change():
    source, changes = SuppliedSource("zookeeper", None, asyncio.get_running_loop()), []
    source.take(Supply({ALICE: {PRODUCE: Limit(5.0, "/config")}}, {}, KNOWN))
    source.start(lambda: changes.append(dict(source.quotas)))
    source.take(Supply({ALICE: None}, {"/config": "cannot be read"}, KNOWN._replace(up=False)))
    assert changes == [{}]
    assert (source.problems, source.state.up) == ({"/config": "cannot be read"}, False)
    source.stop()
    source.take(Supply({}, {}, KNOWN))
    assert len(changes) == 1


async def test_an_alteration_is_that_of_the_supervisor():
    asked = []

    async def ask(alterations):
        asked.extend(alterations)
        return [None]

    source = SuppliedSource("file", ask, asyncio.get_running_loop())
    alteration = Alteration(ALICE, {PRODUCE: 7.0})
    assert await asyncio.to_thread(source.alter, [alteration]) == [None]
    assert asked == [alteration]


async def test_without_the_supervisor_nothing_is_altered():
    async def ask(alterations):
        raise LinkLost

    source = SuppliedSource("file", ask, asyncio.get_running_loop())
    [problem] = await asyncio.to_thread(source.alter, [Alteration(ALICE, {PRODUCE: 7.0})])
    with pytest.raises(SourceUnavailable, match="the supervisor"):
        raise problem
