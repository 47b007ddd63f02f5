"""Quotas in ZooKeeper, in Kafka's own znodes (quotas/znodes.py): read, followed and written."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Literal, NamedTuple

from kazoo import exceptions, security
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState, KeeperState

from quotas.entities import Entity, InvalidQuota
from quotas.sources.source import (
    NO_QUOTAS,
    Alteration,
    AlterationRefused,
    Quotas,
    SourceUnavailable,
)
from quotas.znodes import (
    CHANGE_PREFIX,
    CHANGES,
    ROOTS,
    Create,
    Delete,
    EntityNodes,
    Replace,
    Seen,
    Step,
    change_number,
    notification,
    notified_path,
    pairs_of,
    parents_of,
    steps_to,
)

_BATCH = 64
"""Requests under way at once, and alterations: what else is to be done waits for no more than these."""
_RETRY_S = 0.2
"""Between two attempts to connect. It is short because what ZooKeeper returns with has to be in force in a second."""
_REFUSED_S = 1.0
"""After a connection on which nothing could be read: whom ZooKeeper refuses it will refuse again."""
_GIVEN_UP_S = 1.0
"""After that long kazoo's thread has begun to connect, unless it has ended already."""
_REQUEST_S = 5.0
"""How long an answer may take; then the connection is given up."""
_WRITE_ATTEMPTS = 100
_ALTER_S = 10.0
_START_S = 5.0
_PUBLISH_S = 0.5
"""How often a first load that takes long is published before it is done."""
_TOLD_TROUBLES = 15
_STOP_S = 3.0
_CLOSE_S = 1.0
_MISSING_ROOT_S = 1.0
"""How soon it is looked again for a root that is gone."""
_RESYNC_REST = 5
"""A re-sync rests this many times as long as it works, for it shares its processor with the traffic."""
_KEPT_MS = 15 * 60 * 1000
"""How old a notification may become, as in brokers."""

_CONFLICTS = (
    exceptions.BadVersionError,
    exceptions.NodeExistsError,
    exceptions.NoNodeError,
    exceptions.NotEmptyError,
)
_LOST = (
    exceptions.ConnectionLoss,
    exceptions.SessionExpiredError,
    exceptions.AuthFailedError,
    KazooTimeoutError,
)
_IN_THE_WAKE_OF_ANOTHER = (exceptions.RolledBackError, exceptions.RuntimeInconsistency)
_DONE = object()
_ENDED = (KeeperState.CLOSED, KeeperState.AUTH_FAILED, KeeperState.EXPIRED_SESSION)


# ----------------------------------------------------------------- settings


@dataclass(frozen=True, slots=True)
class Login:
    """A name and its password."""

    user: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """PEM files: whom to trust (None: whom the system trusts), and our own certificate and key, if asked for them."""

    ca: str | None = None
    certificate: str | None = None
    key: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify_host_name: bool = True


@dataclass(frozen=True, slots=True)
class ZooKeeperSettings:
    """Where the znodes are, and who we are there.

    `servers` are host:port; Kafka's `/config` is below `chroot`, which is made when it is missing ("" is Kafka's own
    root). `digest` is ZooKeeper's own scheme, `sasl` is DIGEST-MD5. With `acl` "creator" what we make may be changed
    only by whom we are, and below users, where SCRAM secrets may be, read only by them, as with zookeeper.set.acl.
    """

    servers: Sequence[str]
    chroot: str = ""
    session_timeout_ms: int = 18_000
    resync_ms: int = 30_000
    digest: Login | None = None
    sasl: Login | None = None
    tls: Tls | None = None
    acl: Literal["open", "creator"] = "open"

    @property
    def place(self) -> str:
        """The path of `/config`."""
        return f"{self.chroot.rstrip('/')}/config"


# --------------------------------------------------------------- connection


class _Lost(Exception):
    """This connection is of no use any more; the text says why."""


class _LastWords(logging.Handler):
    """What kazoo said last about what is wrong: it logs the reasons, and raises without them."""

    _CONSEQUENCES = ("Transition to CONNECTING", "Failed connecting to Zookeeper")

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the message, if it is a reason."""
        text = record.getMessage()
        if not text.startswith(self._CONSEQUENCES):
            error = record.exc_info[1] if record.exc_info else None
            self.text = f"{text}: {_words_for(error)}" if isinstance(error, Exception) else text


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads; one that ends by an error has logged it, and need not print it too."""

    def spawn(self, func: Callable[..., None], *args: Any, **kwargs: Any) -> Any:
        """Run a function in a thread of its own."""

        def run() -> None:
            with suppress(Exception):
                func(*args, **kwargs)

        return super().spawn(run)


class _Connection:
    """One session of kazoo's, from the first attempt to connect to the first loss of the connection.

    A session that is resumed on another connection gains us nothing, and one that saw a later transaction than a server
    which lost its data is refused for ever. Requests wait for their answers, `_REQUEST_S` at most, and raise _Lost.
    `wake` is called from kazoo's threads when the connection comes up and when it is lost.
    """

    def __init__(self, settings: ZooKeeperSettings, wake: Callable[[], None]) -> None:
        self.is_up = False
        self._is_lost = False
        self._settings = settings
        self._wake = wake
        self._began_at = time.monotonic()
        self._words = _LastWords()
        logger = logging.Logger("kazoo", logging.WARNING)
        logger.addHandler(self._words)
        self._client = KazooClient(
            hosts=",".join(settings.servers),
            timeout=settings.session_timeout_ms / 1000,
            connection_retry={"max_tries": -1, "delay": _RETRY_S, "backoff": 1, "max_jitter": 0.1},
            handler=_Handler(),
            logger=logger,
            **_credentials(settings),
        )
        self._client.add_listener(self._on_state)
        self._client.start_async()

    def _on_state(self, state: KazooState) -> None:
        if state == KazooState.CONNECTED:
            self.is_up = True
        else:
            self._is_lost = True
        self._wake()

    @property
    def trouble(self) -> str:
        """Why there is no connection, as far as it is known."""
        return self._words.text

    def check(self) -> None:
        """Raise _Lost if the connection was lost, or kazoo has given up."""
        if self._is_lost:
            raise _Lost(self.trouble or "the session has ended")
        is_under_way = self.is_up or time.monotonic() - self._began_at < _GIVEN_UP_S
        if not is_under_way and self._client.client_state in _ENDED:
            raise _Lost(self.trouble or "kazoo has given up")

    def close(self) -> None:
        """Let go of session, socket and threads."""
        try:
            self._client.stop()
            self._client.close()
        except (exceptions.KazooException, OSError):
            pass  # a server that does not answer ends the session on its own

    # The paths of requests are full.

    def sync(self, path: str) -> None:
        """Have this server catch up with the leader."""
        self._answers([self._client.sync_async(path)])

    def read(self, paths: Iterable[str]) -> list[Seen | Exception | None]:
        """Each node, None if it is not there, or why it cannot be read."""
        answers = self._answers([self._client.get_async(path) for path in paths])
        return [_seen(answer) for answer in answers]

    def made_ms(self, paths: Iterable[str]) -> list[int | None]:
        """When each node was made, in ms since 1970; None if it is not there, or not to be seen."""
        answers = self._answers([self._client.exists_async(path) for path in paths])
        return [None if stat is None or isinstance(stat, Exception) else stat.ctime for stat in answers]

    def children(
        self, paths: Iterable[str], watch: Callable[[Any], None] | None = None
    ) -> list[list[str] | Exception | None]:
        """The names below each node, None if it is not there, or why it cannot be read."""
        answers = self._answers([self._client.get_children_async(path, watch=watch) for path in paths])
        return [None if isinstance(answer, exceptions.NoNodeError) else answer for answer in answers]

    def make(self, paths: Sequence[str]) -> None:
        """Make empty nodes, in this order, where there are none."""
        missing = [path for path, made in zip(paths, self.made_ms(paths), strict=True) if made is None]
        answers = self._answers([self._client.create_async(path, b"", acl=self._acl(path)) for path in missing])
        for path, answer in zip(missing, answers, strict=True):
            if isinstance(answer, Exception) and not isinstance(answer, exceptions.NodeExistsError):
                raise _Lost(f"cannot make {path}: {_words_for(answer)}")

    def delete(self, paths: Iterable[str]) -> None:
        """Delete nodes as far as they are there and we may."""
        self._answers([self._client.delete_async(path) for path in paths])

    def commit(self, transactions: Iterable[Sequence[Step]]) -> list[Exception | None]:
        """Carry out each list of steps, whole or not at all; a Create of a notification has its number appended."""
        answers = self._answers([self._transaction(steps).commit_async() for steps in transactions])
        return [answer if isinstance(answer, Exception) else _failure(answer) for answer in answers]

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
        if self._settings.acl == "open":
            return list(security.OPEN_ACL_UNSAFE)
        is_secret = f"{path}/".startswith(f"{self._settings.place}/users/")
        return [*security.CREATOR_ALL_ACL, *([] if is_secret else security.READ_ACL_UNSAFE)]

    def _answers(self, pending: Sequence[Any]) -> list[Any]:
        """What came of each request: its result, or what is wrong with its node."""
        answers: list[Any] = []
        if pending:
            pending[-1].wait(_REQUEST_S)  # answers come in order, so that one wait does for all
        for request in pending:
            try:
                answers.append(request.get(timeout=0))
            except _LOST as error:
                raise _Lost(self.trouble or _words_for(error)) from None
            except exceptions.KazooException as error:
                answers.append(error)
        return answers


def _seen(answer: Any) -> Seen | Exception | None:
    """What came of a get; the data of a node between are null, as brokers make it."""
    if isinstance(answer, Exception):
        return None if isinstance(answer, exceptions.NoNodeError) else answer
    data, stat = answer
    return Seen(data or b"", stat.version, stat.numChildren)


def _credentials(settings: ZooKeeperSettings) -> dict[str, Any]:
    """What kazoo is told of who we are and whom we trust."""
    told: dict[str, Any] = {}
    if settings.digest:
        told["auth_data"] = [("digest", f"{settings.digest.user}:{settings.digest.password}")]
    if settings.sasl:
        login = settings.sasl
        told["sasl_options"] = {"mechanism": "DIGEST-MD5", "username": login.user, "password": login.password}
    if tls := settings.tls:
        told.update(
            use_ssl=True,
            ca=tls.ca,
            certfile=tls.certificate,
            keyfile=tls.key,
            keyfile_password=tls.key_password,
            check_hostname=tls.verify_host_name,
        )
    return told


def _failure(results: Sequence[Any]) -> Exception | None:
    """Why a transaction was not carried out."""
    errors = [result for result in results if isinstance(result, Exception)]
    causes = [error for error in errors if not isinstance(error, _IN_THE_WAKE_OF_ANOTHER)]
    return next(iter(causes or errors), None)


def _words_for(error: Exception) -> str:
    known = {
        exceptions.NoAuthError: "not allowed",
        exceptions.InvalidACLError: "an ACL for its creator needs a login",
        KazooTimeoutError: f"no answer within {_REQUEST_S:g} s",
    }
    return known.get(type(error)) or str(error) or type(error).__name__


# ---------------------------------------------------------------- following


class _Follower:
    """Keeps `nodes` in step with ZooKeeper while one connection lasts; in one thread, but for `_on_watch`."""

    def __init__(
        self,
        connection: _Connection,
        settings: ZooKeeperSettings,
        nodes: EntityNodes,
        epoch_ms: Callable[[], int],
        wake: Callable[[], None],
    ) -> None:
        self.is_loaded = False
        self._connection = connection
        self._resync_s = settings.resync_ms / 1000
        self._brokers = f"{settings.chroot.rstrip('/')}/brokers"
        self._is_kafkas = False
        self._nodes = nodes
        self._epoch_ms = epoch_ms
        self._wake = wake
        self._was_told = False
        self._load: Iterator[None] = iter(())
        self._load_at = -inf
        self._highest: int | None = None
        self._roots: dict[str, str] = {}
        self._bad_changes: dict[str, str] = {}

    @property
    def problems(self) -> dict[str, str]:
        """What is wrong with other nodes than those of entities, by their full path."""
        return {**self._roots, **self._bad_changes}

    def go_on(self) -> float:
        """Read what is due: notified changes, and a batch of the load under way. Returns s until more is due."""
        if self._highest is None:
            self._begin()
        if self._was_told:
            self._take_changes()
        began = time.monotonic()
        if began >= self._load_at:
            if next(self._load, _DONE) is _DONE:
                self.is_loaded = True
                self._load_again_in(_MISSING_ROOT_S if self._roots else self._resync_s)
            elif self.is_loaded:
                now = time.monotonic()
                self._load_at = now + _RESYNC_REST * (now - began)
        return max(0.0, self._load_at - time.monotonic())

    def _begin(self) -> None:
        """Make what is missing above the roots, and have kazoo tell of notifications from now on."""
        self._connection.sync("/")
        changes = self._nodes.full(CHANGES)
        parts = changes.split("/")
        self._connection.make(["/".join(parts[:count]) for count in range(2, len(parts) + 1)])
        self._is_kafkas = self._connection.made_ms([self._brokers]) != [None]
        self._highest = max((number for number, _ in self._notifications()), default=-1)
        self._load_again_in(0)

    def _load_again_in(self, delay_s: float) -> None:
        self._load, self._load_at = self._batches_to_load(), time.monotonic() + delay_s

    def _batches_to_load(self) -> Iterator[None]:
        """Read every entity, a batch each step; those that are known of and not there any more come last."""
        unseen = self._nodes.paths
        waiting: list[str] = []
        for root in ROOTS:
            names = self._names_below(root)
            if names is None:
                unseen = {path for path in unseen if not path.startswith(f"{root}/")}
            waiting += [f"{root}/{name}" for name in names or ()]
        while waiting:
            batch: Sequence[str] = waiting[-_BATCH:]
            del waiting[-_BATCH:]
            unseen.difference_update(batch)
            waiting += self._pairs_below(self._read(batch))
            yield
        for batch in _batches(sorted(unseen)):
            self._read(batch)
            yield

    def _take_changes(self) -> None:
        """Read the entities that notifications since the last time are about, and purge old notifications."""
        self._was_told = False
        notifications = self._notifications()
        new = [name for number, name in notifications if self._highest is None or number > self._highest]
        for batch in _batches(new):
            self._read(self._paths_in(batch))
        self._highest = max((number for number, _ in notifications), default=self._highest)
        names = {self._change(name) for _, name in notifications}
        self._bad_changes = {path: why for path, why in self._bad_changes.items() if path in names}
        self._purge([name for _, name in notifications])

    def write(self, alterations: Sequence[Alteration], deadline: float) -> list[Exception | None]:
        """Write alterations, no two of which are of the same user; for each, None or what went wrong."""
        outcomes: list[Exception | None] = [SourceUnavailable("others keep changing it")] * len(alterations)
        waiting = dict(enumerate(alterations))
        for _ in range(_WRITE_ATTEMPTS):
            results = self._try_to_write(list(waiting.values()))
            for i, result in zip(list(waiting), results, strict=True):
                if not isinstance(result, _CONFLICTS):
                    outcomes[i] = result
                    del waiting[i]
            if not waiting or time.monotonic() > deadline:
                break
        return outcomes

    # -------------------------------------------------------------- reading

    def _read(self, paths: Sequence[str]) -> dict[str, Seen]:
        """Read entity nodes; those that are there."""
        found: dict[str, Seen] = {}
        for path, seen in zip(paths, self._connection.read(map(self._nodes.full, paths)), strict=True):
            if isinstance(seen, Exception):
                self._nodes.cannot_read(path, f"cannot be read: {_words_for(seen)}")
                continue
            self._nodes.take(path, seen and seen.data)
            if seen:
                found[path] = seen
        return found

    def _names_below(self, root: str) -> list[str] | None:
        """The names below a root, which is made if it is missing; None where what was below it has to stay in force.

        A root that is gone is not one that is empty: somebody has deleted it, or ZooKeeper has lost its data.
        """
        full = self._nodes.full(root)
        [names] = self._connection.children([full])
        self._roots.pop(full, None)
        if isinstance(names, Exception):
            self._roots[full] = f"cannot be read: {_words_for(names)}; the last good quotas below it stay in force"
            return None
        if names is None and self._nodes.holds_below(root):
            self._roots[full] = "is gone; the last good quotas below it stay in force until it is made again"
            return None
        if names is None:
            self._connection.make([full])
        return names or []

    def _pairs_below(self, seen: Mapping[str, Seen]) -> list[str]:
        """The paths of the pairs that these users have."""
        parents = [pairs_of(path) for path, node in seen.items() if node.children and parents_of(path) == ("users",)]
        found = self._connection.children(map(self._nodes.full, parents))
        return [
            f"{parent}/{name}"
            for parent, names in zip(parents, found, strict=True)
            if isinstance(names, list)
            for name in names
        ]

    def _notifications(self) -> list[tuple[int, str]]:
        """The numbers and names of all notifications, the oldest first; kazoo will tell of the next one."""
        changes = self._nodes.full(CHANGES)
        [names] = self._connection.children([changes], self._on_watch)
        if not isinstance(names, list):
            raise _Lost(f"{changes} {f'cannot be read: {_words_for(names)}' if names else 'is gone'}")
        return sorted((number, name) for name in names if (number := change_number(name)) is not None)

    def _on_watch(self, event: object) -> None:
        self._was_told = True
        self._wake()

    def _paths_in(self, names: Sequence[str]) -> list[str]:
        """The entities that notifications are about. After one that is nonsense all have to be read."""
        paths: set[str] = set()
        changes = [self._change(name) for name in names]
        for change, seen in zip(changes, self._connection.read(changes), strict=True):
            if not isinstance(seen, Seen):
                continue
            try:
                if path := notified_path(seen.data):
                    paths.add(path)
            except InvalidQuota as error:
                self._bad_changes[change] = f"{error}; all entities are read again"
                self._load_again_in(0)
        return sorted(paths)

    def _purge(self, names: Sequence[str]) -> None:
        """Delete notifications that are too old; of names in order, so that one that is not ends the search."""
        oldest_ms = self._epoch_ms() - _KEPT_MS
        for batch in (names[:1], *_batches(names[1:])):
            changes = [self._change(name) for name in batch]
            made_ms = self._connection.made_ms(changes)
            old = [change for change, made in zip(changes, made_ms, strict=True) if made is None or made < oldest_ms]
            self._connection.delete(old)
            if len(old) < len(batch):
                return

    def _change(self, name: str) -> str:
        return f"{self._nodes.full(CHANGES)}/{name}"

    # -------------------------------------------------------------- writing

    def _try_to_write(self, alterations: Sequence[Alteration]) -> list[Exception | None]:
        """One attempt at each. What somebody else was faster with has a conflict as its result."""
        plans = self._plans(alterations)
        to_commit = [plan for plan in plans if isinstance(plan, _Plan) and plan.steps]
        failures = iter(self._connection.commit([plan.steps for plan in to_commit]))
        results: list[Exception | None] = []
        for plan in plans:
            if isinstance(plan, Exception):
                results.append(plan)
                continue
            failure = next(failures) if plan.steps else None
            if failure is None:
                self._nodes.take(plan.path, plan.data)
            results.append(_told(failure, self._nodes.full(plan.path)))
        return results

    def _plans(self, alterations: Sequence[Alteration]) -> list["_Plan | Exception"]:
        """What to write for each alteration, by what is there now."""
        paths = [self._path_of(alteration.entity) for alteration in alterations]
        around = {
            near: None for path in paths if isinstance(path, str) for near in (*parents_of(path), path)
        }  # each once, in order
        seen = dict(zip(around, self._connection.read(map(self._nodes.full, around)), strict=True))
        return [
            path if isinstance(path, Exception) else self._plan(path, alteration, seen)
            for path, alteration in zip(paths, alterations, strict=True)
        ]

    def _path_of(self, entity: Entity) -> str | AlterationRefused:
        try:
            return self._nodes.path_of(entity)
        except InvalidQuota as error:
            return AlterationRefused(str(error))

    def _plan(
        self, path: str, alteration: Alteration, seen: Mapping[str, Seen | Exception | None]
    ) -> "_Plan | Exception":
        root, *_ = parents = parents_of(path)
        near: dict[str, Seen | None] = {}
        for each in (*parents, path):
            if isinstance(found := seen[each], Exception):
                return _told(found, self._nodes.full(each)) or found
            near[each] = found
        if near[root] is None:
            return SourceUnavailable(f"{self._nodes.full(root)} is gone; make it again first")
        if self._is_kafkas and any(key.shadow and limit is not None for key, limit in alteration.limits.items()):
            # Measured: it answers each with UNKNOWN_SERVER_ERROR, for it checks all keys of the node, not the new ones.
            return AlterationRefused(
                f"{self._nodes.full(path)} is a broker's too, which takes no changes of a node with shadow quotas"
            )
        node = near[path]
        data = self._nodes.changes_to(path, node.data if node else b"", alteration.limits)
        steps = steps_to(path, data, near)
        told = [Create(f"{CHANGES}/{CHANGE_PREFIX}", notification(path))] if steps else []
        return _Plan(path, data, [self._placed(step) for step in (*steps, *told)])

    def _placed(self, step: Step) -> Step:
        return replace(step, path=self._nodes.full(step.path))


class _Plan(NamedTuple):
    """The content that a node shall have, and what to do for that; the paths in the steps are full."""

    path: str
    data: bytes
    steps: Sequence[Step]


def _told(failure: Exception | None, path: str) -> Exception | None:
    """A failure as the caller is told it; a conflict as it is."""
    if failure is None or isinstance(failure, _CONFLICTS):
        return failure
    refused = isinstance(failure, (exceptions.NoAuthError, exceptions.InvalidACLError))
    return (AlterationRefused if refused else SourceUnavailable)(f"{path}: {_words_for(failure)}")


def _batches(items: Sequence[str]) -> Iterator[Sequence[str]]:
    return (items[i : i + _BATCH] for i in range(0, len(items), _BATCH))


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
        """Tell of none any more, and end the session. What is being written has 3 s."""
        self._changed = lambda: None
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)

    def alter(self, alterations: Sequence[Alteration]) -> Sequence[Exception | None]:
        """Write each, on the condition that nobody else changes its node meanwhile (then it is tried again).

        Takes 10 s at most. Without an answer by then it may have been written all the same, which the text says.
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
            return _all_unavailable(job, f"no answer within {_ALTER_S:g} s; {why}")

    # ----------------------------------------------------------- the thread

    def _run(self) -> None:
        while not self._stopping.is_set():
            connection, self._was_read = None, False
            try:
                connection = _Connection(self._settings, self._wake.set)
                self._follow(connection)
            except _Lost as lost:
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
        """Do what there is to be done until this source is stopped. Raises _Lost with the connection."""
        follower = _Follower(connection, self._settings, self._nodes, self._epoch_ms, self._wake.set)
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

    def _do_jobs(self, follower: _Follower) -> None:
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
        """Those that are still waited for; each belongs to whom it is given to."""
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
        return ",".join(self._settings.servers)

    def _note(self, trouble: str) -> None:
        """Tell why nothing can be read; what has been told since the last success is not told again."""
        if trouble not in self._outage:
            self._outage = [*self._outage[-_TOLD_TROUBLES:], trouble]
        self._publish()
        self._tried.set()

    def _take_over(self, follower: _Follower) -> None:
        """Publish what has been read: a first load when it is done, for each time costs as much as there are quotas."""
        self._other_problems = follower.problems
        if follower.is_loaded:
            self._was_read = True
            self._outage = []
            self._publish()
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
    """Close a connection. One whose server does not answer takes kazoo long, which holds up nobody."""
    closing = threading.Thread(target=connection.close, name="quotas-zookeeper-close", daemon=True)
    closing.start()
    closing.join(_CLOSE_S)


def _independent(alterations: Sequence[Alteration]) -> Iterator[Sequence[Alteration]]:
    """The alterations in their order, in groups that have no two of the same user, whose nodes depend on each other."""
    group: list[Alteration] = []
    taken: set[object] = set()
    for alteration in alterations:
        owner = alteration.entity.user or alteration.entity
        if owner in taken or len(group) == _BATCH:
            yield group
            group, taken = [], set()
        group.append(alteration)
        taken.add(owner)
    if group:
        yield group


def _all_unavailable(job: _Job, why: str) -> list[Exception | None]:
    return [SourceUnavailable(why) for _ in job.alterations]
