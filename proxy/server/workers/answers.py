"""What the supervisor answers to operators: it asks all workers, and makes one answer of theirs."""

from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import web

from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.settings import Config
from kafka_throttle.proxy.observe.api import (
    ClientWanted,
    OfCluster,
    QuotasWanted,
    ThrottledWanted,
    named_cluster,
    quotas_page,
    routes_of,
)
from kafka_throttle.proxy.observe.endpoints import Parameters
from kafka_throttle.proxy.observe.explained import Origin, explained_together
from kafka_throttle.proxy.observe.forms import CapsPage, CostsPage, ExplanationPage, QuotasPage, ThrottledPage
from kafka_throttle.proxy.observe.known_clients import merged_clients
from kafka_throttle.proxy.observe.merged_forms import merged_caps, merged_costs, merged_explanation, merged_throttled
from kafka_throttle.proxy.observe.page.history import History, Moment
from kafka_throttle.proxy.observe.page.merged_facts import MERGED, merged_hits
from kafka_throttle.proxy.observe.page.search import Found
from kafka_throttle.proxy.observe.page.sections import Facts, Section, hour_facts
from kafka_throttle.proxy.observe.past.moments import NO_HISTORY
from kafka_throttle.proxy.server.quota_store import QuotaStore
from kafka_throttle.proxy.server.workers.group import Running, Workers
from kafka_throttle.proxy.usage.recorder import own_name
from kafka_throttle.quotas.changes import Quotas
from kafka_throttle.quotas.sources.source import Source


class ClusterOfWorkers:
    """A virtual cluster of which the workers serve the clients."""

    def __init__(self, name: str, store: QuotaStore, source: Source, *, is_one_of_several: bool) -> None:
        self.name = name
        self.is_one_of_several = is_one_of_several
        """Whether other instances, beside the workers of this one, serve clients with the same quotas."""
        self._store = store
        self._source = source

    @property
    def quotas(self) -> Quotas:
        """The quotas in force."""
        return self._store.quotas

    @property
    def origin(self) -> Origin:
        """The source of the quotas, and its problems."""
        return Origin(self.name, self._source.name, self._store.problems, self._store.known)


class AnswersOfWorkers:
    """The endpoints of the API, as `AdminApi` has them, for several workers."""

    def __init__(self, workers: Workers, clusters: Sequence[ClusterOfWorkers]) -> None:
        self._workers = workers
        self.clusters = {cluster.name: cluster for cluster in clusters}

    def routes(self) -> list[web.RouteDef]:
        """The endpoints, and their description, for an HTTP listener."""
        return routes_of(self)

    async def _answers(self, endpoint: str, wanted: Parameters) -> dict[str, Any]:
        """The answers of the workers that answer in time, by their names."""
        name: str | None = getattr(wanted, "virtual_cluster", None)
        if name is not None or not isinstance(wanted, ThrottledWanted):
            named_cluster(self.clusters, name)
        answers = await self._workers.ask("respond", endpoint, wanted)
        if not answers:
            raise web.HTTPServiceUnavailable(text="no worker answers")
        return {worker.name: answer for worker, answer in answers.items()}

    async def caps(self, wanted: OfCluster) -> CapsPage:
        """The byte caps of a virtual cluster, and what they delay."""
        return merged_caps(list((await self._answers("caps", wanted)).values()))

    async def explain(self, wanted: ClientWanted) -> ExplanationPage:
        """The quotas of a client, why they apply, and what is measured of it."""
        if wanted.at is not None:
            raise web.HTTPNotFound(text=NO_HISTORY)
        if wanted.names.client is not None:
            return merged_explanation(await self._answers("explain", wanted))
        cluster = named_cluster(self.clusters, wanted.virtual_cluster)
        known = merged_clients(list((await self._answers("clients", wanted)).values()))
        clients, notes = known.explained(wanted.names, cluster.is_one_of_several)
        pages = [merged_explanation(await self._answers("explain", wanted.of(client))) for client in clients]
        return explained_together(pages, known.more, notes)

    async def quotas(self, wanted: QuotasWanted) -> QuotasPage:
        """The quotas in force, entity by entity."""
        return await quotas_page(named_cluster(self.clusters, wanted.virtual_cluster), wanted)

    async def request_costs(self, wanted: OfCluster) -> CostsPage:
        """What requests cost at each node, by the model that limits request times."""
        return merged_costs(list((await self._answers("request_costs", wanted)).values()))

    async def throttled(self, wanted: ThrottledWanted) -> ThrottledPage:
        """The clients that are throttled now: one line for each client, quota and node."""
        if wanted.at is not None:
            raise web.HTTPNotFound(text=NO_HISTORY)
        pages = list((await self._answers("throttled", wanted)).values())
        clusters = [each for each in self.clusters.values() if wanted.virtual_cluster in (None, each.name)]
        others = any(cluster.is_one_of_several for cluster in clusters)
        return {**merged_throttled(pages, wanted.sort, wanted.limit), "other_instances": others}


class PageOfWorkers:
    """What the status page is made of, for several workers."""

    def __init__(
        self,
        config: Config,
        answers: AnswersOfWorkers,
        workers: Workers,
        clock: Clock,
        not_ready: Callable[[], Sequence[str]],
        remarks: Callable[[], Sequence[str]],
    ) -> None:
        self.name = config.usage.instance or own_name()
        self.clusters: Sequence[str] = list(answers.clusters)
        self.clock = clock
        self._answers = answers
        self._workers = workers
        self._not_ready = not_ready
        self._remarks = remarks
        self._latest: dict[str, Facts] = {}
        """The facts of sections when a worker answered last."""
        self._ended = _nothing()
        """What workers that have ended had counted."""
        self.history = History(self._moment)

    def note_end(self, worker: Running) -> None:
        """A worker has ended: keep what it had counted."""
        if worker.pulse is not None:
            moment = worker.pulse.moment
            self._ended = _sum([self._ended, moment._replace(throttled_clients=0, connections=0, loop_lag_s=0.0)])

    def _moment(self) -> Moment:
        moments = [worker.pulse.moment for worker in self._workers.running if worker.pulse is not None]
        return _sum([self._ended, *moments])._replace(now_ms=self.clock.now_ms(), epoch_ms=self.clock.epoch_ms())

    async def facts(self, section: Section) -> Facts:
        """The present facts of a section, of the workers that answer in time."""
        if section.name == "state":
            facts = {"reasons": list(self._not_ready()), "remarks": list(self._remarks())}
            return {**facts, "at_ms": self.clock.epoch_ms()}
        if section.name == "hour":
            return hour_facts(self.history)
        if answers := list((await self._workers.ask("facts", section.name)).values()):
            self._latest[section.name] = MERGED[section.name](answers)
        if section.name not in self._latest:
            raise web.HTTPServiceUnavailable(text="no worker answers")
        return {**self._latest[section.name], **self._known_here(section.name)}

    def _known_here(self, section: str) -> Facts:
        """What the supervisor knows itself of a section."""
        clusters = self._answers.clusters.values()
        if section != "quotas":
            return {}
        return {
            "set_on": sum(len(cluster.quotas) for cluster in clusters),
            "unknown": [cluster.origin for cluster in clusters if not cluster.origin.known],
        }

    async def find(self, text: str) -> Found:
        """The clients of which a name contains `text`."""
        return merged_hits(list((await self._workers.ask("find", text)).values()))


def _nothing() -> Moment:
    return Moment(0, 0, 0, 0, 0, 0, 0, 0, 0.0)


def _sum(moments: Sequence[Moment]) -> Moment:
    """The sums of what was counted, and the longest delay."""
    sums = [sum(numbers) for numbers in zip(*moments, strict=True)]
    return Moment(*sums)._replace(loop_lag_s=max(moment.loop_lag_s for moment in moments))
