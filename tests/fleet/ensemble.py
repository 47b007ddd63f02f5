"""A model of a ZooKeeper ensemble: one order of writes, servers that apply it with a lag, sessions, watches.

What it has in common with ZooKeeper: a server answers a write after it has applied everything ordered before it; a
server sends the event of a watch before anything that shows the change; sessions end on the ensemble's own clock, at
a tick after their time-out at the earliest; a new leader gives every session its whole time-out again.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final, NamedTuple

from tests.fleet.events import Events

PACKET_BYTES: Final = 60
"""Headers, path and stat of a packet, about."""

JUTE_MAX_BUFFER: Final = 0xFFFFF
"""ZooKeeper's default limit of one packet."""


@dataclass(frozen=True)
class EnsemblePlan:
    """How an ensemble behaves. A write is ordered `commit_ms` after it has arrived, or up to twice that."""

    servers: int = 3
    commit_ms: int = 4
    lag_ms: int = 3
    tick_ms: int = 2000
    session_timeout_ms: int = 6000


@dataclass
class Traffic:
    """What the ensemble has done: by kind, and bytes in and out by second."""

    operations: Counter[str] = field(default_factory=Counter)
    bytes_in: Counter[int] = field(default_factory=Counter)
    bytes_out: Counter[int] = field(default_factory=Counter)
    writes: Counter[int] = field(default_factory=Counter)
    refused_as_too_large: int = 0
    largest_bytes: int = 0


class SessionExpired(Exception):
    """The server does not know the session any more."""


class NoNode(Exception):
    """There is no such node."""


class Link:
    """One direction of a TCP connection: in order, with a delay; a lost segment delays what follows.

    While the link is cut nothing arrives; TCP sends it again when the link is whole.
    """

    def __init__(self, events: Events, rng: Random, latency_ms: float, loss: float) -> None:
        self._events = events
        self._rng = rng
        self.latency_ms = latency_ms
        self.loss = loss
        self.is_cut = False
        self._free_at_ms = 0
        self._held: list[tuple[Callable[..., None], tuple[object, ...]]] = []

    def send(self, deliver: Callable[..., None], *args: object) -> None:
        if self.is_cut:
            self._held.append((deliver, args))
            return
        delay_ms, timeout_ms = self.latency_ms * (0.5 + self._rng.random()), 200
        while self.loss and self._rng.random() < self.loss and timeout_ms < 10_000:
            delay_ms += timeout_ms
            timeout_ms *= 2
        at_ms = max(self._events.now_ms + round(delay_ms), self._free_at_ms)
        self._free_at_ms = at_ms
        self._events.at(at_ms, self._arrive, deliver, args)

    def _arrive(self, deliver: Callable[..., None], args: tuple[object, ...]) -> None:
        """What was on its way when the link was cut has not arrived."""
        if self.is_cut:
            self._held.append((deliver, args))
        else:
            deliver(*args)

    def cut(self) -> None:
        self.is_cut = True

    def mend(self) -> None:
        if self.is_cut:
            self.is_cut = False
            held, self._held = self._held, []
            for deliver, args in held:
                self.send(deliver, *args)

    def forget(self) -> None:
        """The connection is over: nobody sends again what is lost."""
        self._held.clear()


@dataclass
class Session:
    number: int
    timeout_ms: int
    heard_ms: int
    is_open: bool = True
    ephemerals: set[str] = field(default_factory=set)


class Node(NamedTuple):
    """A node, and the transaction that it was written by."""

    written: int
    content: bytes


@dataclass(frozen=True)
class _Change:
    """One transaction: a node gets content, or goes (None)."""

    path: str
    content: bytes | None


Answer = Callable[[object], None]
"""Called at the server with the result of an operation, or with the exception; it sends the result to the client."""


class Connected:
    """A connection as its server sees it. `send` carries the path of a watch that fired to the client; "": children."""

    def __init__(self, session: Session, send: Callable[[str], None], lost: Callable[[], None]) -> None:
        self.session = session
        self.send = send
        self.lost = lost


class Server:
    """One server: its tree, and the watches of the clients that are connected to it."""

    def __init__(self) -> None:
        self.tree: dict[str, Node] = {}
        self.applied = 0
        self.data_watches: dict[str, set[Connected]] = {}
        self.child_watches: set[Connected] = set()
        self.waiting: list[tuple[int, Connected, Callable[[], None]]] = []
        self.connections: dict[Connected, None] = {}


class Ensemble:
    """The servers behind one connect string; nodes are the children of one path."""

    def __init__(self, events: Events, plan: EnsemblePlan, rng: Random) -> None:
        self._events = events
        self.plan = plan
        self._rng = rng
        self.servers = [Server() for _ in range(plan.servers)]
        self.traffic = Traffic()
        self.is_down = False
        self.on_change: Callable[[str, bytes | None], None] | None = None
        """Called with each change when it is ordered: path and content; None: deleted."""
        self._sessions: dict[int, Session] = {}
        self._log: list[_Change] = []
        self._ordered: set[str] = set()
        """The nodes that exist at the leader."""
        self._numbers = 0
        self._commit_at_ms = 0
        self._apply_at_ms = [0] * plan.servers
        self._events.after(plan.tick_ms, self._tick)

    # ---------------------------------------------------------------- sessions

    def connect(self, server: int, number: int | None, connected: Callable[[Session], Connected]) -> Connected | None:
        """Accept a client: its session goes on, or a new one begins. None: the session has expired."""
        if number is None:
            self._numbers += 1
            session = Session(self._numbers, self.plan.session_timeout_ms, self._events.now_ms)
            self._sessions[session.number] = session
        elif number in self._sessions:
            session = self._sessions[number]
            session.heard_ms = self._events.now_ms
        else:
            return None
        client = connected(session)
        self.servers[server].connections[client] = None
        return client

    def has_node(self, path: str) -> bool:
        """Whether the leader has ordered a node there that is not deleted."""
        return path in self._ordered

    def disconnect(self, server: int, client: Connected) -> None:
        here = self.servers[server]
        here.connections.pop(client, None)
        here.child_watches.discard(client)
        for watchers in here.data_watches.values():
            watchers.discard(client)

    def heard(self, session: Session) -> None:
        session.heard_ms = self._events.now_ms

    def close_session(self, session: Session) -> None:
        """The client leaves: its ephemeral nodes go."""
        if session.is_open:
            session.is_open = False
            del self._sessions[session.number]
            for path in sorted(session.ephemerals):
                self._order(_Change(path, None))

    def _tick(self) -> None:
        """Sessions end at ticks only, as ZooKeeper's do."""
        self._events.after(self.plan.tick_ms, self._tick)
        if self.is_down:
            return
        for session in list(self._sessions.values()):
            if self._events.now_ms - session.heard_ms > session.timeout_ms:
                self.close_session(session)
                for server, here in enumerate(self.servers):
                    for client in [client for client in here.connections if client.session is session]:
                        self.disconnect(server, client)
                        client.lost()

    def go_down(self, for_ms: int) -> None:
        """No leader for a while: nobody is served. The next leader gives all sessions their whole time-out."""
        self.is_down = True
        for server, here in enumerate(self.servers):
            for client in list(here.connections):
                self.disconnect(server, client)
                client.lost()
            here.waiting.clear()
        self._events.after(for_ms, self._come_up)

    def _come_up(self) -> None:
        self.is_down = False
        for session in self._sessions.values():
            session.heard_ms = self._events.now_ms

    # -------------------------------------------------------------- operations

    def create(self, server: int, client: Connected, path: str, content: bytes, answer: Answer) -> None:
        """Make an ephemeral node of this session in place of whatever is there."""
        self._write(server, client, path, content, True, answer)

    def set(self, server: int, client: Connected, path: str, content: bytes, answer: Answer) -> None:
        """Replace the content of a node. The answer is NoNode if it is gone."""
        self._write(server, client, path, content, False, answer)

    def _write(self, server: int, client: Connected, path: str, content: bytes, is_new: bool, answer: Answer) -> None:
        self._count("write", PACKET_BYTES + len(content), PACKET_BYTES)
        self.traffic.writes[self._events.now_ms // 1000] += 1
        self.traffic.largest_bytes = max(self.traffic.largest_bytes, len(content))
        if len(content) + PACKET_BYTES > JUTE_MAX_BUFFER:
            self.traffic.refused_as_too_large += 1
            self.disconnect(server, client)
            client.lost()
            return
        delay_ms = round(self.plan.commit_ms * (1 + self._rng.random()))
        self._commit_at_ms = max(self._commit_at_ms, self._events.now_ms + delay_ms)
        self._events.at(self._commit_at_ms, self._commit, server, client, _Change(path, content), is_new, answer)

    def _commit(self, server: int, client: Connected, change: _Change, is_new: bool, answer: Answer) -> None:
        if self.is_down:
            return
        error = None
        if not client.session.is_open:
            error = SessionExpired()
        elif not is_new and change.path not in self._ordered:
            error = NoNode()
        if error is not None:
            answer(error)
            return
        if is_new:
            for session in self._sessions.values():
                session.ephemerals.discard(change.path)
            client.session.ephemerals.add(change.path)
        number = self._order(change)
        self.servers[server].waiting.append((number, client, lambda: answer(number)))

    def delete(self, server: int, client: Connected, path: str, answer: Answer) -> None:
        """Delete a node, whoever has made it, if there is one."""
        self._count("delete", PACKET_BYTES, PACKET_BYTES)
        if path in self._ordered:
            for session in self._sessions.values():
                session.ephemerals.discard(path)
            number = self._order(_Change(path, None))
            self.servers[server].waiting.append((number, client, lambda: answer(None)))
        else:
            answer(None)

    def get(self, server: int, client: Connected, path: str, answer: Answer) -> None:
        """A node as this server sees it, None if there is none; and a watch on it."""
        node = self.servers[server].tree.get(path)
        self._watch(server, client, path, node)
        self._count("get", PACKET_BYTES, PACKET_BYTES + (len(node.content) if node else 0))
        answer(node)

    def exists(self, server: int, client: Connected, path: str, answer: Answer) -> None:
        """By which transaction a node was written as this server sees it, None if there is none; and a watch on it."""
        node = self.servers[server].tree.get(path)
        self._watch(server, client, path, node)
        self._count("exists", PACKET_BYTES, PACKET_BYTES + 80)
        answer(None if node is None else node.written)

    def _watch(self, server: int, client: Connected, path: str, node: Node | None) -> None:
        if node is not None:
            self.servers[server].data_watches.setdefault(path, set()).add(client)

    def children(self, server: int, client: Connected, answer: Answer) -> None:
        """The paths of all nodes as this server sees them, and a watch on them."""
        here = self.servers[server]
        here.child_watches.add(client)
        paths = sorted(here.tree)
        self._count("children", PACKET_BYTES, PACKET_BYTES + sum(map(len, paths)))
        answer(paths)

    def ping(self, answer: Answer) -> None:
        """The session is alive."""
        self._count("ping", 20, 20)
        answer(None)

    # ------------------------------------------------------------------- order

    def _order(self, change: _Change) -> int:
        """Append to the one order; each server applies it after its own lag. Returns the position."""
        self._log.append(change)
        if self.on_change is not None:
            self.on_change(change.path, change.content)
        if change.content is None:
            self._ordered.discard(change.path)
        else:
            self._ordered.add(change.path)
        number = len(self._log)
        for index, here in enumerate(self.servers):
            lag_ms = round(self.plan.lag_ms * self._rng.random())
            self._apply_at_ms[index] = max(self._apply_at_ms[index], self._events.now_ms + lag_ms)
            self._events.at(self._apply_at_ms[index], self._apply, here, number)
        return number

    def _apply(self, here: Server, number: int) -> None:
        change = self._log[number - 1]
        is_new = change.path not in here.tree
        if change.content is None:
            here.tree.pop(change.path, None)
        else:
            here.tree[change.path] = Node(number, change.content)
        here.applied = number
        if is_new or change.content is None:
            watchers, here.child_watches = here.child_watches, set()
            self._fire(watchers, "")
        self._fire(here.data_watches.pop(change.path, ()), change.path)
        due = [waiting for waiting in here.waiting if waiting[0] <= number]
        here.waiting = [waiting for waiting in here.waiting if waiting[0] > number]
        for _, client, answer in due:
            if client in here.connections:
                answer()

    def _fire(self, watchers: Iterable[Connected], what: str) -> None:
        for client in sorted(watchers, key=lambda client: client.session.number):
            self._count("event", 0, PACKET_BYTES)
            client.send(what)

    def _count(self, kind: str, bytes_in: int, bytes_out: int) -> None:
        second = self._events.now_ms // 1000
        self.traffic.operations[kind] += 1
        self.traffic.bytes_in[second] += bytes_in
        self.traffic.bytes_out[second] += bytes_out
