"""`kafka-throttle usage`, without Spark."""

import subprocess
import sys

from click.testing import CliRunner

from proxy.cli import main


def run(*arguments):
    return CliRunner().invoke(main, ["usage", *arguments])


def test_other_commands_import_no_spark():
    code = "import proxy.cli, sys; print(sorted({'pyspark', 'pandas', 'pipeline'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_who_lacks_the_extra_is_told_how_to_get_it():
    code = "import sys; sys.modules['pyspark'] = None; from proxy.cli import main; main()"
    command = [sys.executable, "-c", code, "usage", "ingest", "--from", "x", "--table", "y"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: usage ingest needs pyspark: pip install 'kafka-throttle[pipeline]'\n"


def test_mistakes_on_the_command_line_are_told():
    assert "got both" in run("ingest", "--from", "x", "--table", "y", "--once", "--every", "3").output
    assert "expected spark.SOMETHING=VALUE" in run("compact", "--table", "y", "--conf", "master=x").output
    result = run("gaps", "--table", "/nonexistent")
    assert (result.exit_code, result.output) == (2, "/nonexistent: expected a table of `usage ingest`, found none\n")
