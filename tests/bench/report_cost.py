"""Where the time of `usage report` goes: by the clock, with the Spark jobs, stages and tasks that it needs.

    python -m tests.bench.report_cost --minutes 4 --runs 3

Makes a table of so many minutes of invented records, then runs the command, each time in a new process as people do.
Spark's own log of events says when its jobs ran; the machine may be shared, so processor seconds of Java and Python are
counted, too. What a step takes beyond its jobs is the planning of queries, Python,
and, in the first step, the start of the JVM.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.bench.processes import family_of
from tests.pipeline.spools import write_many
from tests.support.places import ROOT

RECORDS_A_MINUTE = 3_600
IMPORTING, STARTING, ADDING, WRITING = "Python starts", "starting Spark", "adding up", "writing"
_STEP = re.compile(r"^\[\d+/\d+\] +[\d.]+ s  (?P<name>.*)$")


@dataclass(slots=True)
class Step:
    """One part of a run. `jobs_s` is the time in which at least one job of it ran."""

    name: str
    began_s: float
    ended_s: float = 0.0
    jobs: int = 0
    stages: int = 0
    tasks: int = 0
    jobs_s: float = 0.0
    cpu_s: float = 0.0

    @property
    def seconds(self) -> float:
        return self.ended_s - self.began_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=4)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "bench" / "report")
    arguments = parser.parse_args()
    table = table_of(arguments.folder, round(arguments.minutes * RECORDS_A_MINUTE))
    print(printed([run(table, arguments.folder) for _ in range(arguments.runs)]))


def table_of(folder: Path, rows: int) -> Path:
    """A table of so many records; made once."""
    table, spool = folder / f"table-{rows}", folder / "spool"
    if not table.exists():
        shutil.rmtree(spool, ignore_errors=True)
        write_many(spool, rows)
        ingest = [sys.executable, "-m", "proxy", "usage", "ingest", "--from", str(spool), "--table", str(table)]
        subprocess.run(ingest, cwd=ROOT, check=True)
    return table


def run(table: Path, folder: Path) -> list[Step]:
    """One report in a process of its own."""
    events = folder / "events"
    shutil.rmtree(events, ignore_errors=True)
    events.mkdir(parents=True)
    command = [sys.executable, "-m", "proxy", "usage", "report", "--table", table, "--out", folder / "out",
               "--conf", "spark.eventLog.enabled=true", "--conf", f"spark.eventLog.dir={events.as_uri()}",
               "--conf", "spark.eventLog.compress=false", "--conf", "spark.eventLog.rolling.enabled=false"]  # fmt: skip
    steps = [Step(IMPORTING, time.time())]
    with subprocess.Popen(list(map(str, command)), cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        threading.Thread(target=watch, args=(process, steps), daemon=True).start()
        assert process.stderr is not None
        for line in process.stderr:
            if found := _STEP.match(line):
                # Parts of the report are added up at the same time.
                name = found["name"] if found["name"] in (STARTING, WRITING) else ADDING
                if name != steps[-1].name:
                    steps[-1].ended_s = time.time()
                    steps.append(Step(name, steps[-1].ended_s))
    steps[-1].ended_s = time.time()
    assert process.returncode == 0
    [log] = events.iterdir()
    counted(steps, map(json.loads, log.read_text().splitlines()))
    return steps


def watch(process: subprocess.Popen[str], steps: list[Step]) -> None:
    """Add the processor time that the process and those below it use to the step that has begun, while they run."""
    before: dict[int, float] = {}
    while process.poll() is None:
        now = {number: one.seconds for number, one in family_of(process.pid).items()}
        steps[-1].cpu_s += sum(used - before.get(number, 0.0) for number, used in now.items())
        before |= now
        time.sleep(0.1)


def counted(steps: list[Step], events: Iterable[Mapping[str, Any]]) -> None:
    """Add to each step the jobs that began in it, and the stages and tasks that ran."""
    began: dict[int, tuple[Step, float]] = {}
    of_stage: dict[int, Step] = {}
    spans: list[tuple[Step, float, float]] = []
    for event in events:
        match event["Event"]:
            case "SparkListenerJobStart":
                at_s = event["Submission Time"] / 1_000
                step = next(one for one in reversed(steps) if one.began_s <= at_s)
                began[event["Job ID"]] = step, at_s
                of_stage |= dict.fromkeys(event["Stage IDs"], step)
                step.jobs += 1
            case "SparkListenerJobEnd":
                step, at_s = began[event["Job ID"]]
                spans.append((step, at_s, event["Completion Time"] / 1_000))
            case "SparkListenerStageCompleted":
                of_stage[event["Stage Info"]["Stage ID"]].stages += 1
            case "SparkListenerTaskEnd":
                of_stage[event["Stage ID"]].tasks += 1
    reached_s = 0.0
    for step, begin_s, end_s in sorted(spans, key=lambda span: span[1]):
        step.jobs_s += max(0.0, end_s - max(begin_s, reached_s))
        reached_s = max(reached_s, end_s)


def printed(runs: list[list[Step]]) -> str:
    """The medians as Markdown."""
    lines = [
        "| | seconds | of it in jobs | processor seconds | jobs | stages | tasks |",
        "|---|---|---|---|---|---|---|",
    ]
    total = [0.0] * 6
    for step in zip(*runs, strict=True):
        values = [
            statistics.median(getattr(one, name) for one in step)
            for name in ("seconds", "jobs_s", "cpu_s", "jobs", "stages", "tasks")
        ]
        total = [a + b for a, b in zip(total, values, strict=True)]
        lines.append(_line(step[0].name, values))
    return "\n".join([*lines, _line("all", total)])


def _line(name: str, values: list[float]) -> str:
    seconds, jobs_s, cpu_s, *counts = values
    return f"| {name} | {seconds:.1f} | {jobs_s:.1f} | {cpu_s:.1f} | {' | '.join(f'{count:.0f}' for count in counts)} |"


if __name__ == "__main__":
    main()
