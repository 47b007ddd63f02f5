"""The membership of this process in the fleet of one virtual cluster: what is decided is applied, published, logged.

Decisions are made by `Member` of quotas/shares/; this loop gives it what it measures and what the others claim.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from kafka_throttle.common.duties import Duty
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.observe.fleet_metrics import FleetTotals
from kafka_throttle.proxy.server.fleet.reports import Reports
from kafka_throttle.proxy.server.fleet.transport import FleetTransport, TransportLost
from kafka_throttle.quotas.share_rows import SharedRows
from kafka_throttle.quotas.shares.document import Document, Documents
from kafka_throttle.quotas.shares.member import Member
from kafka_throttle.quotas.shares.moves import Use

LOOK_MS: Final = 250
"""How often use is looked at, at least."""
WRITE_MS: Final = 1_000
"""The least time between two documents."""
WRITE_AMONG_WORKERS_MS: Final = 100
"""The same among the workers of one supervisor: it costs no network, and a worker that is replaced is known sooner."""


class Fleet:
    """The loop of one virtual cluster. Belongs to the event loop, and waits for nothing else."""

    def __init__(
        self,
        virtual_cluster: str,
        transport: FleetTransport,
        member: Member,
        rows: SharedRows,
        clock: Clock,
        write_ms: int = WRITE_MS,
    ) -> None:
        self.member = member
        self.writes = self.written_bytes = self.read_bytes = 0
        self._virtual_cluster = virtual_cluster
        self._transport = transport
        self._rows = rows
        self._clock = clock
        self._documents = Documents()
        self._view: Mapping[str, bytes] = {}
        self._refused_records = 0
        self._losses = transport.losses
        self._write_ms = write_ms
        self._next_write_ms = clock.now_ms()
        self._woken = asyncio.Event()
        self._known = asyncio.Event()
        self._duty = Duty("sharing limits with the fleet", f"virtual cluster {virtual_cluster}")
        self._turning: asyncio.Task[None] | None = None
        self._publishing: asyncio.Task[None] | None = None
        self._ordered: int | None = None
        """The number of a document that was ordered since the last turn."""
        self._reports = Reports(virtual_cluster, member)

    async def join(self, timeout_s: float) -> None:
        """Join, and wait until all others know of this member, at most this long. It goes on trying without end."""
        await self._transport.start(self.member.id, self._woken.set)
        self._turning = asyncio.get_running_loop().create_task(self._duty.keep(self._keep_turning))
        with suppress(TimeoutError):
            await asyncio.wait_for(self._known.wait(), timeout_s)

    async def stop(self) -> None:
        """Leave the fleet. Nothing may be charged after this: the others divide the shares of this member."""
        for task in (self._turning, self._publishing):
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task
        await self._transport.stop()

    @property
    def trouble(self) -> str:
        """Why this member is cut off from the others; "" if it is not."""
        if not self.member.is_cut_off:
            return ""
        return self._transport.problems.get("", "the others have not yet acknowledged that this instance is back")

    def totals(self) -> FleetTotals:
        """For the metrics."""
        member, heard_ms = self.member, self._transport.heard_ms
        return FleetTotals(
            self._virtual_cluster,
            members=member.members,
            is_cut_off=member.is_cut_off,
            trouble=self.trouble,
            heard_ms_ago=None if heard_ms is None else self._clock.now_ms() - heard_ms,
            keys=member.keys,
            claimed=member.claimed,
            moves=member.moves,
            raises=member.totals.raises,
            lowers=member.totals.lowers,
            conflicts=member.totals.conflicts,
            excesses=member.totals.over,
            refused=self._documents.refused + self._refused_records,
            writes=self.writes,
            written_bytes=self.written_bytes,
            read_bytes=self.read_bytes,
        )

    # -------------------------------------------------------------------- the loop

    async def _keep_turning(self) -> None:
        while True:
            with suppress(TimeoutError):
                # wait_for of Python 3.11 would swallow a cancellation that comes in the same turn as the event.
                async with asyncio.timeout(self._rest_s()):
                    await self._woken.wait()
            self._woken.clear()
            with self._duty:
                await self.turn()

    def _rest_s(self) -> float:
        """How long nothing is due."""
        until_write_ms = self._next_write_ms - self._clock.now_ms()
        return min(LOOK_MS, until_write_ms if until_write_ms > 0 else LOOK_MS) / 1000

    async def turn(self) -> None:
        """One step. What was lowered is applied before it is published, and what a document has seen before it says so.

        A document is published meanwhile, if there is one to publish and none is under way.
        """
        now_ms = self._clock.now_ms()
        self._hear(now_ms)
        if self._ordered is not None:
            self.member.published(self._ordered, now_ms)
            self._ordered = None
        self.member.look(self._uses(now_ms), now_ms)
        await self._apply(now_ms)
        if self._publishing is None and self._ordered is None and now_ms >= self._next_write_ms:
            document, losses = self.member.document(now_ms), self._losses
            await self._apply(now_ms)  # what the document acknowledges lowers shares
            if document is not None:
                self._next_write_ms = now_ms + self._write_ms
                self._publishing = asyncio.get_running_loop().create_task(self._publish(document, losses))
        self._report(now_ms)

    async def _apply(self, now_ms: int) -> None:
        """Apply what was decided. Clients are served between the steps of a move for all rows, unless this member may
        soon be cut off: then it has to look again first."""
        self._rows.apply(self.member.take_moves(), now_ms)
        while self._rows.go_on(now_ms := self._clock.now_ms()):
            heard_ms = self._transport.heard_ms
            if heard_ms is not None and now_ms - heard_ms < self._transport.cut_off_ms // 2:
                await asyncio.sleep(0)

    def _uses(self, now_ms: int) -> list[Use]:
        try:
            return self._rows.uses(now_ms)
        except Exception as error:
            # A member that cannot measure must still notice that it is cut off, and acknowledge the others.
            self._duty.failed(error)
            return []

    async def _publish(self, document: Document, losses: int) -> None:
        try:
            content = document.encoded()
            if losses != self._transport.losses:
                return  # it was made before the others have dropped this member
            await self._transport.publish(content)
            self._ordered = document.seq
            self.writes += 1
            self.written_bytes += len(content)
        except TransportLost:
            pass  # the transport has problems, which are logged; there is another document in a second
        except Exception as error:
            self._duty.failed(error)
        finally:
            self._publishing = None
            self._woken.set()

    def _hear(self, now_ms: int) -> None:
        """Pass what has come from the transport to the member."""
        if self._losses != self._transport.losses:
            self._losses = self._transport.losses
            self.member.lost()
        if (heard_ms := self._transport.heard_ms) is not None:
            self.member.heard(heard_ms)
        view = self._transport.view()
        if view != self._view:
            self.member.view(self._documents.read(view), now_ms)
            before, self._view = self._view, view
            self.read_bytes += sum(len(content) for author, content in view.items() if content != before.get(author))

    def _report(self, now_ms: int) -> None:
        if self.member.is_known:
            self._known.set()
        self._reports.look(self._view.keys(), self._transport.problems, now_ms)
        refused_records = self._transport.take_refused()
        self._refused_records += len(refused_records)
        for origin, problem in (*self._documents.take_problems(), *refused_records):
            self._reports.refused(origin, problem, self._clock.now_us())
