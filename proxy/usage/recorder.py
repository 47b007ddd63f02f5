"""The recorder: closes the windows of all meters by the wall clock and passes their records to the spool."""

import asyncio
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from kafka_throttle.common.duties import Duty
from kafka_throttle.proxy.clock import Clock
from kafka_throttle.proxy.config.settings import UsageConfig
from kafka_throttle.proxy.observe.metrics import UsageTotals
from kafka_throttle.proxy.relay.use import CONNECTION, Meter
from kafka_throttle.proxy.usage.records import record_of
from kafka_throttle.proxy.usage.spool import BUG, Spool, SpoolRules
from kafka_throttle.proxy.usage.tracer import Tracer
from kafka_throttle.quotas.client_quotas import WHOLE_CLUSTER, ClientQuotaManager
from kafka_throttle.quotas.connection_quotas import Admission, ConnectionQuotas, Outcome
from kafka_throttle.quotas.records.usage_record import TRACE, USAGE, UsageRecord

_MIB = 1 << 20
_SETTLED_PER_STEP = 200
_RECORDS_PER_STEP = 100
_FLUSH_S = 0.5
"""How often trace events are passed to the spool, and how late a window may be closed after a jump of the clock."""


def rules_of(usage: UsageConfig) -> SpoolRules:
    """The rules of the spool, from the settings."""
    return SpoolRules(
        usage.file_mib * _MIB,
        usage.file_s,
        usage.total_mib * _MIB,
        usage.trace.total_mib * _MIB,
        usage.keep_s,
        usage.keep_at_least_s,
        usage.queue_records,
        {USAGE: 1000 * usage.window_s, TRACE: round(1000 * _FLUSH_S)},
    )


def own_name() -> str:
    """The name of this host; characters that a file name must not contain are replaced by "_"."""
    name = re.sub("[^A-Za-z0-9._-]", "_", socket.gethostname())[:64]
    return name or "proxy"


class Metered(NamedTuple):
    """The usage counters and the quotas of one virtual cluster."""

    meter: Meter
    quota_manager: ClientQuotaManager
    connections: ConnectionQuotas


class Recorder:
    """Makes the usage records of one process, and passes them to its spool."""

    def __init__(
        self, metered: Sequence[Metered], spool: Spool, window_s: int, clock: Clock, tracer: Tracer | None
    ) -> None:
        self.spool = spool
        self._metered = metered
        self._by_cluster = {of.meter.virtual_cluster: of.meter for of in metered}
        self._window_ms = window_s * 1000
        self.duty = Duty("recording usage")
        self._clock = clock
        self._tracer = tracer
        self._sequence = 0
        self._set_offset()

    def start(self, is_beside: Callable[[], bool] = lambda: False) -> None:
        """Start writing; `is_beside` as for a spool. Raises DirectoryUnusable if the directory cannot be used."""
        self.spool.start(is_beside)
        if self._tracer is not None:
            self._tracer.identify(self.spool.instance, self.spool.epoch)

    @property
    def problem(self) -> str | None:
        """Why records cannot be written now; None while they can."""
        return self.spool.problem

    def totals(self) -> UsageTotals:
        """The totals of written records, and how many clients are counted."""
        return UsageTotals(
            [*self.spool.totals()],
            self.spool.failures,
            {meter.virtual_cluster: (len(meter), meter.max_clients, meter.overflowed) for meter, *_ in self._metered},
        )

    def note_connection(self, virtual_cluster: str, address: str, admission: Admission, now_ms: int) -> None:
        """Count a connection that the gate has decided about."""
        if self._tracer is not None:
            self._tracer.note_connection(virtual_cluster, address, admission, now_ms)
        meter = self._by_cluster.get(virtual_cluster)
        if meter is None or admission.outcome is Outcome.TOO_MANY:
            return
        use = meter.client(WHOLE_CLUSTER, "", "", address).of(CONNECTION)
        if admission.outcome is Outcome.ADMITTED:
            use.add(1, now_ms * 1000)
        else:
            use.note_throttle(admission.throttle_ms, now_ms * 1000)

    # ------------------------------------------------------------------- windows

    async def run(self) -> None:
        """Close each window when it is over, until cancelled."""
        window = self._window()
        while True:
            await asyncio.sleep(min(self._until_next_s(), _FLUSH_S))
            with self.duty:
                self._flush_trace()
            if (now := self._window()) != window:
                window = now
                for _ in self.close_windows():
                    await asyncio.sleep(0)

    def _window(self) -> int:
        return self._clock.epoch_ms() // self._window_ms

    def _until_next_s(self) -> float:
        return (self._window_ms - self._clock.epoch_ms() % self._window_ms + 1) / 1000

    def _set_offset(self) -> None:
        offset_us = self._clock.epoch_ms() * 1000 - self._clock.now_us()
        for meter, *_ in self._metered:
            meter.offset_us = offset_us

    def close_windows(self, at_end: bool = False) -> Iterator[None]:
        """Make the records of windows that are over; `at_end`, also of those that are not. Works in steps."""
        self._set_offset()
        for metered in self._metered:
            meter = metered.meter
            for number, (window, use) in enumerate(meter.take_open(), 1):
                with self.duty:
                    meter.settle(window, use, None if at_end else self._clock.now_us())
                if not number % _SETTLED_PER_STEP:
                    yield
            while meter.closed:
                self._record(metered)
                yield

    def _record(self, metered: Metered) -> None:
        meter = metered.meter
        now_ms = self._clock.epoch_ms()
        records: list[UsageRecord] = []
        first = self._sequence + 1
        while meter.closed and len(records) < _RECORDS_PER_STEP:
            counts = meter.closed.popleft()
            self._sequence += 1
            end_ms = max(min(counts.begin_ms + self._window_ms, now_ms), counts.begin_ms)
            who = (self.spool.instance, self.spool.epoch, self._sequence)
            manager, connections = metered.quota_manager, metered.connections
            try:
                records.append(record_of(counts, manager, connections, *who, end_ms, meter.virtual_cluster))
            except Exception as error:
                self.duty.failed(error)
                self._put(records, first)
                self.spool.drop(USAGE, self._sequence, self._sequence, BUG)
                records, first = [], self._sequence + 1
        self._put(records, first)

    def _put(self, records: Sequence[UsageRecord], first: int) -> None:
        if records:
            self.spool.put(USAGE, records, first, first + len(records) - 1)

    def _flush_trace(self) -> None:
        if self._tracer is not None:
            self._tracer.flush(self.spool.put, self.spool.drop)

    async def stop(self, timeout_s: float) -> None:
        """Record everything that was counted, and wait until it is written."""
        for _ in self.close_windows(at_end=True):
            await asyncio.sleep(0)
        self._flush_trace()
        await asyncio.to_thread(self.spool.close, timeout_s)
