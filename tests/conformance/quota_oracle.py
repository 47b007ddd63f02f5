"""Kafka's own ClientQuotaManager beside our Ledger, on the same random script under the same clock."""

import random
import struct
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from proxy.demo.jars import kafka_jars, need_program
from quotas.entities import DEFAULT, Entity, QuotaType, SensorTags
from quotas.ledger import Ledger, SensorKey
from quotas.quota_table import QuotaTable
from quotas.sensors import MAX_THROTTLE_MS, Sensors

ORACLE = Path(__file__).parents[1] / "java" / "QuotaOracle.java"
FORGETFUL = {"4.3.1"}
"""Versions that forget a kind of entity when its last quota is removed. 3.9 remembers it until a restart, and so do we;
it decides under which tags clients without a quota are measured. Here a quota of each kind always stays."""

USERS = ["alice", "bob", "carol", "dave", "ANONYMOUS", "CN=x,O=y"]
CLIENT_IDS = ["etl", "app", "web", "a b", "<default>", ""]


@dataclass(slots=True)
class Charge:
    """A value at a time."""

    time_ms: int
    user: str
    client_id: str
    value: float


@dataclass(slots=True)
class QuotaChange:
    """A new limit for an entity, None to remove it. `user` and `client_id` as in an Entity."""

    time_ms: int
    entity: Entity
    limit: float | None


ANCHORS = [Entity(user="anchor"), Entity(client_id="anchor"), Entity("anchor", "anchor")]


def random_script(seed: int, events: int, fractions: float, anchored: bool) -> Iterator[Charge | QuotaChange]:
    """Charges and quota changes over all levels; `fractions` is the share of charges that are not whole.

    Limits are at least 10,000/s and values at most 10^7, so that no delay passes int32 (a broker would wrap it, we cut
    it: quota-semantics 4). Gaps stay below the hour after which a broker drops a sensor.
    """
    rng = random.Random(seed)
    now_ms = 1_000_000
    limited: set[Entity] = set()
    if anchored:
        yield from (QuotaChange(now_ms, entity, 1e6) for entity in ANCHORS)
    for i in range(events):
        now_ms += rng.choice((0, 0, 1, 7, 40, 250, 999, 1000)) if rng.random() < 0.97 else rng.randrange(30_000)
        if i % 400 == 0:
            yield _random_change(rng, now_ms, limited)
        value = min(float(int(rng.lognormvariate(8, 2))), 1e7)
        if rng.random() < fractions:
            value = rng.random() * 10 ** rng.randrange(6)
        yield Charge(now_ms, rng.choice(USERS), rng.choice(CLIENT_IDS), value)


def _random_change(rng: random.Random, now_ms: int, limited: set[Entity]) -> QuotaChange:
    """Set the quota of any entity, or remove one that is set (Kafka also notes the kind of one that never was)."""
    if limited and rng.random() < 0.4:
        entity = rng.choice(sorted(limited, key=str))
        limited.remove(entity)
        return QuotaChange(now_ms, entity, None)
    while True:
        user = rng.choice([None, None, DEFAULT, *USERS])
        client_id = rng.choice([None, None, DEFAULT, *filter(None, CLIENT_IDS)])
        if user is not None or client_id is not None:
            break
    entity = Entity(user, client_id)
    limited.add(entity)
    return QuotaChange(now_ms, entity, float(int(10 ** rng.uniform(4, 7))))


@dataclass(slots=True)
class Answer:
    """What a charge gave: its throttle time, the bits of the rate after it, and the tags of its sensor."""

    throttle_time_ms: int
    rate_bits: int
    tags: SensorTags


def our_answers(script: Iterable[Charge | QuotaChange], samples: int = 11, window_s: int = 1) -> Iterator[Answer]:
    """What our ledger says to each charge, with the cap lifted out of the way."""
    sensors = Sensors(1000, samples, window_s * 1000, max_throttle_ms=MAX_THROTTLE_MS)
    limits: dict[Entity, dict[QuotaType, float]] = {}
    table = QuotaTable({})
    ledger = Ledger(sensors, table)
    for event in script:
        if isinstance(event, QuotaChange):
            limits.pop(event.entity, None)
            if event.limit is not None:
                limits[event.entity] = {QuotaType.PRODUCE: event.limit}
            table = QuotaTable(limits).succeeding(table)
            ledger.replace(table, event.time_ms)
            continue
        tags = table.tags_and_limit(QuotaType.PRODUCE, event.user, event.client_id).tags
        binding = ledger.bind("main", 1, event.user, event.client_id, event.time_ms)
        assert binding.produce is not None
        throttle_time_ms = sensors.charge(binding.produce, event.value, event.time_ms)
        reading = ledger.reading(SensorKey("main", 1, QuotaType.PRODUCE, tags), event.time_ms)
        assert reading is not None
        yield Answer(throttle_time_ms, struct.unpack(">Q", struct.pack(">d", reading.rate))[0], tags)


def differences(version: str, folder: Path, seed: int, events: int, fractions: float, samples: int = 11) -> list[str]:
    """Charges that Kafka's class of this version and our ledger answer differently, told in words; must be empty."""
    script = list(random_script(seed, events, fractions, anchored=version in FORGETFUL))
    ours = list(our_answers(script, samples))
    theirs = kafka_answers(version, script, ours, folder, samples)
    charges = [event for event in script if isinstance(event, Charge)]
    assert len(charges) == len(ours) == len(theirs) == events
    return [
        f"{charge}: Kafka {kafka}, we {answer}"
        for charge, answer, kafka in zip(charges, ours, theirs, strict=True)
        if kafka != f"{answer.throttle_time_ms}\t{answer.rate_bits:x}"
    ]


def kafka_answers(
    version: str, script: Iterable[Charge | QuotaChange], ours: Iterable[Answer], folder: Path, samples: int
) -> list[str]:
    """What Kafka's class says to each charge: throttle time, tab, rate as hexadecimal bits."""
    java = need_program("java", "openjdk-17-jdk-headless")
    answers = iter(ours)
    with (folder / "script").open("w") as file:
        file.writelines(_line(event, answers) for event in script)
    command = [java, "-cp", f"{kafka_jars(version)}/*", str(ORACLE), str(folder / "script"), str(folder / "answers")]
    done = subprocess.run([*command, str(samples), "1"], capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return (folder / "answers").read_text().splitlines()


def _line(event: Charge | QuotaChange, answers: Iterator[Answer]) -> str:
    if isinstance(event, Charge):
        tags = next(answers).tags
        names = ("u" if tags.user else "") + ("c" if tags.client_id else "")
        return f"C\t{event.time_ms}\t{event.user}\t{event.client_id}\t{event.value!r}\t{names}\n"
    entity = [
        "-" if name is None else "*" if name is DEFAULT else name
        for name in (event.entity.user, event.entity.client_id)
    ]
    limit = "-" if event.limit is None else repr(event.limit)
    return f"Q\t{event.time_ms}\t{entity[0]}\t{entity[1]}\t{limit}\n"
