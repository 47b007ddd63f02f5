"""Spools as a proxy leaves them: a fleet of clients over days, one of whom does half of everything.

python -m tests.pipeline.spools FOLDER --rows 10000000
"""

import argparse
import itertools
import math
import multiprocessing
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from zlib import crc32

from kafka_throttle.pipeline.spark.day import DAY_MS
from kafka_throttle.quotas.records.usage_record import (
    USAGE,
    VERSION,
    End,
    Header,
    Row,
    TraceEvent,
    UsageRecord,
    columns,
    line_of,
)

MONDAY_MS = 1_792_972_800_000
"""2026-10-26, 00:00 UTC."""
TYPES = ("produce", "fetch", "request")
BIG = "big"
"""The user with half of all records."""


@dataclass(frozen=True)
class Fleet:
    """Who is there: `entities` users; `big` has `share` of all records, under many client-ids."""

    entities: int = 1_000
    share: float = 0.5
    per_window: int = 600
    """Records in an average window; by night fewer, by day more."""
    window_ms: int = 10_000
    begin_ms: int = MONDAY_MS
    virtual_clusters: tuple[str, ...] = ("main",)
    nodes: int = 3
    seed: int = 7
    instance: str = "proxy-1"
    epoch: int = MONDAY_MS - 5_000
    first_sequence: int = 1


def by_day(ms: int) -> float:
    """How busy it is at that time of the day, 1 on average: 0.4 at four in the night, 1.6 twelve hours later."""
    return 1 - 0.6 * math.cos(2 * math.pi * (ms % DAY_MS - DAY_MS / 6) / DAY_MS)


def value_rows(fleet: Fleet) -> Iterator[dict[str, object]]:
    """The values of one record after the other, without end."""
    chance = random.Random(fleet.seed)
    sequence = itertools.count(fleet.first_sequence)
    for begin_ms in itertools.count(fleet.begin_ms, fleet.window_ms):
        busy = by_day(begin_ms)
        for _ in range(max(1, round(fleet.per_window * busy))):
            is_big = chance.random() < fleet.share
            # Squared: a few do much, most do little.
            number = int(chance.random() ** 2 * (fleet.entities - 1)) + 1
            kind = chance.randrange(3)
            limit = (2_000_000.0, 4_000_000.0, 50.0)[kind] if is_big or number % 3 else None
            load = busy * (2.2 if is_big else 40 / (20 + number)) * (0.5 + chance.random())
            per_second = load * (1_000_000.0, 2_000_000.0, 25.0)[kind]
            seconds = fleet.window_ms / 1000
            over = 0.0 if limit is None else max(0.0, per_second / limit - 1)
            used = round(per_second / (1 + over) * seconds, 3 if kind == 2 else 0)
            requests = max(1, int(load * 80))
            yield {
                "instance": fleet.instance,
                "epoch": fleet.epoch,
                "sequence": next(sequence),
                "begin_ms": begin_ms,
                "end_ms": begin_ms + fleet.window_ms,
                "virtual_cluster": fleet.virtual_clusters[number % len(fleet.virtual_clusters)],
                "node_id": chance.randrange(fleet.nodes),
                "user": BIG if is_big else f"user-{number}",
                "client_id": f"big-{number}" if is_big else f"app-{number % 7}",
                "ip": "",
                "quota_type": TYPES[kind],
                "used": used,
                "peak": round(per_second * (1 + chance.random()), 2),
                "requests": requests,
                "in_bytes": int(used) + 60 * requests if kind == 0 else 90 * requests,
                "out_bytes": int(used) + 40 * requests if kind == 1 else 70 * requests,
                "throttles": int(over * 10),
                "throttled_ms": int(over * 10) * 400,
                "backlogged_ms": int(over * 10) * 300,
                "limit": limit,
                "rule": "" if limit is None else f"user={BIG if is_big else '<default>'}",
                "shadow_limit": None,
                "shadow_rule": "",
                "shadow_throttles": 0,
                "shadow_throttled_ms": 0,
                "unsent_bytes": 0,
                "muted_ms": 0,
                "profile": "",
                "scope": "node",
                "share": 1.0,
            }


def records(fleet: Fleet, count: int) -> list[UsageRecord]:
    return [UsageRecord(**values) for values in itertools.islice(value_rows(fleet), count)]


def event(sequence: int, **changes: object) -> TraceEvent:
    values: dict[str, object] = dict.fromkeys(columns(TraceEvent), 0)
    texts = dict.fromkeys(("virtual_cluster", "user", "client_id", "ip", "rule"), "x")
    values |= {**texts, "instance": "proxy-1", "epoch": 3, "sequence": sequence, "operation": "charge"}
    values |= {"quota_type": "produce", "value": -1.5, "limit": None, "wall_ms": MONDAY_MS + sequence}
    return TraceEvent(**(values | changes))  # type: ignore[arg-type]


def file_name(row: type[Row], instance: str, epoch: int, number: int) -> str:
    return f"{row.KIND}-{instance}-{epoch}-{number:08d}.tsv"


def write_spool(folder: Path, rows: Iterable[Row], per_file: int = 1_000, first_file: int = 1) -> list[Path]:
    """Files of so many records each, as a proxy leaves them; all rows are of one writer."""
    folder.mkdir(parents=True, exist_ok=True)
    paths, left = [], iter(rows)
    for number in itertools.count(first_file):
        if not (batch := list(itertools.islice(left, per_file))):
            return paths
        paths.append(write_file(folder, batch, number))
    raise AssertionError


def write_file(folder: Path, batch: list[Row], number: int) -> Path:
    first = batch[0]
    path = folder / file_name(type(first), first.instance, first.epoch, number)
    path.write_text("".join(map(line_of, framed(batch, number))), encoding="utf-8", newline="")
    return path


def framed(batch: list[Row], number: int) -> list[Row]:
    """The rows of a file, with its header and its end."""
    first, last = batch[0], batch[-1]
    header = header_of(first.KIND, first.instance, first.epoch, number, first.sequence)
    return [header, *batch, end_of(header, len(batch), last.sequence + 1)]


def header_of(stream: str, instance: str, epoch: int, number: int, first_sequence: int) -> Header:
    return Header(stream=stream, instance=instance, epoch=epoch, file=number, first_sequence=first_sequence, flush_ms=0)


def end_of(header: Header, count: int, next_sequence: int) -> End:
    """The end of a file that is not the last one."""
    return End(
        records=count,
        next_sequence=next_sequence,
        final=0,
        stream=header.stream,
        instance=header.instance,
        epoch=header.epoch,
        beside=0,
    )


# --------------------------------------------------------------------- many


def write_many(folder: Path, rows: int, per_file: int = 100_000, processes: int = 2, fleet: Fleet = Fleet()) -> None:
    """So many records in files of `per_file`, each file from a chance of its own, in the order of time."""
    folder.mkdir(parents=True, exist_ok=True)
    windows = per_file / fleet.per_window
    jobs = [
        (folder, min(per_file, rows - first), number, int(windows * (number - 1)) * fleet.window_ms, first, fleet)
        for number, first in enumerate(range(0, rows, per_file), 1)
    ]
    with multiprocessing.Pool(processes) as pool:
        pool.starmap(_write_fast, jobs, chunksize=1)


def _write_fast(folder: Path, count: int, number: int, after_ms: int, before: int, fleet: Fleet) -> None:
    """As write_file, without an object for each record."""
    mine = Fleet(
        **{
            **{column.name: getattr(fleet, column.name) for column in fields(Fleet)},
            "begin_ms": fleet.begin_ms + after_ms,
            "seed": fleet.seed + number,
            "first_sequence": before + 1,
        }
    )
    assert list(next(value_rows(mine))) == list(columns(UsageRecord))
    header = header_of(USAGE, fleet.instance, fleet.epoch, number, before + 1)
    path = folder / file_name(UsageRecord, fleet.instance, fleet.epoch, number)
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(line_of(header))
        for values in itertools.islice(value_rows(mine), count):
            texts = ["\\N" if value is None else str(value) for value in values.values()]
            body = "\t".join([str(VERSION), USAGE, *texts])
            file.write(f"{body}\t{crc32(body.encode()):08x}\n")
        file.write(line_of(end_of(header, count, before + count + 1)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--per-file", type=int, default=100_000)
    arguments = parser.parse_args()
    write_many(arguments.folder, arguments.rows, arguments.per_file)
