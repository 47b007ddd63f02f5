"""The last hour, for the charts of the status page: a ring of samples that never grows."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import NamedTuple

from kafka_throttle.proxy.observe.page.process import Process

EVERY_S = 5
SAMPLES = 720
"""An hour of samples."""


class Sample(NamedTuple):
    """One point of all charts: at an epoch time, rates since the sample before, and what was the case then.

    `throttled_s_per_s` is the throttle time of all clients together, in seconds for each second. `loop_lag_s` is the
    longest delay of the event loop in the 15 s before.
    """

    at_s: float
    requests_per_s: float
    in_bytes_per_s: float
    out_bytes_per_s: float
    throttled_clients: int
    throttled_s_per_s: float
    connections: int
    loop_lag_s: float


class Moment(NamedTuple):
    """What was counted until a time, monotonic and by the wall clock, and what is the case then."""

    now_ms: int
    epoch_ms: int
    requests: int
    in_bytes: int
    out_bytes: int
    throttled_ms: int
    throttled_clients: int
    connections: int
    loop_lag_s: float


def moment_of(process: Process) -> Moment:
    """This moment of a process."""
    requests = in_bytes = out_bytes = throttled_ms = 0
    for row in process.relays():
        requests += sum(row.requests.values())
        in_bytes += row.request_bytes
        out_bytes += row.response_bytes
        throttled_ms += sum(row.throttled_ms.values())
    return Moment(
        process.clock.now_ms(),
        process.clock.epoch_ms(),
        requests,
        in_bytes,
        out_bytes,
        throttled_ms,
        sum(cluster.throttled.clients for cluster in process.clusters),
        process.instance().connections,
        process.loop_lag_s(),
    )


class History:
    """The samples of the last hour, the oldest first. `look` returns the present moment."""

    def __init__(self, look: Callable[[], Moment]) -> None:
        self._look = look
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)
        self._last = look()

    async def keep(self) -> None:
        """Take a sample every EVERY_S. Runs until cancelled."""
        while True:
            await asyncio.sleep(EVERY_S)
            self.sample()

    def sample(self) -> None:
        """Take a sample; without a time since the one before, take none."""
        now, before = self._look(), self._last
        seconds = (now.now_ms - before.now_ms) / 1000
        if seconds <= 0:
            return
        self._last = now
        self._samples.append(
            Sample(
                round(now.epoch_ms / 1000, 1),
                round((now.requests - before.requests) / seconds, 2),
                round((now.in_bytes - before.in_bytes) / seconds, 1),
                round((now.out_bytes - before.out_bytes) / seconds, 1),
                now.throttled_clients,
                round((now.throttled_ms - before.throttled_ms) / 1000 / seconds, 4),
                now.connections,
                round(now.loop_lag_s, 5),
            )
        )

    def latest(self, count: int = SAMPLES) -> Sequence[Sample]:
        """The last `count` samples, the oldest first."""
        return list(islice(self._samples, max(len(self._samples) - count, 0), None))
