"""The quotas of the cluster itself, read and written with its own API by the proxy's own credentials."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final, Protocol, TypeVar

from kafka_throttle.common.backoff import Backoff
from kafka_throttle.protocol.messages.client_quotas import Verbatim, all_quotas_request
from kafka_throttle.protocol.messages.metadata import nodes_request
from kafka_throttle.protocol.own_requests import OwnRequest
from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, AlterationRefused, Quotas, SourceUnavailable
from kafka_throttle.quotas.entities import Entity, Scope
from kafka_throttle.quotas.sources.client_quotas import (
    NOTHING_REPORTED,
    Reported,
    alter_request,
    altered,
    reported,
    shows,
)
from kafka_throttle.quotas.sources.cluster_connection import ClusterConnection, Credentials
from kafka_throttle.quotas.sources.known_servers import KnownServers
from kafka_throttle.quotas.sources.source import SourceState

Result = TypeVar("Result")

THE_CLUSTER: Final = "upstream cluster"
"""The place of problems with the cluster as a whole."""

_FIRST_RETRY_S = 0.25
_LONGEST_RETRY_S = 5.0
_LOOKS_EVERY_S = 0.05
_STOP_S = 1.0
_PAUSE_PER_BUSY_S = 4


@dataclass(frozen=True, slots=True)
class UpstreamSettings:
    """Where the cluster is, who the proxy is to it, and how often it is read.

    `timeout_s` bounds the way to one server and its response; `shown_within_s`, how long a quota that was written may
    take to be told by the cluster.
    """

    bootstrap_servers: tuple[str, ...]
    credentials: Credentials = field(default_factory=Credentials)
    interval_s: float = 2.0
    timeout_s: float = 10.0
    shown_within_s: float = 5.0


class Connection(Protocol):
    """What is needed of a ClusterConnection."""

    def ask(self, request: OwnRequest[Result]) -> Result:
        """The response. Raises SourceUnavailable."""

    def interrupt(self) -> None:
        """Let asking fail, from any thread."""

    def close(self) -> None:
        """Let go of it."""


class Pace:
    """How long to wait, in seconds, before a cluster is read again.

    Normally the interval. But reading takes at most a fifth of a processor of ours, and half the time of a node: very
    many quotas are read less often. A cluster that cannot be had is tried again after 0.25 s, then twice as late each
    time, up to 5 s, or the interval if that is longer.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._backoff = Backoff(_FIRST_RETRY_S, max(_LONGEST_RETRY_S, interval_s))

    def after_read(self, took_s: float, busy_s: float) -> float:
        """After a read that took so long, and so much processor time."""
        self._backoff.succeeded()
        return max(self._interval_s, took_s, _PAUSE_PER_BUSY_S * busy_s)

    def after_failure(self) -> float:
        """After a failed attempt."""
        return self._backoff.failed()


class UpstreamSource:
    """Reads all quotas of a cluster at an interval, in a thread of its own, over one connection that stays open.

    When it is lost, or not answered, the next bootstrap server is asked, and then the nodes that the cluster has named.
    `replace_servers` takes up other servers.
    """

    name = "upstream"

    def __init__(
        self,
        settings: UpstreamSettings,
        connect: Callable[[str, Credentials, float], Connection] = ClusterConnection,
    ) -> None:
        self._settings = settings
        self._next_settings = settings
        """Those to go on with from the next request; any thread may set it."""
        self._connect = connect
        self._reported = NOTHING_REPORTED
        self._response: Verbatim | None = None
        self._trouble: str | None = "not read yet"
        self._read_s: float | None = None
        """When it was last read, by `time.monotonic`."""
        self._changed: Callable[[], None] = lambda: None
        self._asking = threading.Lock()
        self._connection: Connection | None = None
        self._servers = KnownServers(settings.bootstrap_servers)
        self._turn = 0
        self._server = ""
        """The one that was connected to last."""
        self._pace = Pace(settings.interval_s)
        self._attempted = threading.Event()
        self._stopped = threading.Event()
        self._wake = threading.Event()
        """Ends the pause before the next read."""
        self._thread = threading.Thread(target=self._keep_reading, name="quotas-upstream", daemon=True)

    @property
    def quotas(self) -> Quotas:
        """The valid quotas of the cluster's last response."""
        return self._reported.quotas

    @property
    def problems(self) -> Mapping[str, str]:
        """By entity, and for THE_CLUSTER."""
        of_cluster = {} if (trouble := self._trouble) is None else {THE_CLUSTER: trouble}
        return MappingProxyType(of_cluster | dict(self._reported.problems))

    @property
    def state(self) -> SourceState:
        """Whether the cluster could be read."""
        read_s = self._read_s
        age_s = None if read_s is None else time.monotonic() - read_s
        return SourceState(read_s is not None, self._trouble is None, age_s)

    @property
    def was_tried(self) -> bool:
        """Whether the first attempt to read is over; from any thread."""
        return self._attempted.is_set()

    def start(self, changed: Callable[[], None], last_good: Quotas = NO_QUOTAS) -> None:
        """Read the quotas, and go on reading; returns after the first attempt, at the latest after the time-out."""
        self._reported = self._reported._replace(quotas=last_good)
        self._changed = changed
        self._thread.start()
        self._attempted.wait(self._settings.timeout_s)

    def stop(self) -> None:
        """End the thread, also one that waits for the cluster; that may take a second. `start` waits no longer."""
        self._stopped.set()
        self._wake.set()
        self._attempted.set()
        if connection := self._connection:
            connection.interrupt()
        if self._thread.is_alive():
            self._thread.join(_STOP_S)
        if self._asking.acquire(timeout=_STOP_S):  # else it looks up a name, and lets go by itself
            self._disconnect()
            self._asking.release()

    def replace_servers(self, bootstrap_servers: tuple[str, ...], timeout_s: float) -> None:
        """Read the cluster at these servers, from the next request on; until it is read, the last good quotas stay.

        Does not wait, for a request under way either.
        """
        new = replace(self._next_settings, bootstrap_servers=bootstrap_servers, timeout_s=timeout_s)
        if new != self._next_settings:
            self._next_settings = new
            self._wake.set()

    # --------------------------------------------------------------- reading

    def _keep_reading(self) -> None:
        while not self._stopped.is_set():
            began_s, busy_s = time.monotonic(), time.thread_time()
            read = self._try_to_read()
            took_s, busy_s = time.monotonic() - began_s, time.thread_time() - busy_s
            self._attempted.set()
            self._wake.wait(self._pace.after_read(took_s, busy_s) if read else self._pace.after_failure())
            self._wake.clear()
        with self._asking:
            self._disconnect()

    def _try_to_read(self) -> bool:
        try:
            with self._asking:
                self._read()
                self._ask_for_nodes()
        except SourceUnavailable:
            return False
        except Exception as error:  # our own bug: told once a time, but no end of reading
            logging.getLogger(__name__).exception("quotas not read")
            self._take_up(self._reported, f"cannot be read: {error!r}")
            return False
        return True

    def _read(self) -> None:
        """Take up what the cluster tells now. SourceUnavailable, noted in the problems, if it cannot be had."""
        try:
            new = self._describe()
        except SourceUnavailable as error:
            self._take_up(self._reported, str(error))
            raise
        self._take_up(new, None)

    def _ask_for_nodes(self) -> None:
        """Now and then, have the cluster name its nodes."""
        if self._connection and self._servers.are_old:
            try:
                self._servers.note(self._connection.ask(nodes_request()).nodes)
            except SourceUnavailable:  # the quotas were read
                self._disconnect()

    def _describe(self) -> Reported:
        response = self._ask_anybody(all_quotas_request())
        if response == self._response:
            return self._reported
        try:
            new = reported(response, self._reported.quotas)
        except SourceUnavailable as error:
            raise SourceUnavailable(f"{self._server}: {error}") from error
        self._response = response
        return new

    def _take_up(self, new: Reported, trouble: str | None) -> None:
        before = self._reported, self._trouble
        same_quotas = new.quotas == self._reported.quotas
        self._reported = new._replace(quotas=self._reported.quotas) if same_quotas else new
        self._trouble = trouble
        if trouble is None:
            self._read_s = time.monotonic()
        if (self._reported, trouble) != before and not self._stopped.is_set():
            self._changed()

    def _ask_anybody(self, request: OwnRequest[Result]) -> Result:
        """The response over the open connection, or from the first server, in turn, that gives one."""
        if self._settings is not self._next_settings:
            self._disconnect()
            self._settings, self._turn = self._next_settings, 0
            self._servers.replace(self._settings.bootstrap_servers)
        if self._connection:
            try:
                return self._connection.ask(request)
            except SourceUnavailable:
                self._disconnect()
        failures = []
        for _ in self._servers.all:
            try:
                return self._reconnect().ask(request)
            except SourceUnavailable as error:
                self._disconnect()
                failures.append(str(error))
        raise SourceUnavailable("; ".join(failures))

    def _reconnect(self) -> Connection:
        self._server = self._servers.all[self._turn % len(self._servers.all)]
        self._connection = self._connect(self._server, self._settings.credentials, self._settings.timeout_s)
        if self._stopped.is_set():  # `stop` may have looked for a connection before there was one
            raise SourceUnavailable("stopped")
        return self._connection

    def _disconnect(self) -> None:
        """Let go of the connection; the next is to the next server."""
        if self._connection:
            self._connection.close()
            self._connection = None
            self._turn += 1

    # --------------------------------------------------------------- writing

    def alter(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """Write to the cluster, and wait until it tells what was written.

        An alteration that it has taken but does not tell in time is SourceUnavailable, with a text that says so.
        """
        results: list[Exception | None] = [_not_kafkas(alteration) for alteration in alterations]
        waiting = [
            i for i, one in enumerate(alterations) if not results[i] and not all(key.shadow for key in one.limits)
        ]
        with self._asking:
            while waiting:
                batch = _one_of_each_entity(waiting, alterations)
                for index, result in zip(batch, self._write([alterations[index] for index in batch]), strict=True):
                    results[index] = result
                waiting = [index for index in waiting if index not in batch]
        return results

    def judge(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """What the cluster says to alterations of different entities without writing them; None: it would take it."""
        with self._asking:
            try:
                self._read()
                assert self._connection
                spellings = self._reported.ip_spellings
                response = self._connection.ask(alter_request(alterations, spellings, validate_only=True))
            except SourceUnavailable as error:
                return [error] * len(alterations)
        return [
            _not_kafkas(one) or said
            for one, said in zip(alterations, altered(response, alterations, spellings), strict=True)
        ]

    def _write(self, alterations: Sequence[Alteration]) -> list[Exception | None]:
        """What comes of alterations of different entities."""
        try:
            self._read()
            assert self._connection
            spellings = self._reported.ip_spellings
            response = self._connection.ask(alter_request(alterations, spellings))
        except SourceUnavailable as error:
            return [error] * len(alterations)
        results = altered(response, alterations, spellings)
        taken = [one for one, result in zip(alterations, results, strict=True) if result is None]
        hidden = self._wait_until_shown(taken)
        return [result or hidden.get(one.entity) for one, result in zip(alterations, results, strict=True)]

    def _wait_until_shown(self, alterations: Sequence[Alteration]) -> dict[Entity, SourceUnavailable]:
        """What the cluster has taken and still does not tell when the time is over; brokers lag behind (spec 11.1)."""
        deadline_s = time.monotonic() + self._settings.shown_within_s
        while True:
            try:
                self._read()
            except SourceUnavailable as error:
                return {one.entity: SourceUnavailable(f"written, but not read back: {error}") for one in alterations}
            hidden = [one for one in alterations if not shows(self.quotas, one)]
            if not hidden or time.monotonic() >= deadline_s or self._stopped.wait(_LOOKS_EVERY_S):
                return {one.entity: self._still_hidden(one.entity) for one in hidden}

    def _still_hidden(self, entity: Entity) -> SourceUnavailable:
        why = self._reported.problems.get(str(entity), "another client may have changed them since")
        waited = f"{self._settings.shown_within_s:g} s"
        return SourceUnavailable(f"written, but after {waited} the cluster tells other quotas of {entity}: {why}")


def _not_kafkas(alteration: Alteration) -> AlterationRefused | None:
    """Why a cluster cannot hold what an alteration sets; None if it can."""
    if alteration.scope is Scope.CLUSTER:
        return AlterationRefused(f"a Kafka cluster cannot hold a scope (cluster, of {alteration.entity})")
    keys = [key.text for key, limit in alteration.limits.items() if key.shadow and limit is not None]
    if not keys:
        return None
    return AlterationRefused(f"a Kafka cluster cannot hold shadow quotas ({', '.join(keys)} of {alteration.entity})")


def _one_of_each_entity(indexes: Iterable[int], alterations: Sequence[Alteration]) -> list[int]:
    """Indexes of the first alteration of each entity: a request that names one twice is refused in part."""
    first: dict[Entity, int] = {}
    for index in indexes:
        first.setdefault(alterations[index].entity, index)
    return list(first.values())
