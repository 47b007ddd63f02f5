"""Requests that schemathesis makes up from the OpenAPI document: none of them fails, and each response is described."""

import asyncio
import threading
from concurrent.futures import Future

import pytest
import schemathesis
from hypothesis import settings

from kafka_throttle.proxy.observe.api import ENDPOINTS, AdminApi
from kafka_throttle.proxy.observe.http_access import Access, Account, Right
from kafka_throttle.proxy.observe.openapi import openapi
from tests.fakes.clock import FakeClock
from tests.fakes.http import admin_listener
from tests.proxy.observe.test_admin_api import Cluster, begin_episode, use_and_be_throttled

pytestmark = pytest.mark.nightly

TOKEN = "a-token-of-24-characters"
SCHEMA = schemathesis.openapi.from_dict(openapi(ENDPOINTS))


async def serve(serving, end):
    clock = FakeClock()
    cluster = Cluster("main", clock)
    use_and_be_throttled(cluster, clock)
    begin_episode(cluster, clock, 5000)
    listener = admin_listener(AdminApi([cluster], clock).routes())
    listener.guard.access = Access((Account(Right.READ, TOKEN),), None)
    port = await listener.start("127.0.0.1", 0)
    serving.set_result(f"http://127.0.0.1:{port}")
    await asyncio.wrap_future(end)
    await listener.stop()


@pytest.fixture(scope="module")
def url():
    """The address of an admin listener, which runs in a thread."""
    serving, end = Future(), Future()
    thread = threading.Thread(target=lambda: asyncio.run(serve(serving, end)))
    thread.start()
    yield serving.result(60)
    end.set_result(None)
    thread.join()


@SCHEMA.parametrize()
@settings(max_examples=100)
def test_whatever_is_asked_with_the_token_gets_a_response_as_described(case, url):
    case.call_and_validate(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"})


@SCHEMA.parametrize()
@settings(max_examples=20)
def test_whatever_is_asked_without_it_gets_nothing(case, url):
    response = case.call(base_url=url)
    assert response.status_code in (400, 401)
