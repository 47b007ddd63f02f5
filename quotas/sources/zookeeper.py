"""Quotas in ZooKeeper, in Kafka's own znodes (quotas/sources/znodes.py): read, followed and written."""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, NamedTuple

from kazoo import exceptions
from kazoo.protocol.states import KazooState, KeeperState

from kafka_throttle.common.login_secrets import SecretUnusable
from kafka_throttle.common.zookeeper import LOST, Ensemble, LastKazooError, acl_of, close, new_client, words_for
from kafka_throttle.quotas.changes import NO_QUOTAS, Alteration, Quotas, SourceUnavailable
from kafka_throttle.quotas.sources.source import SourceState
from kafka_throttle.quotas.sources.znode_follower import BATCH, Conflict, ConnectionLost, Failure, Follower, Forbidden
from kafka_throttle.quotas.sources.znodes import (
    CHANGE_PREFIX,
    CHANGES,
    Create,
    Delete,
    EntityNodes,
    Replace,
    Seen,
    Step,
)

_RETRY_S = 0.2
"""Between two attempts to connect. It is short because what ZooKeeper returns with has to be in force in a second."""
_REFUSED_S = 1.0
"""After a connection on which nothing could be read: whom ZooKeeper refuses it will refuse again."""
_GIVEN_UP_S = 1.0
"""After that long kazoo's thread has begun to connect, unless it has ended already."""
_REQUEST_S = 5.0
"""How long a response may take; then the connection is given up."""
_ALTER_S = 10.0
_START_S = 5.0
_PUBLISH_S = 0.5
"""How often a first load that takes long is published before it is done."""
_REPORTED_TROUBLES = 15
_STOP_S = 3.0
_CLOSE_S = 1.0

_IN_THE_WAKE_OF_ANOTHER = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
_ENDED = (KeeperState.CLOSED, KeeperState.AUTH_FAILED, KeeperState.EXPIRED_SESSION)


# ----------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Where the znodes are.

    Kafka's `/config` is below `chroot`, which is made when it is missing ("" is Kafka's own root). Below users, where
    SCRAM secrets may be, what we make may with `acl` "creator" be read only by us, as with zookeeper.set.acl.
    """

    ensemble: Ensemble
    chroot: str = ""
    resync_ms: int = 30_000

    def __post_init__(self) -> None:
        if self.chroot and not (self.chroot.startswith("/") and not self.chroot.endswith("/")):
            raise ValueError(f"chroot: expected nothing or a path like /kafka, got {self.chroot!r}")

    @property
    def place(self) -> str:
        """The path of `/config`."""
        return f"{self.chroot}/config"


# --------------------------------------------------------------- connection


class _Connection:
    """A Connection for a Follower: one session of kazoo's, from the first attempt to connect to the first loss.

    A session that is resumed on another connection gains us nothing, and one that saw a later transaction than a server
    which lost its data is refused for ever. `wake` is called from kazoo's threads when it comes up and when it is lost.
    """

    def __init__(self, settings: ZooKeeperSettings, wake: Callable[[], None]) -> None:
        self.is_up = False
        self._is_lost = False
        self._settings = settings
        self._wake = wake
        self._began_at = time.monotonic()
        self._words = LastKazooError()
        try:
            self._client = new_client(settings.ensemble, self._words, _RETRY_S)
        except SecretUnusable as error:
            raise ConnectionLost(str(error)) from None
        self._client.add_listener(self._on_state)
        self._client.start_async()

    def _on_state(self, state: KazooState) -> None:
        if state == KazooState.CONNECTED:
            self._words.text = ""
            self.is_up = True
        else:
            self._is_lost = True
        self._wake()

    @property
    def trouble(self) -> str:
        """Why there is no connection, as far as it is known."""
        return self._words.text

    def check(self) -> None:
        """Raise ConnectionLost if the connection was lost, kazoo has given up, or we are somebody else now."""
        if self._is_lost:
            raise ConnectionLost(self.trouble or "the session has ended")
        if self._client.is_another:
            raise ConnectionLost("the password has changed")
        is_under_way = self.is_up or time.monotonic() - self._began_at < _GIVEN_UP_S
        if not is_under_way and self._client.client_state in _ENDED:
            raise ConnectionLost(self.trouble or "kazoo has given up")

    def close(self) -> None:
        """Let go of session, socket and threads."""
        close(self._client)

    def sync(self, path: str) -> None:
        """Have this server catch up with the leader."""
        self._responses([self._client.sync_async(path)])

    def read(self, paths: Iterable[str]) -> list[Seen | Failure | None]:
        """Each node, None if it is not there. Data are null where a broker has made a node between."""
        responses = self._responses([self._client.get_async(path) for path in paths])
        return [
            _or_none(response) if isinstance(response, Failure)
            else Seen(response[0] or b"", response[1].version, response[1].numChildren)
            for response in responses
        ]  # fmt: skip

    def made_ms(self, paths: Iterable[str]) -> list[int | None]:
        """When each node was made, in ms since 1970; None if it is not there."""
        responses = self._responses([self._client.exists_async(path) for path in paths])
        return [None if stat is None or isinstance(stat, Failure) else stat.ctime for stat in responses]

    def children(
        self, paths: Iterable[str], watch: Callable[[Any], None] | None = None
    ) -> list[list[str] | Failure | None]:
        """The names below each node, None if it is not there; `watch` is called once when they change."""
        responses = self._responses([self._client.get_children_async(path, watch=watch) for path in paths])
        return [_or_none(response) if isinstance(response, Failure) else response for response in responses]

    def make(self, paths: Sequence[str]) -> dict[str, Failure]:
        """Make empty nodes, in this order, where there are none; those that could not be made."""
        missing = [path for path, made in zip(paths, self.made_ms(paths), strict=True) if made is None]
        responses = self._responses([self._client.create_async(path, b"", acl=self._acl(path)) for path in missing])
        failures = {
            path: response for path, response in zip(missing, responses, strict=True) if isinstance(response, Failure)
        }
        return {path: failure for path, failure in failures.items() if not isinstance(failure, _Exists)}

    def delete(self, paths: Iterable[str]) -> None:
        """Delete nodes as far as they are there and we may."""
        self._responses([self._client.delete_async(path) for path in paths])

    def commit(self, transactions: Iterable[Sequence[Step]]) -> list[Failure | None]:
        """Carry out each list of steps, whole or not at all; the Create of a notification has its number appended."""
        responses = self._responses([self._transaction(steps).commit_async() for steps in transactions])
        return [response if isinstance(response, Failure) else _cause(response) for response in responses]

    def _transaction(self, steps: Sequence[Step]) -> Any:
        transaction = self._client.transaction()
        for step in steps:
            match step:
                case Create(path, data):
                    is_notification = path.endswith(f"/{CHANGES}/{CHANGE_PREFIX}")
                    transaction.create(path, data, acl=self._acl(path), sequence=is_notification)
                case Replace(path, data, version):
                    transaction.set_data(path, data, version)
                case Delete(path, version):
                    transaction.delete(path, version)
        return transaction

    def _acl(self, path: str) -> list[Any]:
        is_secret = f"{path}/".startswith(f"{self._settings.place}/users/")
        return acl_of(self._settings.ensemble, is_secret=is_secret)

    def _responses(self, pending: Sequence[Any]) -> list[Any]:
        """What came of each request: its result or a Failure."""
        responses: list[Any] = []
        if pending:
            pending[-1].wait(_REQUEST_S)  # answers come in order, so that one wait does for all
        for request in pending:
            try:
                responses.append(request.get(timeout=0))
            except LOST as error:
                raise ConnectionLost(self.trouble or words_for(error, _REQUEST_S)) from None
            except exceptions.KazooException as error:
                responses.append(_failure(error))
        return responses


class _Missing(Conflict):
    """There is no such node."""


class _Exists(Conflict):
    """There is such a node."""


def _failure(error: Exception) -> Failure:
    """What kazoo raises, as a Follower knows it."""
    kinds = {
        exceptions.NoNodeError: _Missing,
        exceptions.NodeExistsError: _Exists,
        exceptions.BadVersionError: Conflict,
        exceptions.NotEmptyError: Conflict,
        exceptions.NoAuthError: Forbidden,
        exceptions.InvalidACLError: Forbidden,
    }
    return kinds.get(type(error), Failure)(words_for(error, _REQUEST_S))


def _or_none(failure: Failure) -> Failure | None:
    return None if isinstance(failure, _Missing) else failure


def _cause(results: Sequence[Any]) -> Failure | None:
    """Why a transaction was not carried out: one step has failed, and with it the others."""
    errors = [result for result in results if isinstance(result, Exception)]
    causes = [error for error in errors if not isinstance(error, _IN_THE_WAKE_OF_ANOTHER)]
    return _failure((causes or errors)[0]) if errors else None


# ------------------------------------------------------------------- source


class _Job(NamedTuple):
    """Alterations that somebody waits for, until a monotonic time."""

    alterations: Sequence[Alteration]
    deadline: float
    outcomes: "Future[Sequence[Exception | None]]"


class ZooKeeperSource:
    """Quotas from Kafka's znodes under `settings.chroot`, and back.

    One thread asks ZooKeeper and knows what it said; kazoo's own threads only wake it, and `alter` hands it what is to
    be written. A change that comes with a notification is seen at once, as by a broker; others by reading everything
    anew every `resync_ms`, and after each loss of the connection. Until there is a connection again, which it tries for
    without end, the last good quotas stay. `epoch_ms` is the time by which old notifications are purged.
    """

    name = "zookeeper"

    def __init__(
        self, settings: ZooKeeperSettings, epoch_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000
    ) -> None:
        self.quotas: Quotas = NO_QUOTAS
        self.problems: Mapping[str, str] = {}
        self._settings = settings
        self._epoch_ms = epoch_ms
        self._nodes = EntityNodes(settings.place)
        self._published = self._nodes.version
        self._published_at = 0.0
        self._other_problems: dict[str, str] = {}
        self._outage: list[str] = []
        self._was_read = False
        self._read_s: float | None = None
        """When all that was read was last known to be current, by `time.monotonic`."""
        self._changed: Callable[[], None] = lambda: None
        self._jobs: deque[_Job] = deque()
        self._wake = threading.Event()
        self._tried = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="quotas-zookeeper", daemon=True)

    def start(self, changed: Callable[[], None], last_good: Quotas = NO_QUOTAS) -> None:
        """Connect and read, and from now on tell of changes. Returns after the first attempt, 5 s at most."""
        self._nodes = EntityNodes(self._settings.place, last_good)
        self.quotas = self._nodes.quotas
        self._published, self._published_at = self._nodes.version, time.monotonic()
        self._changed = changed
        self._thread.start()
        self._tried.wait(_START_S)

    def stop(self) -> None:
        """Tell of none any more, and end the session. What is being written has 3 s. `start` waits no longer."""
        self._changed = lambda: None
        self._stopping.set()
        self._wake.set()
        self._tried.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    def alter(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """Write each, on the condition that nobody else changes its node meanwhile (then it is tried again).

        Takes 10 s at most. Without a response by then it may have been written all the same, which the text says.
        """
        deadline = time.monotonic() + _ALTER_S
        outcomes: list[Exception | None] = []
        for group in _independent(alterations):
            job = _Job(group, deadline, Future())
            self._jobs.append(job)
            self._wake.set()
            outcomes += self._outcomes(job)
        return outcomes

    def _outcomes(self, job: _Job) -> Sequence[Exception | None]:
        if not self._thread.is_alive():
            self._refuse_jobs()
        try:
            return job.outcomes.result(max(0.0, job.deadline - time.monotonic()))
        except TimeoutError:
            is_untouched = job.outcomes.cancel()
            why = "nothing is written" if is_untouched else "it may be written"
            return _all_unavailable(job, f"no response within {_ALTER_S:g} s; {why}")

    @property
    def was_read(self) -> bool:
        """Whether everything has been read since the connection came up; from any thread."""
        return self._was_read

    @property
    def state(self) -> SourceState:
        """Whether everything could be read, and is followed."""
        read_s = self._read_s
        age_s = None if read_s is None else time.monotonic() - read_s
        return SourceState(read_s is not None, self._was_read, age_s)

    # ----------------------------------------------------------- the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            connection, self._was_read = None, False
            try:
                connection = _Connection(self._settings, self._wake.set)
                self._follow(connection)
            except ConnectionLost as lost:
                self._note(str(lost))
            except Exception as error:
                # A fault of ours or kazoo's must not freeze the quotas of this moment for good.
                self._note(f"{type(error).__name__}: {error}")
            finally:
                if connection:
                    _close(connection)
            self._refuse_jobs()
            self._stopping.wait(_RETRY_S if self._was_read else _REFUSED_S)
        self._refuse_jobs()

    def _follow(self, connection: _Connection) -> None:
        """Do what there is to be done until this source is stopped. Raises ConnectionLost with the connection."""
        chroot, resync_s = self._settings.chroot, self._settings.resync_ms / 1000
        follower = Follower(connection, chroot, self._nodes, resync_s, self._epoch_ms, self._wake.set)
        rest_s = 0.0
        while not self._stopping.is_set():
            self._wake.wait(rest_s)
            self._wake.clear()
            connection.check()
            if not connection.is_up:
                rest_s = _RETRY_S
                self._refuse_jobs()
                if connection.trouble:
                    self._note(connection.trouble)
                continue
            rest_s = follower.go_on()
            self._do_jobs(follower)
            self._take_over(follower)

    def _do_jobs(self, follower: Follower) -> None:
        for job in self._waiting_jobs():
            try:
                outcomes = follower.write(job.alterations, job.deadline)
            except Exception as error:
                job.outcomes.set_result(_all_unavailable(job, f"{error}; it may be written"))
                raise
            self._publish()
            job.outcomes.set_result(outcomes)

    def _refuse_jobs(self) -> None:
        why = self._outage[-1] if self._outage else f"no connection to {self._servers}"
        for job in self._waiting_jobs():
            job.outcomes.set_result(_all_unavailable(job, f"{why}; nothing is written"))

    def _waiting_jobs(self) -> Iterator[_Job]:
        """Those that are still waited for; the caller owns each."""
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                return
            if job.outcomes.set_running_or_notify_cancel():
                yield job

    # ------------------------------------------------------------ publishing

    @property
    def _servers(self) -> str:
        return ",".join(self._settings.ensemble.servers)

    def _note(self, trouble: str) -> None:
        """Tell why nothing can be read; what has been told since the last success is not told again."""
        if trouble not in self._outage:
            self._outage = [*self._outage[-_REPORTED_TROUBLES:], trouble]
        self._publish()
        self._tried.set()

    def _take_over(self, follower: Follower) -> None:
        """Publish what has been read: a first load when it is done, for each time costs as much as there are quotas."""
        self._other_problems = follower.problems
        if follower.is_loaded:
            self._was_read = True
            self._outage = []
            self._publish()
            self._read_s = time.monotonic()
            self._tried.set()
        elif time.monotonic() - self._published_at > _PUBLISH_S:
            self._publish()

    def _publish(self) -> None:
        problems = {**self._nodes.problems, **self._other_problems}
        if self._outage:
            problems[self.name] = f"{self._servers}: {self._outage[-1]}; the last good quotas stay in force"
        if self._nodes.version == self._published and problems == self.problems:
            return
        if self._nodes.version != self._published:
            self.quotas = self._nodes.quotas
        self.problems = problems
        self._published, self._published_at = self._nodes.version, time.monotonic()
        self._changed()


def _close(connection: _Connection) -> None:
    """Close a connection, in a thread, because kazoo may block if the server does not respond."""
    closing = threading.Thread(target=connection.close, name="quotas-zookeeper-close", daemon=True)
    closing.start()
    closing.join(_CLOSE_S)


def _independent(alterations: Sequence[Alteration]) -> Iterator[Sequence[Alteration]]:
    """The alterations in their order, in groups that have no two of the same user, whose nodes depend on each other."""
    group: list[Alteration] = []
    taken: set[object] = set()
    for alteration in alterations:
        owner = alteration.entity.user or alteration.entity
        if owner in taken or len(group) == BATCH:
            yield group
            group, taken = [], set()
        group.append(alteration)
        taken.add(owner)
    if group:
        yield group


def _all_unavailable(job: _Job, why: str) -> list[Exception | None]:
    return [SourceUnavailable(why) for _ in job.alterations]
