"""Runs the DAG in a real Airflow, with a program in place of kafka-throttle, and prints which commands came to be run.

python -m tests.deploy.airflow_dag [--airflow VENV]     (installs Airflow, 400 MB, unless a venv has it)
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.deploy.tools import DEPLOY

VERSION = "3.3.2"
FIRST = {"ingest"}
THEN = FIRST | {"compact", "gaps", "report", "recommend"}
NIGHTS = (
    ({}, True, THEN | {"plan"}),
    ({"gaps": 1}, False, THEN | {"plan"}),
    ({"compact": 1}, False, THEN | {"plan"}),
    ({"report": 1}, False, THEN | {"plan"}),
    ({"recommend": 3}, True, THEN),
    ({"recommend": 1}, False, THEN),
    ({"ingest": 1}, False, FIRST),
)
"""The exit statuses of commands; whether the run succeeds then, and the commands that are run."""


def main() -> int:
    """Print a line for each night; 1 if any is not as expected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--airflow", type=Path)
    given = parser.parse_args().airflow
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        program = home / "program"
        program.write_text(f'#!/bin/sh\necho "$2" >> {home}/calls\neval exit \\${{STATUS_$2:-0}}\n')
        program.chmod(0o755)
        environment = {**os.environ, "AIRFLOW_HOME": folder, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
        environment |= {
            "NIGHTLY_PROGRAM": str(program),
            "NIGHTLY_RECOMMEND": "--by user",
            "NIGHTLY_PLAN": "-c proxy.yaml",
        }
        airflow = (given or _installed(home / "venv")).resolve() / "bin" / "airflow"
        (home / "dags").mkdir()
        text = (DEPLOY / "airflow" / "kafka_throttle_nightly.py").read_text()
        (home / "dags" / "nightly.py").write_text(text.replace('"retries": 2', '"retries": 0'))
        subprocess.run([airflow, "db", "migrate"], env=environment, check=True, capture_output=True)
        print(subprocess.run([airflow, "version"], env=environment, capture_output=True, text=True).stdout.strip())
        found = [_is_as_expected(airflow, home / "calls", environment, *night) for night in NIGHTS]
        return int(not all(found))


def _installed(venv: Path) -> Path:
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    subprocess.run([venv / "bin" / "pip", "install", "-q", f"apache-airflow=={VERSION}"], check=True)
    return venv


def _is_as_expected(
    airflow: Path, calls: Path, environment: dict[str, str], statuses: dict[str, int], succeeds: bool, run: set[str]
) -> bool:
    calls.unlink(missing_ok=True)
    set_ = {f"STATUS_{command}": str(status) for command, status in statuses.items()}
    test = [airflow, "dags", "test", "kafka_throttle_nightly"]
    done = subprocess.run(test, env={**environment, **set_}, capture_output=True, text=True)
    found = calls.read_text().split() if calls.exists() else []
    is_well = (done.returncode == 0, sorted(found)) == (succeeds, sorted(run))
    outcome = "succeeds" if done.returncode == 0 else "fails"
    print(f"{'as expected' if is_well else 'WRONG'}: {statuses or 'all well'}: {outcome} after {', '.join(found)}")
    if not is_well:
        print(done.stdout[-3_000:], done.stderr[-3_000:], sep="\n")
    return is_well


if __name__ == "__main__":
    sys.exit(main())
