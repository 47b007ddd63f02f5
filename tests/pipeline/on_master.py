"""`usage ingest`, `report` and `simulate` one after the other, by their commands, in one process with one Spark.

python -m tests.pipeline.on_master MASTER SPOOL FOLDER CANDIDATE

FOLDER gets `table`, `report` and `response.json`.
"""

import contextlib
import sys
from pathlib import Path

from proxy.cli.main import main
from tests.pipeline.spark_cluster import ON_CLUSTER, SMALL_JAVA


def run(master: str, spool: str, folder: Path, candidate: str) -> None:
    small = dict.fromkeys(("spark.driver.extraJavaOptions", "spark.executor.extraJavaOptions"), SMALL_JAVA)
    settings = [f"--conf={key}={value}" for key, value in (ON_CLUSTER | small).items()]
    spark = ["--table", str(folder / "table"), "--master", master, "--memory", "700m", *settings]
    command(folder / "ingest.txt", "ingest", "--from", spool, *spark)
    command(folder / "report.txt", "report", "--out", str(folder / "report"), *spark)
    command(folder / "answer.json", "simulate", "--candidate", candidate, "--json", *spark)


def command(output: Path, *arguments: str) -> None:
    with output.open("w") as out, contextlib.redirect_stdout(out):
        try:
            main(["usage", *arguments], standalone_mode=False)
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    run(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4])
