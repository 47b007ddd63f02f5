"""docs/proofs/request-time.md: the tables of a run, and how to read them."""

import os
from collections.abc import Sequence
from pathlib import Path

from tests.fidelity import report
from tests.fidelity.runs import FREEZE_S, Measured

_PAGE = """\
# Request time, beside a broker's own

What the proxy charges for requests under a `request_percentage` quota, beside what the broker behind it measures for
the same requests with its own `request-time` sensor.

```
python -m tests.fidelity --page docs/proofs/request-time.md    # this page; --only NAME, --json FILE
python -m tests.fidelity --direct                              # no proxy: the broker's time, what its client sees
```

Kafka {kafka} and the proxy on a machine of {cpus} ({model}),
which the client and the cluster of two nodes share. Rounds: {rounds}; the median, and in brackets the least and the
most of a round. A ratio is of the same requests, the median of the rounds.

## Thread time per request

{table}

## A node that stands still

The node's process was stopped (SIGSTOP) for {freeze_ms:.0f} ms, while eight connections sent 50 requests/s (25 had a
Fetch waiting). What was charged beyond the cost of as many requests of a run without that, in ms of thread time, all
of them together.

{frozen}

## Reading it

- In each run a load has a client-id of its own, and so a sensor of its own on both sides; all quotas are so high that
  they throttle nobody. A sensor tells a rate, which is turned back into the sum that it was made of, and divided by
  the number of requests that were sent.
- The broker's is the time of its handler thread and its network thread, by the clock: on a busy machine that includes
  waiting for a core. Ours is the smaller of what was observed and what the model of the node says.
- *idle*: 5 requests/s of each API, nearly all of them at the same time. *saturation*: eight connections (four with five
  requests under way if *pipelined*; one hundred where a Fetch waits) ask again as soon as they are answered. *half
  load*: half of that rate.
- Produce with acks=0 is exempt on both sides: what is compared is the time that nobody pays for.
- *CreateTopics* is of one topic of one partition. The node is not the active controller, and hands it on.
- Goal: a ratio of 0.8 - 1.25 at half load.{problems}
"""


def page(loads: Sequence[Measured], kafka: str, rounds: int) -> str:
    """The page as Markdown."""
    missed = "".join(f"\n  - not met: {problem}" for problem in report.problems(loads))
    return _PAGE.format(
        kafka=kafka,
        cpus=f"{os.cpu_count()} cores",
        model=_cpu_model(),
        rounds=rounds,
        table=report.table(loads),
        freeze_ms=FREEZE_S * 1000,
        frozen=report.frozen_table(loads),
        problems=missed,
    )


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "of an unknown kind"
