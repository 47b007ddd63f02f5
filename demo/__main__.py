"""`python -m demo`, which `make run` starts."""

import sys
from pathlib import Path

import click

from demo.demo import run_demo


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", type=click.IntRange(5, 3_600), default=40, show_default=True, help="How long to run.")
@click.option("--json", "json_output", is_flag=True, help="Print one JSON object at the end.")
@click.option(
    "--record",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIRECTORY",
    help="Write usage records there, and go on until Ctrl-C: docs/reference/five-commands.md.",
)
def main(seconds: int, json_output: bool, record: Path | None) -> None:
    """Start a real cluster, the proxy, good and noisy clients, and show the throttle at work."""
    sys.exit(run_demo(seconds, json_output, record))


if __name__ == "__main__":
    main()
