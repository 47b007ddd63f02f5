"""The fleet's transport in the simulation: what kazoo and the product's ZooKeeper transport do, on the model.

It asks for the same as proxy/server/fleet/zookeeper.py, in the same order, with the same pauses.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random
from typing import Any, Final, NamedTuple

from kafka_throttle.proxy.server.fleet.transport import RefusedRecord, TransportLost
from tests.fleet.ensemble import Connected, Ensemble, Link, Node, NoNode, SessionExpired
from tests.fleet.events import Events, Process

_RECONNECT_MS: Final = 200
_NEW_SESSION_S: Final = 1.0
_PAUSE_MS: Final = 100
_BEATS: Final = 6
"""How many times in a session time-out a member makes sure that it is heard."""
_LOOKED_AFTER_MS: Final = 200

_Answer = Callable[[object], None]


class Network:
    """The way between one instance and the ensemble, in both directions."""

    def __init__(self, events: Events, rng: Random, latency_ms: float, loss: float) -> None:
        self.up = Link(events, rng, latency_ms, loss)
        self.down = Link(events, rng, latency_ms, loss)

    def cut(self) -> None:
        """Nothing passes."""
        self.up.cut()
        self.down.cut()

    def mend(self) -> None:
        """What was sent meanwhile arrives, if its connection is still there."""
        self.up.mend()
        self.down.mend()


class _Lost:
    """In place of an answer: the connection ended before it."""


class _Connection:
    """One connection, from the first packet to its end at either side."""

    def __init__(self, server: int) -> None:
        self.server = server
        self.peer: Connected | None = None
        self.is_open = True
        self.waiting: deque[_Answer] = deque()
        self.sent_ms = 0
        self.ping_sent_ms: int | None = None


class _Client:
    """What kazoo does: one session over as many connections as it takes, pings, answers in order."""

    def __init__(self, events: Events, ensemble: Ensemble, network: Network, process: Process, rng: Random) -> None:
        self.is_lost = False
        self.on_event: Callable[[str], None] = lambda _path: None
        self._events = events
        self._ensemble = ensemble
        self._network = network
        self._process = process
        self._rng = rng
        self._session: int | None = None
        self._connection: _Connection | None = None
        self._is_closed = False
        self.down_since_ms = events.now_ms
        self._connect()

    @property
    def is_up(self) -> bool:
        """Whether there is a connection."""
        return self._connection is not None and self._connection.peer is not None

    def close(self) -> None:
        """End the session, if the server can be reached; otherwise it ends by time."""
        self._is_closed = True
        connection = self._connection
        if connection is not None and connection.peer is not None:
            self._network.up.send(self._ensemble.close_session, connection.peer.session)
            connection.is_open = False
            self._end(connection)

    def kill(self) -> None:
        """The process is gone; its kernel ends the connection."""
        self._is_closed = True
        if self._connection is not None:
            self._lose(self._connection)

    def ask(self, operation: Callable[[int, Connected, _Answer], None], answered: _Answer) -> None:
        """Send a request. The answer is a _Lost if the connection ends before it."""
        connection = self._connection
        if connection is None or connection.peer is None:
            answered(_Lost())
            return
        connection.waiting.append(answered)
        connection.sent_ms = self._events.now_ms

        def served(connection: _Connection, peer: Connected) -> None:
            operation(
                connection.server, peer, lambda result: self._send(connection, self._on_answer, connection, result)
            )

        self._network.up.send(self._serve, connection, served)

    # -------------------------------------------------------------- connection

    def _connect(self) -> None:
        if self._is_closed or self.is_lost or not self._process.is_alive:
            return
        connection = self._connection = _Connection(self._rng.randrange(self._ensemble.plan.servers))
        self._network.up.send(self._arrives, connection)
        give_up_ms = self._ensemble.plan.session_timeout_ms // self._ensemble.plan.servers
        self._events.after(give_up_ms, self._process.run, self._give_up, connection)

    def _give_up(self, connection: _Connection) -> None:
        if connection.is_open and connection.peer is None:
            self._lose(connection)

    def _arrives(self, connection: _Connection) -> None:
        """At the server."""
        if not connection.is_open:
            return
        if self._ensemble.is_down:
            self._send(connection, self._lose, connection)
            return
        connected = self._ensemble.connect(
            connection.server,
            self._session,
            lambda session: Connected(
                session,
                lambda path: self._send(connection, self._on_event, path),
                lambda: self._send(connection, self._lose, connection),
            ),
        )
        self._send(connection, self._on_connected, connection, connected)

    def _send(self, connection: _Connection, callback: Callable[..., None], *args: object) -> None:
        """From the server to the client."""
        self._network.down.send(self._process.run, self._receive, connection, callback, args)

    def _receive(self, connection: _Connection, callback: Callable[..., None], args: tuple[object, ...]) -> None:
        if connection.is_open:
            callback(*args)

    def _on_connected(self, connection: _Connection, peer: Connected | None) -> None:
        if peer is None:
            self.is_lost = True
            self._lose(connection)
            return
        self._session = peer.session.number
        connection.peer = peer
        connection.sent_ms = self._events.now_ms
        self._look_after(connection)
        self._on_event("")

    def _on_event(self, path: str) -> None:
        self.on_event(path)

    def _look_after(self, connection: _Connection) -> None:
        """Ping after a third of the time-out without a request; without an answer to it in another third, give up."""
        if not connection.is_open:
            return
        third_ms, now_ms = self._ensemble.plan.session_timeout_ms // 3, self._events.now_ms
        if connection.ping_sent_ms is not None and now_ms - connection.ping_sent_ms >= third_ms:
            self._lose(connection)
            return
        if now_ms - connection.sent_ms >= third_ms and connection.ping_sent_ms is None:
            connection.ping_sent_ms = connection.sent_ms = now_ms
            self._network.up.send(self._serve, connection, self._ping)
        self._events.after(_LOOKED_AFTER_MS, self._process.run, self._look_after, connection)

    def _ping(self, connection: _Connection, _peer: Connected) -> None:
        """At the server. It answers before what other requests wait for."""
        self._ensemble.ping(lambda _result: self._send(connection, self._on_ping, connection))

    def _on_ping(self, connection: _Connection) -> None:
        connection.ping_sent_ms = None

    def _lose(self, connection: _Connection) -> None:
        if connection.is_open:
            connection.is_open = False
            self._network.up.forget()
            self._network.down.forget()
            self._end(connection)

    def _end(self, connection: _Connection) -> None:
        self._connection = None
        if connection.peer is not None:
            self.down_since_ms = self._events.now_ms
            self._ensemble.disconnect(connection.server, connection.peer)
        waiting, connection.waiting = connection.waiting, deque()
        for answered in waiting:
            answered(_Lost())
        self._on_event("")
        delay_ms = self._rng.randrange(_RECONNECT_MS // 4, _RECONNECT_MS)
        self._events.after(delay_ms, self._process.run, self._connect)

    # ---------------------------------------------------------------- requests

    def _serve(self, connection: _Connection, operation: Callable[[_Connection, Connected], None]) -> None:
        """At the server."""
        peer = connection.peer
        if peer is not None and peer in self._ensemble.servers[connection.server].connections:
            self._ensemble.heard(peer.session)
            operation(connection, peer)

    def _on_answer(self, connection: _Connection, result: object) -> None:
        connection.ping_sent_ms = None
        if isinstance(result, SessionExpired):
            self.is_lost = True
        connection.waiting.popleft()(result)


class _Interrupted(TransportLost):
    """The connection ended before an answer came; the session may go on over another one."""


class _Job(NamedTuple):
    content: bytes
    losses: int
    done: "asyncio.Future[None]"


class _Snapshot(NamedTuple):
    """What the event loop of the instance knows."""

    view: Mapping[str, bytes] = {}
    heard_ms: int | None = None
    losses: int = 0
    problems: Mapping[str, str] = {}


class SimulatedTransport:
    """A FleetTransport: one ephemeral node of an ensemble, and the others read when a watch says that they changed."""

    def __init__(
        self,
        events: Events,
        ensemble: Ensemble,
        network: Network,
        process: Process,
        rng: Random,
        clock_of: Callable[[int], int],
    ) -> None:
        """`clock_of` tells what the instance's own clock showed at a time of the simulation."""
        self.cut_off_ms = ensemble.plan.session_timeout_ms * 11 // 12
        self.heard_at_ms = 0
        """When the last request that was answered was sent, as a time of the simulation."""
        self._events = events
        self._ensemble = ensemble
        self._make_client = lambda: _Client(events, ensemble, network, process, rng)
        self._clock_of = clock_of
        self._known = _Snapshot()
        self._name = ""
        self._notify: Callable[[], None] = lambda: None
        self._jobs: deque[_Job] = deque()
        self._losses = 0
        self._wake = asyncio.Event()
        self._read_at_ms = 0
        # Of the session that is there:
        self._client: _Client | None = None
        self._nodes: dict[str, Node] = {}
        self._changed: set[str] = set()
        self._is_joined = False
        self._written: int | None = None

    # --------------------------------------------------------- FleetTransport

    @property
    def heard_ms(self) -> int | None:
        """When the last request that was answered was sent, by the clock of the instance."""
        return self._known.heard_ms

    @property
    def losses(self) -> int:
        """How often the others have dropped this member."""
        return self._known.losses

    @property
    def problems(self) -> Mapping[str, str]:
        """What is wrong now."""
        return self._known.problems

    def take_refused(self) -> Sequence[RefusedRecord]:
        """None: nobody else writes here."""
        return ()

    def view(self) -> Mapping[str, bytes]:
        """All other members with what they have published last."""
        return self._known.view

    async def start(self, member_id: str, changed: Callable[[], None]) -> None:
        """Begin to connect."""
        self._name, self._notify = member_id, changed
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def publish(self, content: bytes) -> None:
        """Write the node of this member, or make it, and read what the others have written before."""
        job = _Job(content, self._known.losses, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self._wake.set()
        await job.done

    async def stop(self) -> None:
        """Leave the fleet."""
        self.leave()

    def leave(self) -> None:
        """End the session in order: the node goes."""
        if self._client is not None:
            self._client.close()

    def kill(self) -> None:
        """The process is gone: the node goes with the session, by time."""
        if self._client is not None:
            self._client.kill()

    # ----------------------------------------------------------------- session

    async def _run(self) -> None:
        while True:
            self._nodes, self._changed, self._is_joined, self._written = {}, set(), False, None
            self._client = client = self._make_client()
            client.on_event = self._on_event
            try:
                await self._serve(client)
            except TransportLost as lost:
                client.close()
                self._losses += self._is_joined
                self._show(str(lost))
                self._refuse(str(lost))
            await asyncio.sleep(_NEW_SESSION_S)

    def _on_event(self, path: str) -> None:
        self._changed.add(path)
        self._wake.set()

    async def _serve(self, client: _Client) -> None:
        """Do what there is to be done until the session ends. Raises TransportLost then."""
        rest_ms = 0
        while True:
            await self._rest(rest_ms)
            is_over = self._events.now_ms - client.down_since_ms > self._ensemble.plan.session_timeout_ms
            if client.is_lost or (not client.is_up and is_over):
                raise TransportLost("the session has ended")
            rest_ms = _PAUSE_MS
            try:
                if client.is_up:
                    rest_ms = await self._go_on(client)
                else:
                    self._show("no connection")
                    self._refuse("no connection")
            except _Interrupted as lost:
                self._show(str(lost))

    async def _go_on(self, client: _Client) -> int:
        """One step while there is a connection. Returns ms until the next one is due."""
        was_joined, beat_ms = self._is_joined, self._ensemble.plan.session_timeout_ms // _BEATS
        if self._jobs:
            await self._publish(client, self._jobs.popleft())
        if self._changed and self._events.now_ms >= self._read_at_ms:
            await self._read_changed(client)
            self._read_at_ms = self._events.now_ms + _PAUSE_MS
        if self._events.now_ms - self.heard_at_ms >= beat_ms:
            await self._all(client, [("exists", "members")])
        self._losses += was_joined and not self._is_joined
        self._show("")
        return 0 if self._jobs else _PAUSE_MS if self._changed else beat_ms

    async def _rest(self, for_ms: int) -> None:
        """Until something has happened, or for so long."""
        if for_ms and not self._wake.is_set():
            timer = asyncio.get_running_loop().call_later(for_ms / 1000, self._wake.set)
            await self._wake.wait()
            timer.cancel()
        self._wake.clear()

    async def _publish(self, client: _Client, job: _Job) -> None:
        if job.losses != self._losses:
            job.done.set_exception(TransportLost("the others have dropped this member"))
            return
        try:
            await self._write(client, job.content)
            await self._read_all(client)
        except TransportLost as lost:
            job.done.set_exception(TransportLost(str(lost)))
            raise
        self._show("")
        if self._is_joined:
            job.done.set_result(None)
        else:
            job.done.set_exception(TransportLost("somebody has deleted the node"))

    async def _write(self, client: _Client, content: bytes) -> None:
        self._written = None
        if self._is_joined:
            [result] = await self._all(client, [("set", self._name, content)])
            if isinstance(result, NoNode):
                self._is_joined = False
                return
        else:
            [_, result] = await self._all(client, [("delete", self._name), ("create", self._name, content)])
            self._is_joined = True
        assert isinstance(result, int)
        self._written = result

    async def _read_changed(self, client: _Client) -> None:
        names, self._changed = self._changed, set()
        if "" in names:
            await self._read_all(client)
        else:
            await self._get(client, names)

    async def _read_all(self, client: _Client) -> None:
        self._changed.clear()
        [names] = await self._all(client, [("children",)])
        assert isinstance(names, list)
        written = dict(zip(names, await self._all(client, [("exists", name) for name in names]), strict=True))
        there = {name for name in names if written[name] is not None}
        if self._written is not None and written.get(self._name) != self._written:
            self._is_joined = False
        there.discard(self._name)
        self._nodes = {name: node for name, node in self._nodes.items() if name in there}
        await self._get(
            client, [name for name in there if name not in self._nodes or self._nodes[name].written != written[name]]
        )

    async def _get(self, client: _Client, names: Iterable[str]) -> None:
        names = sorted(names)
        for name, node in zip(names, await self._all(client, [("get", name) for name in names]), strict=True):
            if isinstance(node, Node):
                self._nodes[name] = node
            else:
                self._nodes.pop(name, None)

    async def _all(self, client: _Client, requests: Sequence[tuple[Any, ...]]) -> list[object]:
        """The answer to each request. Raises TransportLost if one has none."""
        if not requests:
            return []
        loop, sent_ms = asyncio.get_running_loop(), self._events.now_ms
        done: asyncio.Future[None] = loop.create_future()
        results: list[object] = []

        def answered(result: object) -> None:
            results.append(result)
            if len(results) == len(requests) and not done.done():
                done.set_result(None)

        for name, *args in requests:
            operation = getattr(self._ensemble, name)
            client.ask(lambda server, peer, answer, do=operation, of=args: do(server, peer, *of, answer), answered)
        timer = loop.call_later(self._ensemble.plan.session_timeout_ms * 2 / 3000, _settle, done)
        await done
        timer.cancel()
        if any(isinstance(result, _Lost) for result in results):
            raise _Interrupted("the connection was lost")
        if len(results) < len(requests) or any(isinstance(result, SessionExpired) for result in results):
            raise TransportLost("no answer")
        self.heard_at_ms = sent_ms
        return results

    def _show(self, trouble: str) -> None:
        """Pass the event loop what is known."""
        before = self._known
        if trouble:
            self._known = before._replace(problems={"": trouble}, losses=self._losses)
        else:
            view = {name: node.content for name, node in self._nodes.items()}
            self._known = _Snapshot(view, self._clock_of(self.heard_at_ms), self._losses)
        if self._known._replace(heard_ms=before.heard_ms) != before:
            self._notify()

    def _refuse(self, why: str) -> None:
        while self._jobs:
            self._jobs.popleft().done.set_exception(TransportLost(why))


def _settle(done: "asyncio.Future[None]") -> None:
    if not done.done():
        done.set_result(None)
