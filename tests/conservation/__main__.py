"""`python -m tests.conservation`: every record through the proxy is accounted for, while everything around it breaks.

Without --records and --seconds it goes on in rounds of five minutes until it is interrupted. Exit status 1 when a
record was lost, doubled (by anybody but librdkafka itself: doubles.py), out of order or corrupt, or the proxy has
erred; 2 when the checker or the cluster has failed.
"""

import argparse
import json
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from demo.kafka_cluster import ClusterFailed
from kafka_throttle.common.jars import ToolMissing
from tests.conservation.checker import KINDS, Round, cluster_behind_the_wire
from tests.conservation.clients import ChildFailed
from tests.conservation.faults import FaultFailed
from tests.conservation.printout import describe
from tests.integration.proxy_process import ProxyFailed

_ROUND_RECORDS = 1_000_000
_ROUND_S = 300.0


def _say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _parts(records: int, seconds: float) -> Iterator[tuple[int, float]]:
    """Records and seconds of each round: a round's data has to be kept until it is checked."""
    if records:
        yield from ((min(_ROUND_RECORDS, records - done), 0.0) for done in range(0, records, _ROUND_RECORDS))
    elif seconds:
        count = max(1, round(seconds / _ROUND_S))
        yield from [(0, seconds / count)] * count
    else:
        while True:
            yield 0, _ROUND_S


def _arguments() -> argparse.Namespace:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.conservation", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--records", type=int, default=0, help="how many records in all")
    length.add_argument("--seconds", type=float, default=0.0, help="for how long to produce")
    parser.add_argument("--rate", type=float, default=2500.0, help="records/s of all producers together (%(default)s)")
    parser.add_argument("--kafka", choices=KINDS, default="4.3.1-kraft", help="(%(default)s)")
    parser.add_argument("--seed", type=int, default=None, help="what goes wrong follows from it; random by default")
    parser.add_argument(
        "--direct", action="store_true", help="without the proxy: is a violation a client's or Kafka's?"
    )
    parser.add_argument("--json", type=Path, default=None, help="write the reports of all rounds there as a JSON list")
    return parser.parse_args()


def main() -> int:
    """Run rounds; return the exit status."""
    arguments = _arguments()
    seed = random.SystemRandom().getrandbits(32) if arguments.seed is None else arguments.seed
    signal.signal(signal.SIGTERM, _end)
    reports = []
    try:
        with cluster_behind_the_wire(arguments.kafka, _say) as cluster:
            _say(f"{cluster}, seed {seed}")
            for number, (records, seconds) in enumerate(_parts(arguments.records, arguments.seconds), start=1):
                one = Round(
                    cluster,
                    arguments.kafka,
                    seed,
                    number=number,
                    records=records,
                    seconds=seconds,
                    per_second=arguments.rate,
                    direct=arguments.direct,
                    say=_say,
                )
                try:
                    reports.append(report := one.run())
                except BaseException:
                    _say(f"the logs of the unfinished round are in {one.folder}")
                    raise
                print(describe(report, one.folder), flush=True)
                if arguments.json is not None:
                    arguments.json.write_text(json.dumps([report.as_json() for report in reports], indent=1))
                if report.violations:
                    return 1
    except ProxyFailed as error:
        print(error, file=sys.stderr)
        return 1
    except (ToolMissing, ClusterFailed, ChildFailed, FaultFailed, TimeoutError) as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    return 0


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
