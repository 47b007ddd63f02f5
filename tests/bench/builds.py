"""Measures functions of the deciding code on both builds: CPU time of a call, compiled and pure.

    KAFKA_THROTTLE_COMPILED=$(deploy/compiled.sh) python tests/bench/builds.py [--rounds 7]

Each round is a process of each build, in turn; figures are medians over the rounds, ratios medians of the ratios within
one round. The call of the function is in the time. Prints a Markdown table. Live, with sockets: speed.py, whose
candidate "kafka-throttle, pure" stands beside the build that the environment asks for.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from struct import pack

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from kafka_throttle.proxy.installed import build_in_use, take_build

CALLS = 20_000
BLOCKS = 5
_METADATA_VERSION = 9


def main() -> None:
    """Print the table; with `--measure`, the figures of this process as JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--measure", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        take_build()
        print(json.dumps({"build": build_in_use(), **{title: ns_of(call) for title, call in calls().items()}}))
        return
    rounds = [(measured("compiled"), measured("pure")) for _ in range(options.rounds)]
    print("| ns of CPU time | compiled | pure | compiled / pure |\n|---|---|---|---|")
    for title in rounds[0][0]:
        compiled, pure = ([figures[title] for figures in of_build] for of_build in zip(*rounds, strict=True))
        ratios = [one / other for one, other in zip(compiled, pure, strict=True)]
        print(
            f"| {title} | {statistics.median(compiled):.0f} | {statistics.median(pure):.0f} "
            f"| {statistics.median(ratios):.2f} ({min(ratios):.2f} - {max(ratios):.2f}) |"
        )


def measured(build: str) -> dict[str, float]:
    """By function, ns of CPU time of a call, in a process of this build."""
    environment = os.environ | {"KAFKA_THROTTLE_PURE": "1" if build == "pure" else ""}
    command = [sys.executable, __file__, "--measure"]
    done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    if figures.pop("build") != build:
        raise SystemExit("nothing is compiled: KAFKA_THROTTLE_COMPILED must name what deploy/compiled.sh prints")
    return figures


def ns_of(call: Callable[[int], object]) -> float:
    """The least CPU time of a call in a block, in ns. It is given a time in ms that goes on."""
    blocks = []
    for block in range(BLOCKS):
        began = time.process_time_ns()
        for number in range(block * CALLS, (block + 1) * CALLS):
            call(number // 50)
        blocks.append((time.process_time_ns() - began) / CALLS)
    return min(blocks)


def calls() -> dict[str, Callable[[int], object]]:
    """What is measured. Imported here: by now it is known which build runs."""
    from kafka_throttle.protocol.api_key import METADATA
    from kafka_throttle.protocol.api_table import APIS
    from kafka_throttle.protocol.frames import acks_at
    from kafka_throttle.protocol.primitives import Reader
    from kafka_throttle.protocol.splices import Splice, splice_frame
    from kafka_throttle.protocol.walk import Walk
    from kafka_throttle.quotas.request_costs import RequestCosts
    from kafka_throttle.quotas.sensors.token_buckets import TokenBuckets
    from kafka_throttle.quotas.sensors.windowed_rate import Sensors

    sensors, buckets, costs = Sensors(2), TokenBuckets(1), RequestCosts().of_node(1)
    free, full, bucket = sensors.open(1e15, 0), sensors.open(1000.0, 0), buckets.open(1e9, 0)
    shape = APIS[METADATA].shapes[_METADATA_VERSION - APIS[METADATA].min_version]
    assert shape is not None
    node = pack(">i", 1) + b"\x0alocalhost" + pack(">i", 9092) + b"\0\0"
    metadata = bytes(13) + b"\x04" + 3 * node + bytes(6)
    produce = bytes(12) + b"\x01" + bytes(187)

    def read_header(_now_ms: int) -> None:
        reader = Reader(produce, 4)
        reader.int16()
        reader.int32()
        reader.string()
        reader.uvarint()

    return {
        "charge far below a limit": lambda now_ms: sensors.charge(free, 100.0, now_ms),
        "charge that is throttled": lambda now_ms: sensors.charge(full, 100.0, now_ms),
        "charge of a token bucket": lambda now_ms: buckets.spend_permissively(bucket, 1.0, now_ms),
        "cost of a request": lambda _now_ms: costs.us(0, 200, 1),
        "acks of a Produce": lambda _now_ms: acks_at(produce, 12, 9, 200),
        "four fields of a header": read_header,
        "walk over Metadata with three nodes": lambda _now_ms: Walk(shape, 9).advance(metadata, 0),
        "splice of a frame": lambda _now_ms: splice_frame(produce, 196, [Splice(10, 14, b"abcd")]),
    }


if __name__ == "__main__":
    main()
