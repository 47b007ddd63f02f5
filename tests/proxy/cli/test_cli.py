import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from click.testing import CliRunner

from kafka_throttle.common.problems import Problem
from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.config.load import load_config
from kafka_throttle.proxy.config.problems import ConfigErrors
from kafka_throttle.proxy.config.settings import Config
from kafka_throttle.quotas.changes import NO_QUOTAS
from kafka_throttle.quotas.sources.last_good import content
from tests.support.places import ROOT

EXAMPLE = ROOT / "deploy" / "proxy.example.yaml"


def invoke(*arguments):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


@pytest.fixture
def bad_file(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(
        EXAMPLE.read_text().replace("port: 19092", "port: ninety").replace("level: info", "levle: info"),
    )
    return path


@pytest.fixture
def service(monkeypatch):
    """Stands for proxy/server/service.py; `outcome` is what its run returns or raises, `calls` what it was given."""
    module = ModuleType("kafka_throttle.proxy.server.service")
    module.calls, module.outcome = [], 0

    def run(path, config):
        module.calls.append((path, config))
        if isinstance(module.outcome, Exception):
            raise module.outcome
        return module.outcome

    module.run = run
    monkeypatch.setitem(sys.modules, "kafka_throttle.proxy.server.service", module)
    return module


def line_of(path, text):
    """The number of the first line of a file that has this in it."""
    return next(i for i, line in enumerate(Path(path).read_text().splitlines(), 1) if text in line)


def test_check_says_what_a_valid_file_comes_to():
    result = invoke("check", "-c", EXAMPLE)
    assert result.exit_code == 0
    assert result.stdout == (
        f"{EXAMPLE} is valid\n"
        "virtual cluster main: 4 quota entries, upstream kafka-1.internal:9092, kafka-2.internal:9092,"
        " kafka-3.internal:9092\n"
        "  listener plain: PLAINTEXT, kafka.example.com, ports"
        " 19092, 19093-19098, 19099-19104, 19110-19119 of 0.0.0.0\n"
        "metrics: http://127.0.0.1:9404/metrics\n"
        "admin: http://127.0.0.1:9405/api/v1\n"
    )


def test_check_prints_the_file_with_all_defaults(tmp_path):
    result = invoke("check", "-c", EXAMPLE, "--print")
    assert result.exit_code == 0
    assert "idle_timeout_ms: 600000\n" in result.stdout
    printed = tmp_path / "printed.yaml"
    printed.write_text(result.stdout)
    assert load_config(printed) == load_config(EXAMPLE)
    assert invoke("check", "-c", printed, "--print").stdout == result.stdout


def test_without_an_option_the_file_of_the_environment_is_taken_or_one_at_a_usual_place(tmp_path, monkeypatch):
    places = [Path("proxy.yaml"), tmp_path / "etc" / "proxy.yaml"]
    monkeypatch.setattr("kafka_throttle.proxy.cli.config_file.PLACES", places)
    monkeypatch.chdir(tmp_path)
    result = invoke("check")
    assert (result.exit_code, result.stdout) == (2, "")
    expected = f"-c FILE, KAFKA_THROTTLE_CONFIG, proxy.yaml or {places[1]}"
    assert result.stderr == f"expected a configuration file ({expected}), got none\n"
    places[1].parent.mkdir()
    for place in (places[1], places[0], tmp_path / "own.yaml"):
        place.write_text(Path(EXAMPLE).read_text())
        if place.name == "own.yaml":
            monkeypatch.setenv("KAFKA_THROTTLE_CONFIG", str(place))
        assert invoke("check").stdout.startswith(f"{place} is valid\n")
    assert invoke("check", "-c", EXAMPLE).stdout.startswith(f"{EXAMPLE} is valid\n")


def test_check_prints_every_problem_on_a_line_of_standard_error_and_exits_with_2(bad_file):
    result = invoke("check", "-c", bad_file)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "virtual_clusters[0].listeners[0].port: expected a whole number from 1 to 65535, got 'ninety'"
        f" (line {line_of(bad_file, 'ninety')})",
        f"log.levle: unknown key, did you mean 'level'? (line {line_of(bad_file, 'levle')})",
    ]


@pytest.mark.parametrize("section", ["usage", "history"])
def test_check_looks_at_the_directories_of_usage_records_and_of_the_history(tmp_path, section):
    path, spool = tmp_path / "proxy.yaml", tmp_path / "no" / "spool"
    path.write_text(f"{Path(EXAMPLE).read_text()}\n{section}:\n  directory: {spool}\n")
    result = invoke("check", "-c", path)
    problem = f"{section}.directory: {spool} cannot be made: expected a directory {spool.parent}, got none"
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{problem} (line {line_of(path, 'directory: ' + str(spool))})\n"
    spool.parent.mkdir()
    assert invoke("check", "-c", path).exit_code == 0
    assert not spool.exists()
    spool.touch()
    assert "expected a directory, got something else" in invoke("check", "-c", path).stderr


def test_check_warns_without_failing(monkeypatch):
    monkeypatch.setattr("kafka_throttle.proxy.cli.main.ephemeral_ports", lambda: range(19110, 20000))
    result = invoke("check", "-c", EXAMPLE)
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: virtual_clusters[0].listeners[0].spare_ports[0]: expected ports outside of the system's"
        f" ephemeral range 19110-19999, got 19110-19119 (line {line_of(EXAMPLE, '19110-19119')})\n"
    )


@pytest.mark.parametrize("command", ["check", "run"])
def test_a_missing_file_is_one_line(command, tmp_path):
    result = invoke(command, "-c", tmp_path / "no.yaml")
    assert result.exit_code == 2
    assert result.stderr == f"{tmp_path / 'no.yaml'}: cannot be read: No such file or directory\n"


def test_run_starts_the_service_with_the_file_and_its_content(service):
    service.outcome = 7
    assert invoke("run", "-c", EXAMPLE).exit_code == 7
    assert service.calls == [(EXAMPLE, load_config(EXAMPLE))]
    assert isinstance(service.calls[0][1], Config)


def test_run_with_auto_on_one_processor_is_the_single_process(service, tmp_path, monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {3})
    path = tmp_path / "auto.yaml"
    path.write_text(f"workers: auto\n{EXAMPLE.read_text()}")
    assert invoke("run", "-c", path).exit_code == 0
    assert [path for path, _ in service.calls] == [path]


def test_run_does_not_start_with_a_bad_file(service, bad_file):
    result = invoke("run", "-c", bad_file)
    assert result.exit_code == 2
    assert "log.levle" in result.stderr
    assert service.calls == []


def test_a_signal_to_hand_over_does_not_end_a_process_that_is_starting(service, bad_file):
    former = signal.signal(signal.SIGUSR2, signal.SIG_DFL)
    try:
        invoke("run", "-c", bad_file)
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGUSR2, former)


def test_run_reports_a_setting_that_turns_out_wrong_at_start(service):
    service.outcome = ConfigErrors([Problem("metrics.port", "expected a free port, got 9404")])
    result = invoke("run", "-c", EXAMPLE)
    assert result.exit_code == 2
    assert result.stderr == f"metrics.port: expected a free port, got 9404 (line {line_of(EXAMPLE, 'port: 9404')})\n"


@pytest.mark.parametrize("package", ["kafka_throttle", "proxy"])
def test_the_package_can_be_started_with_python(package):
    """From a checkout by either name, elsewhere by the first one."""
    done = subprocess.run(
        [sys.executable, "-m", package, "check", "-c", EXAMPLE],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0
    assert re.match(r".*proxy\.example\.yaml is valid\n", done.stdout)


def test_commands_are_found_without_loading_the_service_or_the_demo():
    late = ("kafka_throttle.proxy.server.service", "demo")
    code = f"import sys, kafka_throttle.proxy.cli.main; print([n for n in sys.modules if n.startswith({late})])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n"


def state_file_check(tmp_path, source, text):
    """What `check` says of a state file with this content: its exit status, and the lines about the file."""
    data = yaml.safe_load(EXAMPLE.read_text())
    [cluster] = data["virtual_clusters"]
    cluster["quotas"] = {"source": source, "state_file": "state.json", "admin_listeners": ["plain"]}
    if source == "zookeeper":
        cluster["quotas"]["zookeeper"] = {"servers": ["127.0.0.1:1"]}
    (tmp_path / "proxy.yaml").write_text(yaml.safe_dump(data))
    if text is not None:
        (tmp_path / "state.json").write_bytes(text)
    done = invoke("check", "-c", tmp_path / "proxy.yaml")
    return done.exit_code, [line for line in done.stderr.splitlines() if "state_file" in line]


CHANGES = b'{"version": 1, "overlay": [{"entity": {"user": "a"}, "limits": {}}]}'
LAST_GOOD = b"".join(content(NO_QUOTAS, "upstream"))
ONE_CHANGE_WRONG = b"""{"version": 1, "overlay": [{"entity": {"user": "a"}, "limits": {
    "producer_byte_rate": {"limit": 1.0, "over": null}, "consumer_byte_rate": {"limit": -1, "over": null}}}]}"""
ONE_LIMIT_WRONG = b"""{"version": 1, "source": "upstream", "quotas": [{"entity": {"user": "a"}, "limits": {
    "producer_byte_rate": {"value": 1.0, "layer": "l"}, "consumer_byte_rate": {"value": -1, "layer": "l"}}}]}"""


@pytest.mark.parametrize(
    ("source", "text", "said"),
    [
        ("file", None, None),
        ("file", CHANGES, None),
        ("file", LAST_GOOD, "belongs to the source 'upstream'"),
        ("file", b"log: {}", "expected JSON in UTF-8"),
        ("file", ONE_CHANGE_WRONG, "state.json: holds what cannot be read: overlay[0]: consumer_byte_rate of user=a"),
        ("upstream", None, None),
        ("upstream", LAST_GOOD, None),
        ("upstream", ONE_LIMIT_WRONG, "state.json: holds what cannot be read: consumer_byte_rate of user=a"),
        ("upstream", CHANGES, "belongs to the source 'file'"),
        ("zookeeper", LAST_GOOD, "belongs to the source 'upstream'"),
        ("topic", b"log: {}", "no JSON"),
    ],
)
def test_check_refuses_a_state_file_that_is_not_one_of_the_source(tmp_path, source, text, said):
    status, lines = state_file_check(tmp_path, source, text)
    if said is None:
        assert (status, lines) == (0, [])
    else:
        [line] = lines
        assert (status, said in line) == (2, True), line
        assert (tmp_path / "state.json").read_bytes() == text


@pytest.mark.parametrize(
    ("source", "lost"), [("file", "changes of quotas are refused"), ("upstream", "the last good quotas are not saved")]
)
def test_check_says_that_a_state_file_cannot_be_written(tmp_path, source, lost, monkeypatch):
    monkeypatch.setattr("kafka_throttle.common.atomic_file.os.access", lambda where, mode: where != tmp_path)
    status, [line] = state_file_check(tmp_path, source, None)
    expected = f"cannot be written, because this process may not write to {tmp_path}; {lost}"
    assert status == 0
    assert line.startswith(f"warning: virtual_clusters[0].quotas.state_file: {tmp_path}/state.json {expected}")
