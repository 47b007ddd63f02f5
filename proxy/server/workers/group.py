"""The workers of one supervisor: started, asked, replaced when one ends, and stopped."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import structlog

from kafka_throttle.common.backoff import Backoff
from kafka_throttle.common.duties import Duty
from kafka_throttle.proxy.config.settings import Config
from kafka_throttle.proxy.observe.metrics import Metrics
from kafka_throttle.proxy.server.tasks import Tasks
from kafka_throttle.proxy.server.workers.forker import Forker, kill
from kafka_throttle.proxy.server.workers.link import Link, LinkLost
from kafka_throttle.proxy.server.workers.worker import Beginning, Pulse

log = structlog.get_logger()

ANSWER_S = 2.0
"""How long is waited for the answer of a worker, before it is left out."""

_SILENT_S = 5.0
"""How long a worker may be silent, or missing, before the proxy is not ready."""

_STALLED_S = 10.0
"""How long a worker may be silent before it is ended: its sockets still get a part of all new connections."""

_START_S = 60.0
"""The same for a worker that starts: it has much to do then, and no client waits for this worker alone."""

_GIVEN_UP_S = 30.0
"""How long a worker may be missing before the proxy reports that it should be started again."""

_EVERY_S = 1.0
_LONGEST_STEP_S = ANSWER_S + 1.5 * _EVERY_S
"""The most that one look adds to the time for which workers are silent, also if this process was late by more.

On a machine that is too busy for this process the workers may be as late.
"""

_END_S = 0.2
"""How long is waited for the exit status of a worker whose link has closed."""

_APPLY_S = 30.0
"""How long a worker may take to have a changed configuration in force."""

_AT_ONCE_S = 2.0
"""How long is waited for workers that are to end at once."""

_EXIT_S = 5.0
_LOOK_S = 0.005
_SOUND_S = 10.0
"""A worker that has served for so long is replaced at once when it ends; before that, after a pause that grows."""


class NotStarted(Exception):
    """A worker has not started. The text is the reason."""


@dataclass(eq=False)
class Running:
    """One worker process. `pulse` is what it said last.

    It has said something, `received` messages in all, when this process had run for `heard_s`.
    """

    number: int
    pid: int
    pidfd: int | None
    link: Link
    started_s: float
    heard_s: float
    received: int = 0
    is_ended: bool = False
    is_serving: bool = False
    pulse: Pulse | None = None

    @property
    def name(self) -> str:
        """Its number as text."""
        return str(self.number)


class Workers:
    """Runs `count` workers. A worker begins with what `beginning` returns for its number; `config_of` it is the
    configuration that is in force.

    `asks` answer questions of workers, with the number of the worker as the first argument. `ended` is called with each
    worker that has ended.
    """

    def __init__(
        self,
        count: int,
        forker: Forker,
        beginning: Callable[[int], Beginning],
        config_of: Callable[[int], Config],
        asks: Mapping[str, Callable[..., Awaitable[Any]]],
        ended: Callable[[Running], None],
        metrics: Metrics,
    ) -> None:
        self.count = count
        self._running: dict[int, Running] = {}
        self._forker = forker
        self._beginning = beginning
        self._config_of = config_of
        self._asks = asks
        self._ended = ended
        self._metrics = metrics
        self._tasks = Tasks()
        self._looking = Duty("looking after the workers")
        self._ran_s = 0.0
        """For how long this process has run, without time in which it was suspended: then it got no messages."""
        self._looked_s: float | None = None
        self._missing_since: dict[int, float] = {}
        self._exits: dict[int, int] = {}
        """The exit status of each worker that has ended and is not forgotten, by its process id."""
        self._unheard: set[int] = set()
        """The processes of forgotten workers whose exit status has not come yet: it is of no use any more, and another
        process may have this id later."""
        self._is_stopping = False
        self.end_asked = asyncio.Event()
        """Whether the workers were told to end without waiting for anything of their clients."""

    async def start(self) -> None:
        """Start all workers; return when they serve clients. Raises ConfigErrors or NotStarted if one cannot."""
        self._forker.ended = self._note_exit
        self._forker.watch()
        self._tasks.keep(self._looking, self._keep_looking)
        await asyncio.gather(*(self._start(number) for number in range(self.count)))

    async def _start(self, number: int) -> Running:
        if self._is_stopping:
            raise NotStarted("the proxy stops")
        try:
            forked = await self._forker.fork(number)
        except OSError as error:
            raise NotStarted(f"worker {number} cannot be forked: {error}") from error
        now_s = asyncio.get_running_loop().time()
        link = Link(forked.sock, {}, {what: _for(self, number, answer) for what, answer in self._asks.items()})
        await link.open()
        worker = self._running[number] = Running(number, forked.pid, forked.pidfd, link, now_s, self._ran_s)
        beginning = self._beginning(number)
        link.tell("begin", beginning)
        self._tasks.spawn("following a worker", self._follow(worker))
        try:
            await self._serve(worker, beginning.config)
        except LinkLost:
            self._kill(worker)
            raise NotStarted(f"worker {number} has ended before it served clients") from None
        except BaseException:
            self._kill(worker)
            raise
        worker.is_serving = True
        self._missing_since.pop(number, None)
        return worker

    async def _serve(self, worker: Running, config: Config) -> None:
        """Have a worker that begins with `config` serve clients, by the configuration that is in force then."""
        await worker.link.ask("serve")
        while (latest := self._config_of(worker.number)) != config:
            await worker.link.ask("apply", latest, timeout_s=_APPLY_S)
            config = latest
        if worker.link.is_lost:
            raise LinkLost

    async def _follow(self, worker: Running) -> None:
        """Take what a worker sends until it ends; then replace it."""
        with self._looking:
            await worker.link.run()
        now_s = asyncio.get_running_loop().time()
        if self._running.get(worker.number) is worker:  # else another one has the number already
            del self._running[worker.number]
            self._missing_since.setdefault(worker.number, self._ran_s)
            with self._looking:
                self._ended(worker)
        if self._is_stopping:
            return
        status = await self._exit_of(worker, _END_S)
        self._kill(worker)
        self._forget(worker)
        log.error("worker_lost", worker=worker.number, worker_pid=worker.pid, status=status)
        if worker.is_serving:
            self._tasks.spawn("replacing a worker", self._replace(worker.number, now_s - worker.started_s))

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
        if pid in self._unheard:
            self._unheard.remove(pid)
        else:
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

    async def ask(self, what: str, *args: Any, timeout_s: float = ANSWER_S) -> dict[Running, Any]:
        """The answers of the workers that serve clients and answer in time."""
        answers: dict[Running, Any] = {}
        await self.ask_each(what, lambda worker: args, timeout_s, answers.__setitem__)
        return answers

    async def ask_each(
        self,
        what: str,
        args_for: Callable[[Running], tuple[Any, ...]],
        timeout_s: float,
        take: Callable[[Running, Any], None],
    ) -> None:
        """The same with other arguments for each worker. `take` gets each answer as it comes."""
        workers = [worker for worker in self.running if worker.is_serving]
        await asyncio.gather(*(self._answer(worker, what, args_for(worker), timeout_s, take) for worker in workers))

    async def _answer(
        self, worker: Running, what: str, args: Any, timeout_s: float, take: Callable[[Running, Any], None]
    ) -> None:
        try:
            take(worker, await worker.link.ask(what, *args, timeout_s=timeout_s))
        except TimeoutError:
            self._metrics.worker_timeouts.inc()
        except LinkLost:
            pass
        except Exception as error:
            log.error("worker_failed", worker=worker.number, question=what, problem=str(error) or repr(error))

    async def apply(self) -> None:
        """Have all workers take up a changed configuration.

        One that cannot, or does not within 30 s, is ended: the one that replaces it begins with the configuration.
        """
        workers = [worker for worker in self.running if worker.is_serving]
        applied: dict[Running, Any] = {}
        await self.ask_each("apply", lambda worker: (self._config_of(worker.number),), _APPLY_S, applied.__setitem__)
        for worker in workers:
            if worker not in applied and self._running.get(worker.number) is worker:
                problem = "it has not taken up the configuration, so another one replaces it"
                log.error("worker_failed", worker=worker.number, question="apply", problem=problem)
                self._kill(worker)

    async def _keep_looking(self) -> None:
        while True:
            await self.look()
            await asyncio.sleep(_EVERY_S)

    async def look(self) -> None:
        """Ask all workers for their pulse, also those that start. One that has been silent for too long is ended."""
        asked = (self._answer(worker, "pulse", (), ANSWER_S, _take_pulse) for worker in self.running)
        await asyncio.gather(*asked)
        self._let_time_pass()
        for worker in self.running:
            if worker.received != worker.link.received:
                worker.received, worker.heard_s = worker.link.received, self._ran_s
            elif (silent_s := self._ran_s - worker.heard_s) > (_STALLED_S if worker.is_serving else _START_S):
                problem = f"it has been silent for {silent_s:.0f} s, so another one replaces it"
                log.error("worker_failed", worker=worker.number, question="pulse", problem=problem)
                self._kill(worker)
                worker.link.abort()  # the process itself ends later if it waits for a disk

    def _let_time_pass(self) -> None:
        now_s, before_s = asyncio.get_running_loop().time(), self._looked_s
        self._looked_s = now_s
        if before_s is not None:
            self._ran_s += min(now_s - before_s, _LONGEST_STEP_S)

    def not_ready(self) -> list[str]:
        """The reasons why clients cannot be served, one line each."""
        serving = [worker for worker in self.running if worker.is_serving]
        if not serving:
            return ["no worker serves clients"]
        reasons = dict.fromkeys(reason for worker in serving if worker.pulse for reason in worker.pulse.not_ready)
        silent = [worker.number for worker in serving if self._ran_s - worker.heard_s > _SILENT_S]
        reasons |= dict.fromkeys(f"worker {number} has not responded for {_SILENT_S:.0f} s" for number in silent)
        return [
            *reasons,
            *(f"worker {number} has not run for {_SILENT_S:.0f} s" for number in self._missing(_SILENT_S)),
        ]

    def not_live(self) -> list[str]:
        """Why the proxy should be ended and started again, one line each: workers that cannot be replaced."""
        missing = [] if self._is_stopping else self._missing(_GIVEN_UP_S)
        return [f"worker {number} has not run for {_GIVEN_UP_S:.0f} s" for number in missing]

    def _missing(self, for_s: float) -> list[int]:
        """The numbers of workers that have served no clients for so long."""
        return [number for number, since_s in self._missing_since.items() if self._ran_s - since_s > for_s]

    def remarks(self) -> list[str]:
        """What is wrong though clients can be served, one line each."""
        pulses = [(worker, worker.pulse) for worker in self.running if worker.pulse is not None]
        return [f"worker {worker.number}: {remark}" for worker, pulse in pulses for remark in pulse.remarks]

    # -------------------------------------------------------------------- stop

    def end(self) -> None:
        """Have all workers end without waiting for anything of their clients."""
        self.tell("end")
        self.end_asked.set()

    async def stop(self, timeout_s: float) -> None:
        """Stop all workers. Those that have not stopped by then, or 2 s after `end`, are killed."""
        self._is_stopping = True
        self._forker.close_listening()
        stopped = await self._stopped(timeout_s)
        workers = self.running
        for worker in workers:
            if worker in stopped:
                worker.link.close()
            else:
                self._kill(worker)
        await asyncio.gather(*(self._exit_of(worker, _EXIT_S) for worker in workers))
        for worker in workers:
            self._kill(worker)
        await self._tasks.cancel()
        self._forker.close()

    async def _stopped(self, timeout_s: float) -> Collection[Running]:
        """Ask all workers to stop; those that have."""
        stopped: dict[Running, Any] = {}
        asking = asyncio.create_task(self.ask_each("stop", lambda worker: (), timeout_s, stopped.__setitem__))
        ending = asyncio.create_task(self.end_asked.wait())
        await asyncio.wait({asking, ending}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({asking}, timeout=_AT_ONCE_S)
        asking.cancel()
        ending.cancel()
        return stopped

    def _kill(self, worker: Running) -> None:
        if not worker.is_ended and worker.pid not in self._exits:
            kill(worker.pid, worker.pidfd)

    def _forget(self, worker: Running) -> None:
        """The process has ended, and its number and descriptor may be another's."""
        worker.is_ended = True
        if self._exits.pop(worker.pid, None) is None:
            self._unheard.add(worker.pid)
        if worker.pidfd is not None:
            os.close(worker.pidfd)

    async def _exit_of(self, worker: Running, timeout_s: float) -> int | None:
        """The exit status of a worker, which is about to end; None if it does not end in time."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + timeout_s
        while worker.pid not in self._exits and loop.time() < end_s:  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)
        return self._exits.get(worker.pid)


def _take_pulse(worker: Running, pulse: Pulse) -> None:
    worker.pulse = pulse


def _for(workers: Workers, number: int, answer: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """The question with the number of the worker that asks it."""

    def asked(*args: Any) -> Awaitable[Any]:
        return answer(number, *args)

    return asked
