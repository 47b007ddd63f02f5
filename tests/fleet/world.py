"""A fleet in a simulated world: instances, their clients, an ensemble, and what goes wrong; judged all the time."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

from structlog.testing import capture_logs
from structlog.typing import EventDict

from kafka_throttle.proxy.server.fleet.fleet import Fleet
from kafka_throttle.quotas.entities import QuotaType
from kafka_throttle.quotas.share_rows import SharedRows
from kafka_throttle.quotas.shares.member import Member
from tests.fleet.clients import Balancer, Connection, Sent
from tests.fleet.ensemble import Ensemble, Traffic
from tests.fleet.events import PROCESS, Events, Process, SimulatedLoop
from tests.fleet.figures import ShareTimeline
from tests.fleet.instance import CLUSTER, Enforcing, InstanceClock, key_of, quota_table
from tests.fleet.judge import Enforced, Verdicts, broken_rule
from tests.fleet.plan import Fault, Plan
from tests.fleet.transport import Network, SimulatedTransport
from tests.live_fleet.figures import max_min

_JOIN_S: Final = 4.0
_BACK_MS: Final = 500
"""For how long an instance may take to notice that it has joined again, or that it stood still."""

_FAIR: Final = 0.85
"""Of its fair share everybody has this part at least, when nothing has changed for long."""


@dataclass
class Outcome:
    """What came of a plan."""

    plan: Plan
    traffic: Traffic
    broken: str | None = None
    sent: Sent = field(default_factory=Sent)
    shares: dict[int, ShareTimeline] = field(default_factory=lambda: defaultdict(ShareTimeline))
    events: int = 0
    history: list[str] = field(default_factory=list)
    """What has happened, if the world was asked to tell."""

    def units(self, entity: int) -> list[float]:
        """What went through in each second, in units."""
        return [self.sent.of_entity[entity][second] for second in range(self.plan.seconds)]

    def units_at(self, entity: int, instance: int) -> list[float]:
        """The same at one instance."""
        return [self.sent.at_instance[entity, instance][second] for second in range(self.plan.seconds)]


class Instance:
    """A place in the plan where an instance runs; each new process there is a new incarnation."""

    def __init__(self, world: "World", number: int) -> None:
        self._world = world
        self.number = number
        self.incarnation = 0
        self.is_open = False
        self.process = Process(world.events)
        self.process.kill()
        self.network = Network(world.events, world.rng, world.plan.latency_ms, world.plan.loss)
        self._outside_until_ms = 0
        self._inside_ms = 0
        self._shares: dict[int, float] = {}

    def start(self) -> None:
        """A new process, with sensors that have measured nothing."""
        world, plan = self._world, self._world.plan
        self.incarnation += 1
        self.process = Process(world.events)
        world.processes.append(self.process)
        speed = 1 + plan.drift * (2 * world.rng.random() - 1)
        clock = InstanceClock(world.events, world.rng.randrange(10**9), speed)
        self.enforcing = Enforcing(plan, world.table, clock)
        self.member_id = f"instance-{self.number}#{world.rng.randrange(10**8):08d}"
        self.transport = SimulatedTransport(
            world.events, world.ensemble, self.network, self.process, world.rng, clock.of
        )
        self.member = Member(
            self.member_id,
            plan.windows,
            plan.window_ms,
            clock.now_ms(),
            cut_off_ms=self.transport.cut_off_ms,
            assumed=plan.instances,
        )
        rows = SharedRows(self.enforcing.manager, self.enforcing.connections, CLUSTER, self.member)
        self.fleet = Fleet(CLUSTER, self.transport, self.member, rows, clock)
        self._shares.clear()
        self._opening = asyncio.get_running_loop().create_task(self._run(self.process))

    async def _run(self, process: Process) -> None:
        PROCESS.set(process)
        await self.fleet.join(_JOIN_S)
        self.is_open = True

    def end(self, in_order: bool) -> None:
        """The process ends: in order it leaves the fleet first, otherwise it is gone at once."""
        if self.process.is_alive:
            self.is_open = False
            if in_order:
                self.transport.leave()
            else:
                self.transport.kill()
            self.process.kill()
            self._world.lost(self.number)

    def owed_ms(self, entity: int) -> int:
        """How long a new connection of this entity waits."""
        return self.enforcing.owed_ms(entity)

    def charge(self, entity: int, amount: float) -> tuple[float, int]:
        """Take a request: what went through of it, and its throttle time in ms."""
        return self.enforcing.charge(entity, amount)

    def when_running(self, callback: Callable[..., None], *args: object) -> None:
        """Call now, or when the process runs again."""
        self.process.run(callback, *args)

    def enforced(self, entity: int, quota_type: QuotaType) -> Enforced:
        """What it enforces of this entity's limit: by its row, or what a new row would get."""
        share = self.member.share_of(key_of(entity, quota_type))
        if quota_type is not QuotaType.CONNECTION and (part := self.enforcing.part_enforced(entity)) is not None:
            share = part
        world, now_ms = self._world, self._world.events.now_ms
        is_deaf = now_ms - self.transport.heard_at_ms > world.plan.ensemble.session_timeout_ms
        if is_deaf or not world.ensemble.has_node(self.member_id):
            self._outside_until_ms = now_ms + _BACK_MS
        else:
            self._inside_ms = now_ms
        if share != self._shares.get(entity):
            self._shares[entity] = share
            world.outcome.shares[entity].add(now_ms, self.number, share)
            world.tell(f"entity {entity}: instance {self.number} enforces {share:.4f} ({self.member.state.value})")
        is_outside = now_ms < self._outside_until_ms or self.member.is_cut_off
        is_apart = now_ms > self._inside_ms + _BACK_MS
        return Enforced(self.number, share, is_outside, is_apart, self.member.members, self.member.is_known)


class World:
    """One run of a plan."""

    def __init__(
        self,
        plan: Plan,
        judged: Sequence[int] | None = None,
        judged_each_ms: int = 50,
        has_quiet_end: bool = False,
        tells: bool = False,
    ) -> None:
        """`judged` are the entities whose shares are looked at, without it all.

        With `has_quiet_end` nothing changes for so long before the end that all shares have to be fair then. With
        `tells` the outcome has the history of the run.
        """
        self.plan = plan
        self.has_quiet_end = has_quiet_end
        self.table = quota_table(plan)
        self._judged = range(len(plan.entities)) if judged is None else judged
        self._judged_each_ms = judged_each_ms
        self.rng = Random(plan.seed)
        self.events = Events()
        self.ensemble = Ensemble(self.events, plan.ensemble, self.rng)
        self.outcome = Outcome(plan, self.ensemble.traffic)
        self.processes: list[Process] = []
        self.instances = [Instance(self, number) for number in range(plan.instances)]
        self._tells = tells
        if tells:
            self.ensemble.on_change = self._tell_change
        self._verdicts = Verdicts(lambda: self.events.now_ms)
        self._balancer = Balancer(self.instances)
        self._connections: list[list[Connection]] = []
        self._over = asyncio.Event()
        self._types = [QuotaType(entity.quota_type) for entity in plan.entities]

    def run(self) -> Outcome:
        """Until the plan's end, or until something is broken."""
        loop = SimulatedLoop(self.events)
        with capture_logs(processors=[self._judge_line]):
            try:
                loop.run_until_complete(self._run())
            finally:
                loop.close()
        self.outcome.broken = self._verdicts.broken
        self.outcome.events = self.events.count
        return self.outcome

    async def _run(self) -> None:
        plan, events = self.plan, self.events
        starts_ms = plan.starts_ms or (0,) * plan.instances
        for instance, at_ms in zip(self.instances, starts_ms, strict=True):
            events.at(at_ms, self._start, instance)
        for load in plan.loads:
            limit = plan.entities[load.entity].limit
            of = events, self.rng, self.instances, self._balancer, load, limit, self.outcome.sent
            self._connections.append([Connection(*of) for _ in range(load.connections)])
        for fault in plan.faults:
            events.at(fault.at_ms, self._begin, fault)
        self._judge()
        events.at(plan.seconds * 1000, self._over.set)
        await self._over.wait()
        if self.has_quiet_end:
            self._verdicts.note(self._end_problem())
        await self._end()

    async def _end(self) -> None:
        """Let all coroutines end, those of processes that are gone, too."""
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for process in self.processes:
            process.revive()
        while tasks:
            # More than once: a wait_for that is just over takes a cancellation for nothing.
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=1)

    def tell(self, line: str) -> None:
        """Add to the history."""
        if self._tells:
            self.outcome.history.append(f"{self.events.now_ms / 1000:9.3f} {line}")

    def _tell_change(self, path: str, content: bytes | None) -> None:
        self.tell(f"  ordered: {path} is deleted" if content is None else f"  ordered: {content.decode()}")

    # ------------------------------------------------------------------- faults

    def _begin(self, fault: Fault) -> None:
        self.tell(f"{fault}")
        instance = self.instances[fault.instance]
        network, after = instance.network, self.events.after
        match fault.kind:
            case "kill" | "leave":
                if instance.process.is_alive and fault.for_ms:
                    after(fault.for_ms, self._start, instance)
                instance.end(in_order=fault.kind == "leave")
            case "cut":
                network.cut()
                after(fault.for_ms, network.mend)
            case "mend":
                network.mend()
            case "cut_up":
                network.up.cut()
                after(fault.for_ms, network.up.mend)
            case "cut_down":
                network.down.cut()
                after(fault.for_ms, network.down.mend)
            case "suspend":
                instance.process.suspend(fault.for_ms)
            case "down":
                self.ensemble.go_down(fault.for_ms)
            case "start":
                self._start(instance)
            case "open":
                self._balancer.open(fault.places)
                for number in range(self.plan.instances):
                    self.lost(number)
            case "demand":
                for connection in self._connections[fault.load]:
                    connection.change(fault.rate)
            case _:
                raise ValueError(f"expected a fault, got {fault.kind!r}")

    def _start(self, instance: Instance) -> None:
        if not instance.process.is_alive:
            instance.start()

    def lost(self, instance: int) -> None:
        """The connections to this instance are gone."""
        for connections in self._connections:
            for connection in connections:
                connection.lost(instance)

    # -------------------------------------------------------------------- judge

    def _judge(self) -> None:
        for entity in self._judged:
            problem = broken_rule(self._enforced(entity, self._types[entity]))
            if problem is not None:
                self._verdicts.note(f"entity {entity}: {problem}")
                self._over.set()
        self.events.after(self._judged_each_ms, self._judge)

    def _enforced(self, entity: int, quota_type: QuotaType) -> Iterator[Enforced]:
        for instance in self.instances:
            stood_still_ms = self.events.now_ms - instance.process.suspended_until_ms
            if instance.is_open and stood_still_ms > _BACK_MS:
                yield instance.enforced(entity, quota_type)

    def _end_problem(self) -> str | None:
        """What is not as it should be after a time in which nothing has happened."""
        living = [instance for instance in self.instances if instance.process.is_alive]
        for instance in living:
            member = instance.member
            if not member.is_known or member.members != len(living):
                return (
                    f"instance {instance.number} is {member.state.value} with {member.members} of {len(living)} members"
                )
        for entity in self._judged:
            if any(load.entity == entity and load.on_ms for load in self.plan.loads):
                continue  # what a load that comes and goes demands is a matter of taste
            key, demands = key_of(entity, self._types[entity]), self._demands(entity)
            fair = max_min([demands[instance.number] for instance in living], 1.0)
            for instance, due in zip(living, fair, strict=True):
                share = instance.member.share_of(key)
                if share < _FAIR * due:
                    return f"entity {entity}: instance {instance.number} has {share:.4f} where {due:.4f} is fair"
                if len(living) == 1 and share != 1:
                    return f"entity {entity}: instance {instance.number} is alone with a share of {share}"
        return None

    def _demands(self, entity: int) -> list[float]:
        """What the clients of an entity could use at each instance now, in limits."""
        demands = [0.0] * self.plan.instances
        for load, connections in zip(self.plan.loads, self._connections, strict=True):
            if load.entity == entity:
                for connection in connections:
                    demands[connection.instance] += connection.demand(self.events.now_ms)
        return demands

    def _judge_line(self, _logger: object, method: str, line: EventDict) -> EventDict:
        """The loop of an instance logs its own faults, and what it takes for the fault of another member."""
        self.tell(f"{line}")
        if method in ("error", "exception", "critical"):
            self._verdicts.note(f"logged: {line}")
            self._over.set()
        return line
