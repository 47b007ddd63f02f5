"""Claims in ZooKeeper: an ephemeral znode for each member, below `<path>/members`.

ZooKeeper orders all writes, and who has the response to a write sees everything that was written before it.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from kazoo import exceptions
from kazoo.protocol.states import EventType, KazooState, WatchedEvent, ZnodeStat

from kafka_throttle.common.login_secrets import SecretUnusable
from kafka_throttle.common.zookeeper import LOST, Ensemble, LastKazooError, acl_of, close, new_client, words_for
from kafka_throttle.proxy.server.fleet.member_id import ended_before
from kafka_throttle.proxy.server.fleet.transport import RefusedRecord, TransportLost
from kafka_throttle.quotas.shares.document import MAX_BYTES

_RETRY_S: Final = 0.2
_NO_TROUBLE_S: Final = 1.0
_NEW_SESSION_S: Final = 1.0
_PAUSE_S: Final = 0.1
"""Between two reads of what has changed: in a large fleet some member writes all the time."""
_BEATS: Final = 6
"""How many times in a session time-out this member makes sure, at least, that it is heard."""
_CUT_OFF_12THS: Final = 11
"""After how much of the session time-out without a response a member is cut off. After all of it its znode is gone."""
_UNREADABLE: Final = -1
_STOP_S: Final = 3.0


class _Interrupted(TransportLost):
    """The connection was lost. The session may go on with another one."""


class _Seen(NamedTuple):
    """What was read of a znode: the transaction that it is of, its content, and why there is none."""

    zxid: int
    content: bytes
    problem: str = ""


class _Snapshot(NamedTuple):
    """What the event loop knows."""

    view: Mapping[str, bytes] = {}
    problems: Mapping[str, str] = {}
    losses: int = 0
    heard_ms: int | None = None


class _Session:
    """One session, over as many connections as it takes. Belongs to one thread; kazoo's threads only wake it.

    Requests raise TransportLost if there is no response, and what kazoo raises if it is an error.
    """

    def __init__(
        self, ensemble: Ensemble, members: str, name: str, wake: Callable[[], None], now_ms: Callable[[], int]
    ) -> None:
        self.heard_ms: int | None = None
        self.seen: dict[str, _Seen] = {}
        """All other members."""
        self.is_joined = False
        """Whether this member has a znode, with what it has written."""
        self.changed: deque[str] = deque()
        """Members whose znodes have changed since they were read; "" stands for all members."""
        self._ensemble = ensemble
        self._members = members
        self._name = name
        self._written: ZnodeStat | None = None
        """What the last write has made of the znode; None if it is not known."""
        self._wake = wake
        self._now_ms = now_ms
        self._words = LastKazooError()
        self._state = KazooState.SUSPENDED
        self._down_since = time.monotonic()
        try:
            self._client = new_client(ensemble, self._words, _RETRY_S)
        except SecretUnusable as error:
            raise TransportLost(str(error)) from None
        self._client.add_listener(self._on_state)
        self._client.start_async()

    def close(self) -> None:
        """End the session, with the znode of this member. May block for seconds."""
        close(self._client)

    # ---------------------------------------------------- what kazoo's threads say

    def _on_state(self, state: KazooState) -> None:
        if state == KazooState.CONNECTED:
            self._words.text = ""
            self.changed.append("")  # watches end with the connection
        elif self._state == KazooState.CONNECTED:
            self._down_since = time.monotonic()
        self._state = state
        self._wake()

    def _on_watch(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:
            self.changed.append("" if event.path == self._members else event.path.rpartition("/")[2])
            self._wake()

    # ------------------------------------------------------------------ the thread

    @property
    def is_up(self) -> bool:
        """Whether there is a connection."""
        return bool(self._state == KazooState.CONNECTED)

    @property
    def trouble(self) -> str:
        """Why there is no connection, as far as it is known; "" in the first second."""
        if self._words.text or time.monotonic() - self._down_since < _NO_TROUBLE_S:
            return self._words.text
        return f"no connection to {','.join(self._ensemble.servers)}"

    def check(self) -> None:
        """Raise TransportLost if the session has ended, its server must have ended it, or it is no more ours.

        kazoo tries for ever to go on with a session of which a server that has lost its data knows nothing.
        """
        is_over = time.monotonic() - self._down_since > self._ensemble.session_timeout_ms / 1000
        if self._state == KazooState.LOST or (not self.is_up and is_over):
            raise TransportLost(self.trouble)
        if self._client.is_another:
            raise TransportLost("the password has changed")

    def make_parents(self) -> None:
        """Make the znodes above those of the members."""
        steps = self._members.split("/")
        for path in ["/".join(steps[:count]) for count in range(2, len(steps) + 1)]:
            with suppress(exceptions.NodeExistsError):
                self._one(self._client.create_async(path, b"", acl=acl_of(self._ensemble)))

    def write(self, content: bytes) -> None:
        """Make the znode of this member, or replace its content.

        Before it is made, those that an earlier session has left, or a process of its name that has ended on this
        machine, are deleted: nobody has to wait until their sessions are over.
        """
        written, self._written = self._written, None
        if self.is_joined:
            version = -1 if written is None else written.version
            try:
                self._written = self._one(self._client.set_async(self._path(self._name), content, version))
            except (exceptions.NoNodeError, exceptions.BadVersionError):
                self.is_joined = False  # somebody has deleted or overwritten what this member claims
        else:
            self.leave()
            for ended in ended_before(self._name, self._one(self._client.get_children_async(self._members))):
                self._delete(ended)
            acl = acl_of(self._ensemble)
            self._one(self._client.create_async(self._path(self._name), content, acl=acl, ephemeral=True))
            self.is_joined = True

    def leave(self) -> None:
        """Delete the znode of this member, as far as it is there."""
        self._delete(self._name)

    def _delete(self, name: str) -> None:
        with suppress(exceptions.NoNodeError):
            self._one(self._client.delete_async(self._path(name)))

    def beat(self) -> None:
        """Make sure that the server hears of this session."""
        self._one(self._client.exists_async(self._members))

    def read_all(self) -> None:
        """Read which members there are, and those whose content is another than the one read last."""
        self.changed.clear()
        names = self._one(self._client.get_children_async(self._members, watch=self._on_watch))
        stats = self._all([self._client.exists_async(self._path(name), watch=self._watch_of(name)) for name in names])
        there = {name: stat for name, stat in zip(names, stats, strict=True) if _is_of_a_session(stat)}
        self._check_own(there.pop(self._name, None))
        self.seen = {name: seen for name, seen in self.seen.items() if name in there}
        self.read(
            [name for name, stat in there.items() if name not in self.seen or self.seen[name].zxid != _zxid(stat)]
        )

    def _check_own(self, found: ZnodeStat | Exception | None) -> None:
        """Note whether the znode of this member is still the one that it has made."""
        if self._written is None and isinstance(found, ZnodeStat):
            self._written = found
        elif found is None or _zxid(found) != _zxid(self._written):
            self.is_joined = False

    def read_changed(self) -> None:
        """Read what has changed since it was read."""
        names: set[str] = set()
        while self.changed:
            names.add(self.changed.popleft())
        if "" in names:
            self.read_all()
        else:
            self.read(names)

    def read(self, names: Iterable[str]) -> None:
        """Read the content of these members."""
        names = list(names)
        found = self._all([self._client.get_async(self._path(name), watch=self._on_watch) for name in names])
        for name, result in zip(names, found, strict=True):
            if isinstance(result, exceptions.NoNodeError):
                self.seen.pop(name, None)
            elif isinstance(result, Exception):
                self.seen[name] = _Seen(_UNREADABLE, b"", f"cannot be read: {words_for(result)}")
            else:
                content, stat = result
                if _is_of_a_session(stat):
                    self.seen[name] = _Seen(stat.mzxid, content or b"")
                else:
                    self.seen.pop(name, None)

    def _path(self, name: str) -> str:
        return f"{self._members}/{name}"

    def _watch_of(self, name: str) -> Callable[[WatchedEvent], None] | None:
        return None if name == self._name else self._on_watch

    def _one(self, pending: Any) -> Any:
        """The result of a request. Raises what kazoo does."""
        [result] = self._all([pending])
        if isinstance(result, Exception):
            raise result
        return result

    def _all(self, pending: Sequence[Any]) -> list[Any]:
        """The result of each request, or the error in its place."""
        sent_ms, wait_s = self._now_ms(), self._ensemble.session_timeout_ms * 2 / 3000
        results: list[Any] = []
        if pending:
            pending[-1].wait(wait_s)  # responses come in order, so that one wait does for all
        for request in pending:
            try:
                results.append(request.get(timeout=0))
            except exceptions.ConnectionLoss:
                raise _Interrupted(self._words.text or "the connection was lost") from None
            except LOST as error:
                raise TransportLost(self._words.text or words_for(error, wait_s)) from None
            except exceptions.KazooException as error:
                results.append(error)
        if pending:
            self.heard_ms = sent_ms
        return results


def _is_of_a_session(stat: ZnodeStat | Exception | None) -> bool:
    """Whether a znode goes with a session, as the claims of all instances do; also if it may not be looked at."""
    return bool(stat.ephemeralOwner) if isinstance(stat, ZnodeStat) else stat is not None


def _zxid(stat: ZnodeStat | Exception | None) -> int:
    """The transaction that a znode is of; _UNREADABLE if it may not be looked at, which a server may refuse, too."""
    return int(stat.mzxid) if isinstance(stat, ZnodeStat) else _UNREADABLE


class _Job(NamedTuple):
    """A document to be published, of a member that was dropped `losses` times."""

    content: bytes
    losses: int
    done: "asyncio.Future[None]"


class ZooKeeperTransport:
    """A FleetTransport. One thread asks ZooKeeper; the event loop gets snapshots of what it knows.

    The znode goes with the session: when a server has not heard of this process for the session time-out.
    """

    def __init__(self, ensemble: Ensemble, path: str, now_ms: Callable[[], int]) -> None:
        self.cut_off_ms = ensemble.session_timeout_ms * _CUT_OFF_12THS // 12
        self._ensemble = ensemble
        self._members = f"{path}/members"
        self._now_ms = now_ms
        self._beat_s = ensemble.session_timeout_ms / 1000 / _BEATS
        self._known = self._shown = _Snapshot()
        """What the event loop knows, and what it will know when all that was passed to it has come."""
        self._read_at = 0.0
        self._name = ""
        self._changed: Callable[[], None] = lambda: None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._jobs: deque[_Job] = deque()
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="fleet-zookeeper", daemon=True)
        self._losses = 0

    @property
    def heard_ms(self) -> int | None:
        """When the last request that was answered was sent."""
        return self._known.heard_ms

    @property
    def losses(self) -> int:
        """How often the others have dropped this member."""
        return self._known.losses

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong now: at "" with the connection, else with the znode of a member."""
        return self._known.problems

    def take_refused(self) -> Sequence[RefusedRecord]:
        """None: each znode is of one member, whose problem it is."""
        return ()

    def view(self) -> Mapping[str, bytes]:
        """All other members with what they have published last."""
        return self._known.view

    async def start(self, member_id: str, changed: Callable[[], None]) -> None:
        """Begin to connect."""
        self._name, self._changed, self._loop = member_id, changed, asyncio.get_running_loop()
        self._thread.start()

    async def publish(self, content: bytes) -> None:
        """Write the znode of this member, or make it, and read what the others have written before."""
        if len(content) > MAX_BYTES:
            raise TransportLost(f"expected at most {MAX_BYTES} bytes of claims, got {len(content)}")
        if self._stopping.is_set():
            raise TransportLost("it has been stopped")
        job = _Job(content, self._known.losses, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._wake.set()
        await job.done

    async def stop(self) -> None:
        """Delete the znode of this member, and end the session. Waits 3 s at most."""
        self._changed = lambda: None
        self._stopping.set()
        self._wake.set()
        if self._thread.ident is not None:
            await asyncio.to_thread(self._thread.join, _STOP_S)

    # ------------------------------------------------------------------ the thread

    def _run(self) -> None:
        trouble = ""
        while not self._stopping.is_set():
            session: _Session | None = None
            try:
                session = _Session(self._ensemble, self._members, self._name, self._wake.set, self._now_ms)
                self._serve(session)
                trouble = ""
            except TransportLost as lost:
                trouble = str(lost)
            except exceptions.KazooException as error:
                trouble = f"{self._members}: {words_for(error)}"
            except Exception as error:
                # A fault of ours or kazoo's, or of a machine without a thread to spare, must not end the membership.
                trouble = f"{type(error).__name__}: {error}"
            if session is not None:
                self._losses += session.is_joined
                _close_aside(session)
            self._show(session, trouble)
            self._refuse(trouble)
            self._stopping.wait(_NEW_SESSION_S)
        self._refuse("it has been stopped")

    def _serve(self, session: _Session) -> None:
        """Do what there is to be done until the session ends. Raises TransportLost then."""
        rest_s = 0.0
        while not self._stopping.is_set():
            self._wake.wait(rest_s)
            self._wake.clear()
            session.check()
            try:
                rest_s = self._go_on(session) if session.is_up else self._await(session)
            except _Interrupted as lost:
                self._show(session, str(lost))
                rest_s = _PAUSE_S
        if session.is_up:
            session.leave()

    def _await(self, session: _Session) -> float:
        if trouble := session.trouble:
            self._show(session, trouble)
        self._refuse(trouble or "there is no connection yet")
        return _PAUSE_S

    def _go_on(self, session: _Session) -> float:
        """One step while there is a connection. Returns s until the next one is due."""
        was_joined = session.is_joined
        if session.heard_ms is None:
            session.make_parents()
        if self._jobs:
            self._publish(session, self._jobs.popleft())
        if session.changed and time.monotonic() >= self._read_at:
            session.read_changed()
            self._read_at = time.monotonic() + _PAUSE_S
        if session.heard_ms is None or self._now_ms() - session.heard_ms >= self._beat_s * 1000:
            session.beat()
        self._losses += was_joined and not session.is_joined
        self._show(session)
        return 0.0 if self._jobs else _PAUSE_S if session.changed else self._beat_s

    def _publish(self, session: _Session, job: _Job) -> None:
        if job.losses != self._losses:
            self._end(job, TransportLost("the others have dropped this member"))
            return
        try:
            session.write(job.content)
            session.read_all()
        except Exception as error:
            self._end(job, TransportLost(str(error) if isinstance(error, TransportLost) else words_for(error)))
            raise
        self._show(session)
        self._end(job, None if session.is_joined else TransportLost("somebody has deleted or overwritten its znode"))

    # -------------------------------------------------------------- the event loop

    def _show(self, session: _Session | None, trouble: str = "") -> None:
        """Pass the event loop what is known."""
        if trouble or session is None:
            known = self._shown._replace(problems={**self._shown.problems, "": trouble}, losses=self._losses)
        else:
            view = {name: seen.content for name, seen in session.seen.items()}
            problems = {name: seen.problem for name, seen in session.seen.items() if seen.problem}
            known = _Snapshot(view, problems, self._losses, session.heard_ms)
        if known != self._shown:
            self._shown = known
            self._call_soon(self._take, known)

    def _take(self, known: _Snapshot) -> None:
        before, self._known = self._known, known
        if known._replace(heard_ms=before.heard_ms) != before:
            self._changed()

    def _refuse(self, why: str) -> None:
        while self._jobs:
            self._end(self._jobs.popleft(), TransportLost(why))

    def _end(self, job: _Job, error: TransportLost | None) -> None:
        self._call_soon(_settle, job.done, error)

    def _call_soon(self, callback: Callable[..., None], *args: Any) -> None:
        assert self._loop is not None
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(callback, *args)


def _close_aside(session: _Session) -> None:
    """Close a session, which may block, in a thread of its own if there can be one."""
    try:
        threading.Thread(target=session.close, name="fleet-zookeeper-close", daemon=True).start()
    except RuntimeError:
        session.close()


def _settle(done: "asyncio.Future[None]", error: TransportLost | None) -> None:
    if not done.done():
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)
