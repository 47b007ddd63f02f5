"""What the supervisor answers for several workers: all clients that fit, whichever worker has them."""

from types import SimpleNamespace

import pytest
from aiohttp import web

from kafka_throttle.proxy.observe.api import AdminApi, ClientWanted, ThrottledWanted
from kafka_throttle.proxy.server.workers.answers import AnswersOfWorkers, ClusterOfWorkers
from kafka_throttle.quotas.explain import Client
from tests.fakes.clock import FakeClock
from tests.proxy.observe.page.shown import Cluster


class NamedWorker(SimpleNamespace):
    """A worker by its name."""

    __hash__ = object.__hash__


class Workers:
    """Two workers, each with clients of its own."""

    def __init__(self, clock):
        self.clusters = [Cluster("main", clock), Cluster("main", clock)]
        self.asked = []
        self.apis = {NamedWorker(name=f"{i}"): AdminApi([cluster], clock) for i, cluster in enumerate(self.clusters)}

    async def ask(self, what, endpoint, wanted):
        assert what == "respond"
        self.asked.append(endpoint)
        return {worker: await getattr(api, endpoint)(wanted) for worker, api in self.apis.items()}


@pytest.fixture
def workers():
    return Workers(FakeClock())


@pytest.fixture
def answers(workers):
    store = SimpleNamespace(quotas={}, problems={}, known=True)
    cluster = ClusterOfWorkers("main", store, SimpleNamespace(name="file"), is_one_of_several=False)
    return AnswersOfWorkers(workers, [cluster])


async def test_the_clients_of_all_workers_are_explained_throttled_ones_first(workers, answers):
    one, other = workers.clusters
    one.clients = lambda: [Client("bob", "etl", "10.0.0.1"), Client("bob", "web", "10.0.0.1")]
    other.clients = lambda: [Client("bob", "etl", "10.0.0.1"), Client("carol", "etl", "10.0.0.1")]
    other.throttle("alice", "etl")
    form = await answers.explain(ClientWanted(client_id="etl"))
    explained = [form, *form["others"]]
    assert [(each["client"]["user"], each["throttled"]) for each in explained] == [
        ("alice", True),
        ("bob", False),
        ("carol", False),
    ]
    [produce] = [quota for quota in form["quotas"] if quota["quota"] == "producer_byte_rate"]
    assert [use["throttles"] for use in produce["use"]] == [1]
    assert (form["more"], form["notes"]) == (0, [])
    assert [(await answers.explain(ClientWanted(user="bob")))["more"]] == [0]


async def test_of_very_many_clients_ten_are_explained_and_the_others_counted_once(workers, answers):
    for cluster in workers.clusters:
        cluster.clients = lambda: [Client(f"u{i:03}", "etl", "10.0.0.1") for i in range(100)]
    form = await answers.explain(ClientWanted(client_id="etl"))
    assert [each["client"]["user"] for each in (form, *form["others"])] == [f"u{i:03}" for i in range(10)]
    assert form["more"] >= 90
    assert workers.asked == ["clients"] + ["explain"] * 10


async def test_one_client_is_asked_for_at_once_and_nobody_is_said(workers, answers):
    form = await answers.explain(ClientWanted(user="alice", client_id="etl"))
    assert (form["client"]["user"], form["others"], form["notes"]) == ("alice", [], [])
    assert workers.asked == ["explain"]
    for cluster in workers.clusters:
        cluster.open = []
    form = await answers.explain(ClientWanted(client_id="etl"))
    assert form["client"]["user"] == "ANONYMOUS"
    assert form["notes"][0].startswith("no client with client_id='etl' is connected")


async def test_why_nobody_is_throttled_counts_the_connections_of_all_workers(answers):
    form = await answers.throttled(ThrottledWanted())
    assert (form["total"], form["connections"], form["entities"], form["other_instances"]) == (0, 8, 2, False)


async def test_without_an_answer_it_is_worth_to_ask_again(workers, answers):
    workers.apis = {}
    with pytest.raises(web.HTTPServiceUnavailable):
        await answers.explain(ClientWanted(client_id="etl"))
