"""The workers of one supervisor: started, asked, replaced when one ends, and stopped."""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from common.backoff import Backoff
from proxy.observe.metrics import Metrics
from proxy.server.tasks import Tasks
from proxy.server.workers.forker import Forker
from proxy.server.workers.link import Link, LinkLost
from proxy.server.workers.worker import Beginning, Pulse

log = structlog.get_logger()

ANSWER_S = 2.0
"""How long is waited for the answer of a worker, before it is left out."""

_SILENT_S = 5.0
_END_S = 0.2
"""How long is waited for the exit status of a worker whose link has closed."""

_EXIT_S = 5.0
_LOOK_S = 0.005
_SOUND_S = 10.0
"""A worker that has served for so long is replaced at once when it ends; before that, after a pause that grows."""


@dataclass(eq=False)
class Running:
    """One worker process. `pulse` is what it said last, `heard_s` when that was, by the event loop's clock."""

    number: int
    pid: int
    link: Link
    started_s: float
    heard_s: float
    is_serving: bool = False
    pulse: Pulse | None = None

    @property
    def name(self) -> str:
        """Its number as text."""
        return str(self.number)


class Workers:
    """Runs `count` workers. A worker begins with what `beginning` returns for its number.

    `asks` answer questions of workers, with the number of the worker as the first argument. `ended` is called with each
    worker that has ended.
    """

    def __init__(
        self,
        count: int,
        forker: Forker,
        beginning: Callable[[int], Beginning],
        asks: Mapping[str, Callable[..., Awaitable[Any]]],
        ended: Callable[[Running], None],
        metrics: Metrics,
    ) -> None:
        self.count = count
        self._running: dict[int, Running] = {}
        self._forker = forker
        self._beginning = beginning
        self._asks = asks
        self._ended = ended
        self._metrics = metrics
        self._forking = asyncio.Lock()
        self._tasks = Tasks()
        self._missing_since: dict[int, float] = {}
        self._exits: dict[int, int] = {}
        self._is_stopping = False

    async def start(self) -> None:
        """Start all workers; return when they serve clients. Raises ConfigErrors if one cannot."""
        self._forker.ended = self._note_exit
        self._forker.watch()
        await asyncio.gather(*(self._start(number) for number in range(self.count)))

    async def _start(self, number: int) -> Running:
        async with self._forking:
            forked = await self._forker.fork(number)
        now_s = asyncio.get_running_loop().time()
        link = Link(forked.sock, {}, {what: _for(self, number, answer) for what, answer in self._asks.items()})
        await link.open()
        worker = self._running[number] = Running(number, forked.pid, link, now_s, now_s)
        beginning = self._beginning(number)
        link.tell("begin", beginning)
        self._tasks.spawn(self._follow(worker))
        try:
            await link.ask("serve")
        except BaseException:
            self._kill(worker)
            raise
        worker.is_serving = True
        self._missing_since.pop(number, None)
        if (config := self._beginning(number).config) != beginning.config:  # it has changed while the worker started
            await link.ask("apply", config)
        return worker

    async def _follow(self, worker: Running) -> None:
        """Take what a worker sends until it ends; then replace it."""
        await worker.link.run()
        self._running.pop(worker.number, None)
        self._ended(worker)
        if self._is_stopping:
            return
        now_s = asyncio.get_running_loop().time()
        self._missing_since.setdefault(worker.number, now_s)
        status = await self._exit_of(worker, _END_S)
        self._kill(worker)
        self._exits.pop(worker.pid, None)
        log.error("worker_lost", worker=worker.number, worker_pid=worker.pid, status=status)
        if worker.is_serving:
            self._tasks.spawn(self._replace(worker.number, now_s - worker.started_s))

    async def _replace(self, number: int, served_s: float) -> None:
        backoff = Backoff(0.2, 5.0)
        if served_s < _SOUND_S:
            await asyncio.sleep(backoff.failed())
        while not self._is_stopping:
            try:
                worker = await self._start(number)
            except Exception as error:
                if not self._is_stopping:
                    log.error("worker_not_started", worker=number, problem=str(error) or repr(error))
                await asyncio.sleep(backoff.failed())
            else:
                self._metrics.worker_restarts.inc()
                log.info("worker_replaced", worker=number, worker_pid=worker.pid)
                return

    def _note_exit(self, pid: int, status: int) -> None:
        self._exits[pid] = status

    # --------------------------------------------------------------- questions

    @property
    def running(self) -> list[Running]:
        """The workers that there are, by number."""
        return [self._running[number] for number in sorted(self._running)]

    def tell_one(self, number: int, what: str, *args: Any) -> None:
        """Send a message to the worker of this number, if it is there."""
        if (worker := self._running.get(number)) is not None:
            worker.link.tell(what, *args)

    def tell(self, what: str, *args: Any) -> None:
        """Send a message to all workers."""
        for worker in self.running:
            worker.link.tell(what, *args)

    async def ask(self, what: str, *args: Any, timeout_s: float | None = ANSWER_S) -> dict[Running, Any]:
        """The answers of the workers that serve clients and answer in time."""
        return await self.ask_each(what, lambda worker: args, timeout_s)

    async def ask_each(
        self, what: str, args_for: Callable[[Running], tuple[Any, ...]], timeout_s: float | None = None
    ) -> dict[Running, Any]:
        """The same, with other arguments for each worker."""
        workers = [worker for worker in self.running if worker.is_serving]
        answers = await asyncio.gather(*(self._answer(worker, what, args_for(worker), timeout_s) for worker in workers))
        return {worker: answer[0] for worker, answer in zip(workers, answers, strict=True) if answer}

    async def _answer(self, worker: Running, what: str, args: Any, timeout_s: float | None) -> tuple[Any, ...]:
        """The answer, or nothing."""
        try:
            return (await worker.link.ask(what, *args, timeout_s=timeout_s),)
        except TimeoutError:
            self._metrics.worker_timeouts.inc()
        except LinkLost:
            pass
        except Exception as error:
            log.error("worker_failed", worker=worker.number, question=what, problem=str(error) or repr(error))
        return ()

    async def look(self) -> None:
        """Ask all workers how they are."""
        for worker, pulse in (await self.ask("pulse")).items():
            worker.pulse, worker.heard_s = pulse, asyncio.get_running_loop().time()

    def not_ready(self) -> list[str]:
        """The reasons why clients cannot be served, one line each."""
        now_s = asyncio.get_running_loop().time()
        serving = [worker for worker in self.running if worker.is_serving]
        if not serving:
            return ["no worker serves clients"]
        reasons = dict.fromkeys(reason for worker in serving if worker.pulse for reason in worker.pulse.not_ready)
        silent = [f"worker {worker.number} does not answer" for worker in serving if now_s - worker.heard_s > _SILENT_S]
        missing = [
            f"worker {number} does not run"
            for number, since_s in self._missing_since.items()
            if now_s - since_s > _SILENT_S
        ]
        return [*reasons, *silent, *missing]

    def remarks(self) -> list[str]:
        """What is wrong though clients can be served, one line each."""
        pulses = [(worker, worker.pulse) for worker in self.running if worker.pulse is not None]
        return [f"worker {worker.number}: {remark}" for worker, pulse in pulses for remark in pulse.remarks]

    # -------------------------------------------------------------------- stop

    def end(self) -> None:
        """Have all workers end without waiting for anything of their clients."""
        self.tell("end")

    async def stop(self, timeout_s: float) -> None:
        """Stop all workers. Those that have not stopped by then are killed."""
        self._is_stopping = True
        self._forker.close_listening()
        await self.ask("stop", timeout_s=timeout_s)
        workers = self.running
        for worker in workers:
            if worker.is_serving:
                worker.link.close()
            else:
                self._kill(worker)
        await asyncio.gather(*(self._exit_of(worker, _EXIT_S) for worker in workers))
        for worker in workers:
            self._kill(worker)
        await self._tasks.cancel()
        self._forker.close()

    def _kill(self, worker: Running) -> None:
        if worker.pid not in self._exits:
            with suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)

    async def _exit_of(self, worker: Running, timeout_s: float) -> int | None:
        """The exit status of a worker, which is about to end; None if it does not end in time."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while worker.pid not in self._exits and loop.time() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return self._exits.get(worker.pid)


def _for(workers: Workers, number: int, answer: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The question with the number of the worker that asks it."""

    def asked(*args: Any) -> Awaitable[Any]:
        return answer(number, *args)

    return asked
