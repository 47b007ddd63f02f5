"""Measures what restarts of a proxy do to Kafka Streams and Kafka Connect, both exactly once, and to a client.

    python -m tests.applications --restart sigterm [--restart sigkill]... [--repeats 5] [--restarts 2]
                                 [--nodes 3] [--json FILE] [--logs FOLDER]

A real cluster of Kafka 4.3.1, one instance of the proxy, two instances of a Streams application that counts
(exactly_once_v2, a commit each 100 ms), two workers of Connect with a source of four tasks
(exactly.once.source.support), a producer that feeds, all through the proxy; and a client that connects and asks for
metadata every 50 ms. The proxy is restarted twice, 12 s apart, or more until that client has steady responses again: by
SIGTERM or SIGKILL and a start, or by SIGUSR2. Then all committed records are read at the nodes. A run takes about a
minute and a half.

Prints a line for each run and a table. With --json the runs are added to those of a file, and all are judged.
Exit status 1 if an output is not exact; if a client had no response for more than --most-outage-s after SIGTERM, or
the applications had more fenced producers and failed tasks than after SIGKILL (in the runs of both that there are); or
if a handover by SIGUSR2 had any such effect; or if the proxy has failed. 2 if a run did not come to an end.
"""

import argparse
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from demo.kafka_cluster import ClusterFailed, KafkaCluster
from kafka_throttle.common.jars import ToolMissing
from tests.applications.figures import MOST_OUTAGE_S, Run, line, problems, table
from tests.applications.programs import VERSION, ApplicationFailed
from tests.applications.restarting import RESTARTS
from tests.applications.rig import Rig
from tests.integration.proxy_process import ProxyFailed

_HEAP = "384m"


def say(words: str) -> None:
    """Progress, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser(
        prog="python -m tests.applications", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--restart", action="append", choices=RESTARTS, required=True)
    parser.add_argument("--repeats", type=int, default=1, help="runs of each kind (%(default)s)")
    parser.add_argument("--restarts", type=int, default=2, help="restarts in each run (%(default)s)")
    parser.add_argument("--nodes", type=int, choices=(1, 3), default=3, help="(%(default)s)")
    parser.add_argument("--most-outage-s", type=float, default=MOST_OUTAGE_S, help="(%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="add the runs to this file")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep all logs there")
    return parser.parse_args(arguments)


def read(file: Path | None) -> list[Run]:
    """The runs of a file."""
    if file is None or not file.exists():
        return []
    return [Run.from_json(kept) for kept in json.loads(file.read_text())]


def measure(options: argparse.Namespace, runs: list[Run]) -> None:
    """Add the runs that were asked for, one kind after the other in turn."""
    with KafkaCluster(VERSION, nodes=options.nodes, heap=_HEAP, say=say) as cluster:
        rig = Rig(cluster, options.restarts, options.logs, say)
        for _ in range(options.repeats):
            for how in options.restart:
                runs.append(run := rig.run(how))
                print(line(run), flush=True)
                if options.json is not None:
                    options.json.write_text(json.dumps([run.as_json() for run in runs], indent=1) + "\n")


def main() -> int:
    """As the head of this file says."""
    options = parse_options()
    signal.signal(signal.SIGTERM, _end)
    runs = read(options.json)
    try:
        measure(options, runs)
    except ProxyFailed as error:
        print(error, file=sys.stderr)
        return 1
    except (ApplicationFailed, ClusterFailed, ToolMissing) as error:
        print(error, file=sys.stderr)
        return 2
    found = problems(runs, options.most_outage_s)
    print("\n".join([table(runs), "", *(found or ["Exact, and no worse than it may be."])]))
    return 1 if found else 0


def _end(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
