"""A DAG for Airflow 3: what deploy/nightly.sh does, each command a task. Copy it into the folder of DAGs.

The workers need the pipeline (docs/reference/pipeline.md), the table and the spool. `gaps` fails if records are
missing: the run has failed then, and `report` is made all the same. The environment of the DAG processor has the
settings.
"""

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG

PROGRAM = os.environ.get("NIGHTLY_PROGRAM", "/opt/kafka-throttle/bin/kafka-throttle")
TABLE = os.environ.get("NIGHTLY_TABLE", "/srv/kafka-throttle/table")
OUT = os.environ.get("NIGHTLY_OUT", "/srv/kafka-throttle/nightly")
INGEST = os.environ.get("NIGHTLY_INGEST", "--from /srv/kafka-throttle/usage")
REPORT = os.environ.get("NIGHTLY_REPORT", "--since -9w")
RECOMMEND = os.environ.get("NIGHTLY_RECOMMEND", "")
PLAN = os.environ.get("NIGHTLY_PLAN", "")
SPARK = os.environ.get("NIGHTLY_SPARK", "")
KEEP_DAYS = os.environ.get("NIGHTLY_KEEP_DAYS", "")

NOTHING = 3
"""The exit status of `recommend` if nothing is recommended; the task is then skipped, and so is `plan`."""


def usage(command: str, options: str, **settings: Any) -> BashOperator:
    """A task that runs `kafka-throttle usage COMMAND`. Blanks separate options, and a * is no pattern."""
    return BashOperator(task_id=command, bash_command=f"set -f; exec {PROGRAM} usage {command} {options}", **settings)


with DAG(
    "kafka_throttle_nightly",
    description="Usage of Kafka's clients: table, report and recommendations",
    schedule="17 2 * * *",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # one run takes everything that is new
    max_active_runs=1,
    max_active_tasks=1,  # each has a Spark of its own
    default_args={"retries": 2, "retry_delay": timedelta(minutes=10)},
):
    on_spark = f"--table {TABLE} {SPARK}"
    ingest = usage("ingest", f"{on_spark} {INGEST}")
    # None of these needs another, so none is stopped by the failure of another, and each failure is one of the run. The
    # first has the greatest weight, because the others then read fewer files.
    ingest >> [
        usage("compact", on_spark, priority_weight=100),
        usage("gaps", on_spark, priority_weight=50, retries=0),
        usage("report", f"{on_spark} --out {OUT}/report {REPORT}", priority_weight=10),
    ]
    if KEEP_DAYS:
        ingest >> usage("expire", f"{on_spark} --before -{KEEP_DAYS}d", priority_weight=200)
    if RECOMMEND:
        recommend = usage("recommend", f"{on_spark} --out {OUT}/advice {RECOMMEND}", skip_on_exit_code=NOTHING)
        ingest >> recommend
        if PLAN:
            recommend >> usage("plan", f"--quotas {OUT}/advice/stage-1.yaml --out {OUT}/plan.json {PLAN}")
