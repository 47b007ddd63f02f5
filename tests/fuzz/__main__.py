"""Fuzzes the parsers of what strangers send, guided by coverage, and tells how many inputs were tried.

    make fuzz [ARGS="--seconds 600 proxy-header"]

What it finds stays in build/fuzz/TARGET: `crash-*` are inputs that broke something. atheris: requirements-fuzz.lock.
"""

import argparse
import re
import subprocess
import sys

from tests.fuzz.targets import TARGETS
from tests.support.places import ROOT

_MAX_INPUT_BYTES = 5_000
_SLOW_INPUT_S = 10
_DONE = re.compile(r"^Done (\d+) runs in (\d+) second", re.M)
_COVERED = re.compile(r"cov: (\d+)")


def main() -> int:
    """0 if nothing was found."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__.partition("\n")[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)}; all without it")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--seed", type=int, default=1, help="of the random numbers (default: 1)")
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    print(f"{'target':18} {'inputs tried':>14} {'seeds':>6} {'branches':>9}  result")
    found = [not fuzz(name, options.seconds, options.seed) for name in options.targets or TARGETS]
    return 1 if any(found) else 0


def fuzz(name: str, seconds: int, seed: int) -> bool:
    """Fuzz one target in a process of its own and print a line about it; False if an input broke it."""
    folder = ROOT / "build" / "fuzz" / name
    seeds = folder / "seeds"
    seeds.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(TARGETS[name].seeds):
        (seeds / str(number)).write_bytes(data)
    found = folder / "found"
    found.mkdir(exist_ok=True)
    options = {
        "max_total_time": seconds,
        "max_len": _MAX_INPUT_BYTES,
        "timeout": _SLOW_INPUT_S,
        "seed": seed,
        "artifact_prefix": f"{folder}/",
    }
    command = [sys.executable, "-m", "tests.fuzz.one", name, *(f"-{key}={value}" for key, value in options.items())]
    done = subprocess.run(
        [*command, str(found), str(seeds)], cwd=ROOT, capture_output=True, text=True, errors="replace"
    )
    (folder / "log").write_text(done.stdout + done.stderr)
    reported = _DONE.findall(done.stderr)
    runs = int(reported[-1][0]) if reported else 0
    covered = _COVERED.findall(done.stderr)
    well = done.returncode == 0 and runs > 0
    result = "nothing found" if well else f"FAILED, see {folder}/log"
    print(
        f"{name:18} {runs:14,} {len(TARGETS[name].seeds):6} {covered[-1] if covered else '-':>9}  {result}", flush=True
    )
    return well


if __name__ == "__main__":
    sys.exit(main())
