"""`usage ingest`, `report` and `simulate` one after the other, by their commands, in one process with one Spark.

spark-submit ... tests/pipeline/on_master.py SPOOL FOLDER CANDIDATE

FOLDER gets `table`, `report` and `answer.json`, and in `refused.txt` what is said of a bare path. The commands get no
--master: that of spark-submit is used.
"""

import contextlib
import io
import sys
from contextlib import suppress
from pathlib import Path

from kafka_throttle.proxy.cli.main import main


def run(spool: str, folder: Path, candidate: str) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as refused, suppress(SystemExit):
        command(folder / "refused.txt", "ingest", "--from", spool, "--table", str(folder / "table"))
    (folder / "refused.txt").write_text(refused.getvalue())
    table = ["--table", f"file://{folder}/table"]
    command(folder / "ingest.txt", "ingest", "--from", f"file://{spool}", *table)
    command(folder / "report.txt", "report", "--out", str(folder / "report"), *table)
    command(folder / "answer.json", "simulate", "--candidate", candidate, "--json", *table)


def command(output: Path, *arguments: str) -> None:
    with output.open("w") as out, contextlib.redirect_stdout(out):
        try:
            main(["usage", *arguments], standalone_mode=False)
        except SystemExit as end:
            if end.code:
                raise


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
