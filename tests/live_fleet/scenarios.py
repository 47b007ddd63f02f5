"""What is done to a fleet while its clients want as much as they can get."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from tests.live_fleet.load import WITH_DEFAULT_FETCH

Kind = Literal["produce", "fetch"]


@dataclass(frozen=True)
class LoadClient:
    """A client of every side. `demand`: part of the limit, None: as fast as can be. `at`: the instance it is led to."""

    name: str
    library: str
    kind: Kind
    demand: float | None = None
    at: int | None = None


@dataclass(frozen=True)
class Event:
    """Something done at a second of the run; `instance` counts from 1.

    open: new connections go to `instances` only, and all that are there are cut, on each side. demand: a client's
    changes. kill, start: SIGKILL, and a new process. cut, join: between an instance and ZooKeeper.
    """

    at: float
    action: Literal["open", "demand", "kill", "start", "cut", "join"]
    instances: tuple[int, ...] = ()
    client: str = ""
    rate: float | None = None

    @property
    def words(self) -> str:
        """For the plot."""
        which = " and ".join(map(str, self.instances))
        if self.action == "demand":
            return f"{self.client}: {'all it can get' if self.rate is None else f'{self.rate:.0%} of the limit'}"
        return {
            "open": f"all to {which}",
            "kill": f"{which} killed",
            "start": f"{which} started",
            "cut": f"{which} cut off",
            "join": f"{which} back",
        }[self.action]


@dataclass(frozen=True)
class Scenario:
    """A run of so many seconds with so many instances. Without `fleet` they know nothing of one another."""

    name: str
    title: str
    instances: int
    seconds: int
    events: tuple[Event, ...] = ()
    open_first: tuple[int, ...] = ()
    clients: tuple[LoadClient, ...] = field(default_factory=lambda: MIXED)
    fleet: bool = True

    def as_json(self) -> dict[str, Any]:
        """Plain data."""
        return {**asdict(self), "events": [{**asdict(event), "words": event.words} for event in self.events]}

    @property
    def kinds(self) -> list[Kind]:
        """Of its clients."""
        return sorted({client.kind for client in self.clients}, reverse=True)


MIXED = (
    *(LoadClient(f"librdkafka-{number}", "librdkafka", "produce") for number in (1, 2, 3, 4)),
    LoadClient("java", "java", "produce"),
    LoadClient("kafka-python", "kafka-python", "produce"),
    *(LoadClient(f"reader-{number}", "librdkafka", "fetch") for number in (1, 2, 3, 4)),
    *(LoadClient(f"python-reader-{number}", "kafka-python", "fetch") for number in (1, 2)),
)
"""Six of each kind: they divide evenly among two and among three instances."""


def _one_each(*demands: float | None) -> tuple[LoadClient, ...]:
    return tuple(
        LoadClient(f"client {at}", "librdkafka", "produce", demand, at) for at, demand in enumerate(demands, start=1)
    )


def _moving(instances: int, seconds: int, every: int = 20) -> tuple[Event, ...]:
    return tuple(
        Event(at, "open", (1 + number % instances,)) for number, at in enumerate(range(every, seconds, every), start=1)
    )


_KILLED = (Event(40, "kill", (2,)), Event(70, "start", (2,)))
_CUT_OFF = (Event(40, "cut", (2,)), Event(80, "join", (2,)))

_TWO_READERS = tuple(LoadClient(f"reader {at}", WITH_DEFAULT_FETCH, "fetch", at=at) for at in (1, 2))

SCENARIOS: Sequence[Scenario] = (
    Scenario("before", "two instances without a fleet, load on both", 2, 66, fleet=False),
    Scenario("one of two", "two instances, load on one", 2, 66, open_first=(1,)),
    Scenario("spread over two", "two instances, load on both", 2, 88),
    Scenario("moving, two", "two instances, load moved every 20 s", 2, 310, _moving(2, 310), (1,)),
    Scenario("spread over three", "three instances, load on all", 3, 88),
    Scenario("moving, three", "three instances, load moved every 20 s", 3, 310, _moving(3, 310), (1,)),
    Scenario("killed", "three instances, one killed and started again", 3, 110, _KILLED),
    Scenario("cut off", "three instances, one cut off from ZooKeeper", 3, 120, _CUT_OFF),
    Scenario(
        "demand",
        "three instances, one client at each, demands change",
        3,
        130,
        (
            Event(40, "demand", client="client 1"),
            Event(70, "demand", client="client 3", rate=0.0),
            Event(100, "demand", client="client 3"),
        ),
        clients=_one_each(0.1, None, None),
    ),
    Scenario("two readers", "two instances, one reader at each", 2, 88, clients=_TWO_READERS),
)


def shortened(scenario: Scenario, part: float) -> Scenario:
    """The same with all times multiplied."""
    events = tuple(Event(**{**asdict(event), "at": round(event.at * part)}) for event in scenario.events)
    return Scenario(**{**vars(scenario), "seconds": round(scenario.seconds * part), "events": events})
