"""Carries the claims of the workers of one supervisor to each other, through the supervisor.

The supervisor has one order of all documents, and one connection to each worker, which keeps that order. It knows at
once which workers there are, as their ends close their connections.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from kafka_throttle.common.duties import Duty
from kafka_throttle.proxy.server.fleet.transport import RefusedRecord, TransportLost
from kafka_throttle.proxy.server.workers.link import Link, LinkLost

HEARD_MS: Final = 1_000
"""How often a worker asks the supervisor whether it is heard."""

_CUT_OFF_MS: Final = 5_000
"""The supervisor drops no worker that lives, so this is only how long one waits for a supervisor that is stopped."""


class WorkerTransport:
    """The end of a worker, for one virtual cluster. See FleetTransport."""

    cut_off_ms = _CUT_OFF_MS
    losses = 0

    def __init__(
        self, virtual_cluster: str, link: Link, others: Mapping[str, bytes], now_ms: Callable[[], int]
    ) -> None:
        self.heard_ms: int | None = None
        self._virtual_cluster = virtual_cluster
        self._link = link
        self._view = dict(others)
        self._now_ms = now_ms
        self._member_id = ""
        self._changed: Callable[[], None] = lambda: None
        self._duty = Duty("asking the supervisor", f"virtual cluster {virtual_cluster}")
        self._asking: asyncio.Task[None] | None = None

    @property
    def problems(self) -> Mapping[str, str]:
        """See FleetTransport."""
        return {"": "the supervisor has ended"} if self._link.is_lost else {}

    def take_refused(self) -> Sequence[RefusedRecord]:
        """None: only workers write here."""
        return ()

    def take(self, member_id: str, content: bytes | None) -> None:
        """What another worker has published; None: it has left."""
        view = dict(self._view)
        if content is None:
            view.pop(member_id, None)
        else:
            view[member_id] = content
        self._view = view
        self._changed()

    async def start(self, member_id: str, changed: Callable[[], None]) -> None:
        """See FleetTransport."""
        self._member_id, self._changed = member_id, changed
        self._asking = asyncio.get_running_loop().create_task(self._duty.keep(self._keep_asking))

    async def _keep_asking(self) -> None:
        while True:
            with suppress(TransportLost):
                await self._ask("hear")
            await asyncio.sleep(HEARD_MS / 1000)

    async def _ask(self, what: str, *args: object) -> None:
        sent_ms = self._now_ms()
        try:
            await self._link.ask(what, *args)
        except LinkLost:
            raise TransportLost("the supervisor has ended") from None
        self.heard_ms = sent_ms

    def view(self) -> Mapping[str, bytes]:
        """See FleetTransport."""
        return self._view

    async def publish(self, content: bytes) -> None:
        """See FleetTransport. What was ordered before was sent to this worker before the answer."""
        await self._ask("publish", self._virtual_cluster, self._member_id, content)

    async def stop(self) -> None:
        """See FleetTransport."""
        if self._asking is not None:
            self._asking.cancel()
        with suppress(TransportLost):
            await self._ask("leave", self._virtual_cluster, self._member_id)


class Claims:
    """What the workers have published, at the supervisor. `tell` sends a message to the worker of a number.

    `workers` are the numbers of those that there are.
    """

    def __init__(self, workers: Callable[[], Iterable[int]], tell: Callable[..., None]) -> None:
        self._workers = workers
        self._tell = tell
        self._published: dict[str, dict[str, bytes]] = {}
        self._authors: dict[int, set[tuple[str, str]]] = {}

    def of(self, virtual_cluster: str) -> Mapping[str, bytes]:
        """What all workers have published for a virtual cluster: what a new one begins with."""
        return dict(self._published.get(virtual_cluster, {}))

    async def hear(self, worker: int) -> None:
        """A worker asks whether it is heard."""

    async def publish(self, worker: int, virtual_cluster: str, member_id: str, content: bytes) -> None:
        """Order a document, and send it to all other workers."""
        self._published.setdefault(virtual_cluster, {})[member_id] = content
        self._authors.setdefault(worker, set()).add((virtual_cluster, member_id))
        self._send(worker, virtual_cluster, member_id, content)

    async def leave(self, worker: int, virtual_cluster: str, member_id: str) -> None:
        """A worker leaves the fleet of a virtual cluster."""
        if self._published.get(virtual_cluster, {}).pop(member_id, None) is not None:
            self._authors[worker].discard((virtual_cluster, member_id))
            self._send(worker, virtual_cluster, member_id, None)

    def end(self, worker: int) -> None:
        """A worker has ended."""
        for virtual_cluster, member_id in self._authors.pop(worker, ()):
            del self._published[virtual_cluster][member_id]
            self._send(worker, virtual_cluster, member_id, None)

    def _send(self, author: int, virtual_cluster: str, member_id: str, content: bytes | None) -> None:
        for number in self._workers():
            if number != author:
                self._tell(number, "claims", virtual_cluster, member_id, content)

    @property
    def asks(self) -> Mapping[str, Callable[..., Awaitable[None]]]:
        """The questions of workers, by name."""
        return {"hear": self.hear, "publish": self.publish, "leave": self.leave}
