"""Continuous shipping: in a command, or in a separate process that the proxy starts and watches.

`python -m kafka_throttle.proxy.usage.shipping` reads an Order as a line of JSON from standard input and writes its
totals as lines of JSON to standard output. When standard input is closed, it sends the files that are complete, for at
most `GRACE_S`, and ends. So it ends with the proxy, however the proxy ends.

It is a separate process because compressing lines holds Python's interpreter lock: sending the files of a long outage
of the cluster would delay all clients of the proxy.
"""

import asyncio
import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, Self

import structlog

from kafka_throttle.common.backoff import Backoff
from kafka_throttle.common.duties import Duty
from kafka_throttle.common.token_endpoint import SECRET_PLACES, SecretPlace
from kafka_throttle.proxy.observe import logs
from kafka_throttle.proxy.usage.kafka_topic import KafkaTopic
from kafka_throttle.proxy.usage.shipper import Shipped, Shipper, SpoolBusy, TopicUnavailable, alone_at

log = structlog.get_logger()

GRACE_S = 10.0
"""How long the proxy waits at its end until the last lines are sent. The next start sends the rest."""
_KILL_AFTER_S = GRACE_S + 5
LOOK_S = 5.0
_LONGEST_WAIT_S = 30.0
_TELL_S = 0.5
_AGAIN_S = 5.0


@dataclass(frozen=True, slots=True)
class Order:
    """What to ship, and where to."""

    directory: str
    topic: str
    settings: Mapping[str, Any]
    """Settings of KafkaProducer, without a secret."""
    log_level: str = "info"
    log_format: Literal["json", "console"] = "json"
    secret: SecretPlace | None = None
    """Where the secret of each login is."""
    extensions: Mapping[str, str] = field(default_factory=dict)
    """What is sent with a token."""

    def as_line(self) -> bytes:
        """The order as a line of JSON."""
        secret = None if self.secret is None else {type(self.secret).__name__: asdict(self.secret)}
        return json.dumps({**asdict(self), "secret": secret}).encode() + b"\n"

    @classmethod
    def of_line(cls, line: str) -> Self:
        """The order in a line of JSON."""
        form = json.loads(line)
        kinds = {kind.__name__: kind for kind in SECRET_PLACES}
        for name, place in (form.pop("secret") or {}).items():
            form["secret"] = kinds[name](**place)
        return cls(**form)

    def topic_there(self) -> KafkaTopic:
        """The topic, not connected yet."""
        return KafkaTopic(self.topic, self.settings, self.secret, self.extensions)


def keep_shipping(shipper: Shipper, stopping: threading.Event, look_s: float, tell: Callable[[Shipped], None]) -> None:
    """Ship new files again and again until `stopping` is set, then once more. Failures are retried for ever."""
    backoff, failed_s = Backoff(1.0, _LONGEST_WAIT_S), 0.0
    while True:
        is_last = stopping.is_set()
        try:
            shipper.ship()
        except (TopicUnavailable, OSError) as error:
            shipper.totals.failures += 1
            if not failed_s:
                log.error("usage_shipping_failed", problem=str(error))
            failed_s = backoff.failed()
        else:
            if failed_s:
                log.info("usage_shipping_resumed", failures=shipper.totals.failures)
            backoff.succeeded()
            failed_s = 0.0
        tell(shipper.totals)
        if is_last:
            return
        stopping.wait(failed_s or look_s)


# ---------------------------------------------------------- the shipping process


def main() -> None:
    """Run the shipping process, see the docstring of the module."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a signal to the proxy's process group must not end this process
        signal.signal(number, signal.SIG_IGN)
    order = Order.of_line(sys.stdin.readline())
    logs.configure(order.log_level, order.log_format)
    logs.write_in_thread()
    stopping = threading.Event()
    threading.Thread(target=_end_with_stdin, args=(stopping,), daemon=True).start()
    said = _Saying()
    shipper = Shipper(Path(order.directory), order.topic_there(), said)
    reported = ""
    while not stopping.is_set():
        try:
            with alone_at(Path(order.directory)):
                keep_shipping(shipper, stopping, LOOK_S, said.now)
        except (SpoolBusy, OSError) as error:
            if reported != (reported := str(error)):
                log.warning("usage_shipping_waits", problem=reported)
            if isinstance(error, OSError):
                shipper.totals.failures += 1
                said.now(shipper.totals)
            stopping.wait(_AGAIN_S)


def _end_with_stdin(stopping: threading.Event) -> None:
    sys.stdin.read()
    stopping.set()
    time.sleep(GRACE_S)
    logs.flush()
    os._exit(0)


class _Saying:
    """Writes totals to standard output, at most every 0.5 s."""

    def __init__(self) -> None:
        self._reported_s = -_TELL_S

    def __call__(self, totals: Shipped) -> None:
        if time.monotonic() - self._reported_s >= _TELL_S:
            self.now(totals)

    def now(self, totals: Shipped) -> None:
        """Write the totals now. Ignores errors: if the reader is gone, standard input ends too."""
        self._reported_s = time.monotonic()
        with contextlib.suppress(OSError):
            print(json.dumps(asdict(totals)), flush=True)


# ------------------------------------------------------------ the proxy's side


class Shipping:
    """Starts the shipping process, and starts it again whenever it ends."""

    def __init__(self, order: Order, again_s: float = _AGAIN_S) -> None:
        self._order = order
        self._again_s = again_s
        self._before = Shipped()
        self._now = Shipped()
        self._process: asyncio.subprocess.Process | None = None
        self._duty = Duty("shipping usage records")
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    def totals(self) -> Shipped:
        """The totals of all shipping processes of this proxy."""
        sums = Shipped(**{one.name: getattr(self._before, one.name) + getattr(self._now, one.name) for one in _COUNTS})
        sums.waiting_files, sums.waiting_bytes = self._now.waiting_files, self._now.waiting_bytes
        return sums

    @property
    def pid(self) -> int | None:
        """The id of the shipping process, None while there is none."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the shipping process."""
        self._task = asyncio.get_running_loop().create_task(self._duty.keep(self._run))

    async def stop(self) -> None:
        """Have the last lines sent and the process end. Bounded in time, whatever the cluster does."""
        self._stopping.set()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
        if self._task is None:
            return
        done, _ = await asyncio.wait([self._task], timeout=_KILL_AFTER_S)
        if not done:
            self._kill()
            await asyncio.wait([self._task], timeout=_KILL_AFTER_S)

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                self._process.kill()

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                status = await self._ship()
            except OSError as error:
                log.error("usage_shipping_not_started", problem=error.strerror or str(error))
            else:
                if not self._stopping.is_set():
                    log.error("usage_shipping_ended", status=status)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), self._again_s)

    async def _ship(self) -> int:
        pipe = asyncio.subprocess.PIPE
        command = (sys.executable, "-m", "kafka_throttle.proxy.usage.shipping")
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        try:
            process.stdin.write(self._order.as_line())
            if self._stopping.is_set():
                process.stdin.close()
            async for line in process.stdout:
                self._now = Shipped(**json.loads(line))
            return await process.wait()
        finally:
            self._kill()
            self._process = None
            self._before, reported = self.totals(), self._now
            self._now = Shipped(waiting_files=reported.waiting_files, waiting_bytes=reported.waiting_bytes)


_COUNTS = [one for one in fields(Shipped) if not one.name.startswith("waiting_")]


if __name__ == "__main__":
    main()
