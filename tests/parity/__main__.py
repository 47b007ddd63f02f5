"""Compares the proxy with a broker that enforces its own quotas, under the same clients and load at the same time.

    python -m tests.parity [--seconds 132] [--rate 500000] [--cells NAME,...] [--json FILE] [--plot FILE.webp]
    python -m tests.parity --tiny [--seconds 100] [--held 1] [--json FILE]
    python -m tests.parity --frames
    python -m tests.parity --groups [--seconds 150] [--clients sarama,java] [--fetch empty|paced]
                           [--batch-bytes 16000] [--json FILE]
    python -m tests.parity --connections [--seconds 66] [--fetch empty|paced] [--batch-bytes 16000]
    python -m tests.parity --pipelined
    python -m tests.parity --transactional [--seconds 45]

Every cell (see cells.py) has an entity of its own with a quota of `--rate` bytes/s and clients that always want more.
The clients of a cell start together on both sides, the cells one after the other within 11 s; bytes count as the
clients see them acknowledged or read, from their start to `--seconds` after it, so that the burst at the beginning
counts on both sides. Prints a Markdown table and a decision; the exit status is 1 if a cell's rate by its rate at the
broker lies outside 0.95 - 1.05. `--tiny` is the other end: a quota far below one request, at the proxy alone (tiny.py).
`--frames` compares single responses: the same frames at the same times at both (frames.py, fetch_frames.py).
`--groups` has three members each of four clients read over a fetch quota at both (groups.py).
`--connections` has one, ten and a hundred connections share a fetch quota at the proxy (fan_out.py).
`--pipelined` compares answers per second under request quotas, with 1 to 1,000 requests in flight (pipelined.py).
`--transactional` compares one producer that commits each 100 ms, on the wire (transactional.py).
"""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import chain
from pathlib import Path

from tests.parity import clients, fan_out, fetch_frames, frames, groups, pipelined, plot, report, tiny, transactional
from tests.parity.cells import Cell, chosen
from tests.parity.pulse import Pulse
from tests.parity.report import Comparison, Run, SideOfCell
from tests.parity.sides import Sides


def compare(cells: Sequence[Cell], rate: int, seconds: int, fetch_bytes: int) -> Run:
    """Run all cells at once on both sides."""
    with Sides(cells, rate) as sides, ExitStack() as closing:
        say(f"{len(cells)} cells, {2 * sum(cell.connections for cell in cells)} connections, {seconds} s")
        pairs = [
            [clients.connect(cell, *find(cell), seconds, fetch_bytes) for find in (sides.broker, sides.proxied)]
            for cell in cells
        ]
        both_sides = [[client for of_side in pair for client in of_side] for pair in pairs]
        for client in chain.from_iterable(both_sides):
            closing.callback(client.close)
        began_s = time.process_time()
        pulses = {place: closing.enter_context(Pulse(address)) for place, address in sides.places.items()}
        clients.run(both_sides, seconds)
        say(f"the clients took {(time.process_time() - began_s) / (seconds + clients.STARTS_OVER_S):.0%} of a core")
    comparisons = [
        Comparison(cell, *(SideOfCell.of([client.seen for client in of_side]) for of_side in pair))
        for cell, pair in zip(cells, pairs, strict=True)
    ]
    return Run(comparisons, rate, seconds, fetch_bytes, {place: pulse.took_ms for place, pulse in pulses.items()})


_FRAMES_AGREE = (
    "Every throttle time and every mute within 25 ms or 2 % of the broker's; "
    "each fetch has the same data, error and session."
)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seconds",
        type=int,
        help="132, a multiple of 11 s, Kafka's windows together; "
        "--tiny 100, --groups 150, --connections 66, --transactional 45",
    )
    parser.add_argument("--rate", type=int, default=500_000, help="the quota of each cell in bytes/s")
    parser.add_argument("--fetch-bytes", type=int, default=65_536, help="what a consumer asks for at a time")
    parser.add_argument("--cells", default="", help="only cells with one of these, separated by commas, in their name")
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--plot", type=Path, metavar="FILE.webp")
    parser.add_argument("--tiny", action="store_true", help="1 KB/s and requests of 1 MiB instead of the cells")
    parser.add_argument("--frames", action="store_true", help="the same frames at both sides instead of the cells")
    parser.add_argument("--groups", action="store_true", help="consumer groups of several clients instead of the cells")
    parser.add_argument("--clients", default="", help=f"with --groups: some of {','.join(groups.CLIENTS)}")
    modes = tuple(groups.MOST_SENT)
    parser.add_argument(
        "--fetch", default="paced", choices=modes, help="with --groups and --connections: throttle.fetch"
    )
    parser.add_argument(
        "--batch-bytes", type=int, default=groups.SMALL_BATCH_BYTES, help="with --groups and --connections"
    )
    parser.add_argument("--connections", action="store_true", help="many connections under one fetch quota instead")
    parser.add_argument("--pipelined", action="store_true", help="request quotas and requests in flight instead")
    parser.add_argument("--transactional", action="store_true", help="one producer that commits each 100 ms instead")
    parser.add_argument("--held", type=int, default=1, help="with --tiny: requests that each client has outstanding")
    options = parser.parse_args(arguments)
    try:
        options.cells = chosen(filter(None, options.cells.split(",")))
    except ValueError as error:
        parser.error(f"--cells: {error}")
    options.clients = list(filter(None, options.clients.split(","))) or list(groups.CLIENTS)
    if unknown := set(options.clients) - set(groups.CLIENTS):
        parser.error(f"--clients: expected some of {', '.join(groups.CLIENTS)}, got {', '.join(sorted(unknown))}")
    for file in filter(None, (options.json, options.plot)):
        file.parent.mkdir(parents=True, exist_ok=True)
    return options


def judge_cells(options: argparse.Namespace) -> bool:
    """Run, print and write what was asked for; whether all cells prove parity."""
    run = compare(options.cells, options.rate, options.seconds or 132, options.fetch_bytes)
    print(f"{report.table(run)}\n\n{report.decision(run)}")
    figures = report.as_json(run)
    if options.json:
        options.json.write_text(json.dumps(figures) + "\n")
    if options.plot:
        plot.draw(figures, options.plot)
    return run.good


def judge_tiny(options: argparse.Namespace) -> bool:
    """The same for the quota far below one request."""
    found, ended = tiny.measure(options.seconds or 100, options.held)
    problems = tiny.problems(found, ended)
    words = "\n".join(problems) or "One request per cap and connection, no time-outs, ten leave no more debt than one."
    print(f"{tiny.table(found)}\n\n{words}")
    if options.json:
        options.json.write_text(json.dumps(tiny.as_json(found, ended)) + "\n")
    return not problems


def judge_frames(options: argparse.Namespace) -> bool:
    """The same for single responses."""
    pairs, fetches = frames.measure(), fetch_frames.measure()
    found = frames.problems(pairs) + fetch_frames.problems(fetches)
    words = "\n".join(found) or _FRAMES_AGREE
    print(f"{frames.table(pairs)}\n\n{fetch_frames.table(fetches)}\n\n{words}")
    return not found


def judge_pipelined(options: argparse.Namespace) -> bool:
    """The same for requests in flight."""
    found = pipelined.measure()
    problems = pipelined.problems(found)
    print(f"{pipelined.table(found)}\n\n" + ("\n".join(problems) or "Requests in flight gain nothing."))
    return not problems


def judge_transactional(options: argparse.Namespace) -> bool:
    """The same for one producer that commits each 100 ms."""
    found = transactional.measure(seconds=options.seconds or transactional.SECONDS)
    problems = transactional.problems(found)
    print(f"{transactional.table(found)}\n\n" + ("\n".join(problems) or "As much is done at both."))
    return not problems


def judge_groups(options: argparse.Namespace) -> bool:
    """The same for consumer groups."""
    load = groups.Load(options.rate, options.seconds or 150, options.batch_bytes, options.fetch)
    found = groups.measure(options.clients, load)
    problems = groups.problems(found)
    words = "\n".join(problems) or "No group is worse off than it should be."
    print(f"{groups.table(found)}\n\n{words}")
    if options.json:
        groups.write(found, options.json)
    return not problems


def judge_connections(options: argparse.Namespace) -> bool:
    """The same for connections that share a fetch quota."""
    found = fan_out.measure(options.fetch, options.rate, options.seconds or 66, options.batch_bytes)
    problems = fan_out.problems(found)
    words = "\n".join(problems) or "The quota is used, and shared evenly; others are as fast as without it."
    print(f"{fan_out.table(found)}\n\n{words}")
    return not problems


_JUDGES = {
    "frames": judge_frames,
    "tiny": judge_tiny,
    "groups": judge_groups,
    "connections": judge_connections,
    "pipelined": judge_pipelined,
    "transactional": judge_transactional,
}


def main() -> int:
    options = parse_options()
    judge = next((judge for name, judge in _JUDGES.items() if getattr(options, name)), judge_cells)
    return 0 if judge(options) else 1


if __name__ == "__main__":
    sys.exit(main())
