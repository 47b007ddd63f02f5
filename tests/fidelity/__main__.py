"""Request time as the proxy charges it beside the `request-time` sensor of the broker behind it, for the same requests.

Prints a table of thread time per request, by API and level of load; exit status 1 if a ratio at half load is outside
0.8 - 1.25, or if anybody is charged for a node that stands still.
"""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from tests.fidelity import broker, page, report
from tests.fidelity import throttles as compared
from tests.fidelity.loads import Load, chosen
from tests.fidelity.proxied import FidelityProxy
from tests.fidelity.runs import HALF, IDLE, SATURATED, Bench, Measured

FROZEN_LOADS = ("Produce acks=1, 1 KiB", "Fetch, 16 KiB", "Fetch that waits", "Metadata")


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", multiple=True, metavar="NAME", help="Loads with this in their name; may be given again.")
@click.option("--rounds", default=3, show_default=True, help="How often each load is run at each level.")
@click.option("--kafka", default="4.3.1", show_default=True, type=click.Choice(["4.3.1", "3.9.2"]))
@click.option("--direct", is_flag=True, help="No proxy: the broker's thread time, and what its client sees.")
@click.option("--throttles", is_flag=True, help="Instead: throttles for request time here and there, of each API.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="FILE", help="All figures.")
@click.option("--page", "page_path", type=click.Path(path_type=Path), metavar="FILE", help="Write the page with them.")
def main(
    only: tuple[str, ...],
    rounds: int,
    kafka: str,
    direct: bool,
    throttles: bool,
    json_path: Path | None,
    page_path: Path | None,
) -> None:
    """Request time: what the proxy charges, beside what a broker measures."""
    if throttles:
        sys.exit(bool(_compare_throttles(kafka)))
    try:
        loads = chosen(only)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--only") from None
    found, costs = measure(loads, rounds, kafka, direct)
    if json_path:
        json_path.write_text(json.dumps(report.as_json(found, costs), indent=1) + "\n")
    if direct:
        print(report.service_table(found))
        return
    if page_path:
        page_path.write_text(page.page(found, kafka, rounds))
    problems = report.problems(found)
    print(f"{report.table(found)}\n\n{report.frozen_table(found)}\n")
    print("\n".join(problems) or "At half load every ratio is within 0.8 - 1.25; a frozen node charges nobody.")
    sys.exit(bool(problems))


def _compare_throttles(kafka: str) -> list[str]:
    """Print what both said and did; what is not as it should be."""
    both = compared.measure(kafka)
    problems = compared.problems(both, compared.WITHIN_MS, (report.LOWEST_RATIO, report.HIGHEST_RATIO))
    words = f"Every mute is as long as was said, within {compared.WITHIN_MS} ms, and one window at most."
    print(f"{compared.table(both)}\n\n" + ("\n".join(problems) or words))
    return problems


def measure(
    loads: Sequence[Load], rounds: int, kafka: str, direct: bool, levels: Sequence[str] = (HALF, SATURATED, IDLE)
) -> tuple[list[Measured], Any]:
    """Run all loads at these levels; and the proxy's model at the end, None without one."""
    found = [Measured(load) for load in loads]
    with ExitStack() as stack:
        measured = stack.enter_context(broker.start(kafka))
        proxy = None if direct else stack.enter_context(FidelityProxy(measured))
        bench = Bench(measured, proxy)
        for each in found:
            bench.warm_up(each)
            say(f"warm: {each.load.name}, {each.rates[SATURATED]:.0f} requests/s")
        if direct:
            bench.log(found)
        for number in range(rounds):
            for level in levels:
                bench.run(found, level)
            say(f"round {number + 1} of {rounds}")
        for each in found:
            if each.load.name in FROZEN_LOADS:
                bench.freeze(each)
        return found, proxy.costs(measured.node_id) if proxy else None


def say(line: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
