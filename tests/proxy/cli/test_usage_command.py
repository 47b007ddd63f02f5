"""`kafka-throttle usage`, without Spark."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.usage.kafka_topic import KafkaTopic
from kafka_throttle.proxy.usage.shipper import alone_at


def run(*arguments):
    return CliRunner().invoke(main, ["usage", *arguments])


def test_other_commands_import_no_spark():
    late = {"pyspark", "pandas", "kafka_throttle.pipeline"}
    code = f"import kafka_throttle.proxy.cli.main, sys; print(sorted({late} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_the_extra_the_error_says_how_to_install_it():
    code = "import sys; sys.modules['pyspark'] = None; from kafka_throttle.proxy.cli.main import main; main()"
    command = [sys.executable, "-c", code, "usage", "ingest", "--from", "x", "--table", "y"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    wanted = "usage ingest needs pyspark, which the extra brings: pip install '.[pipeline]' in the repository\n"
    assert done.stderr == wanted


def test_mistakes_on_the_command_line_are_reported():
    assert "got both" in run("ingest", "--from", "x", "--table", "y", "--once", "--every", "3").output
    assert "got neither" in run("ingest", "--table", "y").output
    assert "got both" in run("ingest", "--from", "x", "--from-topic", "y", "--table", "y").output
    assert "with --from-topic only" in run("ingest", "--from", "x", "--kafka-conf", "a=b", "--table", "y").output
    topic = ("ingest", "--from-topic", "x", "--table", "y")
    assert "--bootstrap-server: expected host:port" in run(*topic).output
    topic += ("--bootstrap-server", "here:1")
    assert "expected KEY=VALUE" in run(*topic, "--kafka-conf", "sasl_mechanism=PLAIN").output
    missing = run(*topic, "--kafka-conf", "sasl.jaas.config=@/nonexistent").output
    assert "sasl.jaas.config: /nonexistent cannot be read" in missing
    assert "is not in the range x>=24" in run("compact", "--table", "y", "--keep-hours", "23").output
    assert "-30d or -12h, got 'tuesday'" in run("expire", "--table", "y", "--before", "tuesday").output


@pytest.mark.parametrize(
    ("option", "good", "bad", "expected"),
    [
        ("--conf", "spark.a=b", "spark.password:hunter2", "spark.SOMETHING=VALUE"),
        ("--conf", "spark.a=b", "hunter2=x", "spark.SOMETHING=VALUE"),
        ("--kafka-conf", "a=b", "sasl.password:hunter2", "KEY=VALUE with a setting of Kafka's consumer"),
        ("--kafka-conf", "a=b", "sasl.password:hunter2=x", "KEY=VALUE with a setting of Kafka's consumer"),
    ],
)
def test_of_an_invalid_setting_only_its_place_is_shown(option, good, bad, expected):
    command = ("ingest", "--from-topic", "x", "--table", "y", "--bootstrap-server", "here:1")
    if option == "--conf":
        command = ("compact", "--table", "y")
    result = run(*command, option, good, option, bad)
    assert (result.exit_code, result.output) == (2, f"{option} (2 of 2): expected {expected}, got something else\n")


def test_an_error_that_nobody_expected_is_no_answer_of_gaps(monkeypatch):
    from kafka_throttle.pipeline.jobs import gaps

    monkeypatch.setattr(gaps, "main", lambda **arguments: 1 // 0)
    done = run("gaps", "--table", "x")
    assert done.exit_code == 70
    assert "ZeroDivisionError" in done.output


@pytest.mark.parametrize("command", ["ingest", "compact", "gaps", "expire", "report", "simulate", "recommend"])
def test_tables_may_be_at_any_place(command):
    assert "hdfs://" in run(command, "--help").output


def ship(spool, *arguments, server="127.0.0.1:9"):
    return run("ship", "--from", str(spool), "--to-topic", "records", "--bootstrap-server", server, *arguments)


def test_a_password_in_a_file_is_read_for_each_login(tmp_path, monkeypatch):
    password, made = tmp_path / "password", []
    password.write_text("one\n")

    class Topic(KafkaTopic):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            made.append(self)

    monkeypatch.setattr("kafka_throttle.proxy.usage.kafka_topic.KafkaTopic", Topic)
    (tmp_path / "spool").mkdir()
    sasl = {"security_protocol": "SASL_SSL", "sasl_mechanism": "PLAIN", "sasl_plain_username": "me"}
    pairs = [*sasl.items(), ("sasl_plain_password", f"@{password}")]
    result = ship(tmp_path / "spool", *(f"--kafka-conf={key}={value}" for key, value in pairs))
    assert result.exit_code == 0, result.output
    password.write_text("two\n")
    assert made[0]._secret.begin().secret == "two"


def test_settings_that_cannot_be_shipped_with_are_reported(tmp_path):
    result = ship(tmp_path)
    assert (result.exit_code, result.output) == (0, "0 files, 0 lines sent to records\n")
    with alone_at(tmp_path):
        assert ship(tmp_path).output == f"--from: {tmp_path}: another process ships from it\n"
    assert ship("/nonexistent").output == "--from: /nonexistent: No such file or directory\n"
    for server in ("abc:xyz", "", "here", "here:9092,"):
        result = ship(tmp_path, server=server)
        expected = f"--bootstrap-server: expected HOST:PORT, or several with commas between, got {server!r}\n"
        assert (result.exit_code, result.output) == (2, expected)
    assert ship(tmp_path, server="[::1]:9, here:9").exit_code == 0
    result = ship(tmp_path, "--kafka-conf", "security_protocol=TLS")
    assert (result.exit_code, "--kafka-conf: security_protocol: expected PLAINTEXT" in result.output) == (2, True)
    assert "--kafka-conf: expected a setting of kafka-python's" in ship(tmp_path, "--kafka-conf", "acks=0").output
    for pair in ("sasl_plain_password:hunter2", "sasl_plain_password:hunter2=x", "hunter2"):
        assert ship(tmp_path, "--kafka-conf", pair).output == (
            "--kafka-conf (1 of 1): expected KEY=VALUE with a setting of kafka-python's producer, got something else\n"
        )
    missing = ship(tmp_path, "--kafka-conf", "sasl_plain_password=@/nonexistent").output
    assert missing == "--kafka-conf: sasl_plain_password: /nonexistent cannot be read: No such file or directory\n"
    (tmp_path / ".shipped.json").mkdir()
    (tmp_path / "usage-here-5-000001.tsv").touch()
    result = ship(tmp_path)
    assert (result.exit_code, result.output) == (2, f"--from: {tmp_path}/.shipped.json: Is a directory\n")
    result = run("ship", "--from", str(tmp_path), "--to-topic", "a b", "--bootstrap-server", "x")
    assert "--to-topic: expected 1 to 249 letters" in result.output
    assert result.exit_code == 2
