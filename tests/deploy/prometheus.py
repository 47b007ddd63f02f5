"""A real Prometheus that scrapes proxies each second, with the alerts of deploy/prometheus in a hurry."""

import json
import re
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Self

from demo.proxy_process import free_port_run
from kafka_throttle.common.child_process import die_with_parent
from kafka_throttle.common.jars import need_program
from tests.deploy.tools import DEPLOY
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.support.timeouts import TIMEOUT_S

WINDOW_S = 15
"""The range of rates in the hurried rules, and what $__rate_interval stands for."""
_DURATION = r"\d+[smh]"


def in_a_hurry(rules: str) -> str:
    """The rules with short times: what has to last minutes lasts a second."""
    rules = re.sub(rf"for: {_DURATION}", "for: 1s", rules)
    rules = re.sub(rf"\[{_DURATION}\]", f"[{WINDOW_S}s]", rules)
    rules = re.sub(rf"offset {_DURATION}", f"offset {WINDOW_S}s", rules)
    return rules.replace("age_seconds > 300", "age_seconds > 3")


class PrometheusProcess:
    """Prometheus in `folder`; use it as a context manager."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        [self._port] = free_port_run(1)
        self._targets: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        (folder / "alerts.yaml").write_text(in_a_hurry((DEPLOY / "prometheus" / "alerts.yaml").read_text()))
        job = {"job_name": "kafka-throttle", "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}]}
        config = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["alerts.yaml"],
            "scrape_configs": [job],
        }
        (folder / "prometheus.yaml").write_text(json.dumps(config))
        self._write_targets()

    def __enter__(self) -> Self:
        command = [
            need_program("prometheus", "prometheus"),
            f"--config.file={self._folder / 'prometheus.yaml'}",
            f"--storage.tsdb.path={self._folder / 'data'}",
            f"--web.listen-address={HOST}:{self._port}",
            "--log.level=warn",
        ]
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=self._folder, stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent
            )
        deadline = time.monotonic() + TIMEOUT_S
        while not self._is_ready():
            assert self._process.poll() is None, (self._folder / "log").read_text()
            assert time.monotonic() < deadline, "Prometheus is not ready"
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process is not None
        self._process.terminate()
        self._process.wait(TIMEOUT_S)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{self._port}/-/ready", timeout=TIMEOUT_S):
                return True
        except OSError:
            return False

    # --------------------------------------------------------------- targets

    def scrape(self, proxy: ProxyProcess) -> str:
        """Scrape this proxy from now on; what its series have as `instance`."""
        self._targets.append(f"{HOST}:{proxy.metrics_port}")
        self._write_targets()
        return self._targets[-1]

    def forget(self, instance: str) -> None:
        """Scrape it no longer."""
        self._targets.remove(instance)
        self._write_targets()

    def _write_targets(self) -> None:
        new = self._folder / "targets.new"
        new.write_text(json.dumps([{"targets": self._targets}]))
        new.replace(self._folder / "targets.json")

    # --------------------------------------------------------------- queries

    def query(self, expression: str) -> list[Any]:
        """The samples of an expression now. An expression that Prometheus refuses is an AssertionError."""
        return self._ask("query", query=expression)

    def query_range(self, expression: str, seconds: float) -> list[Any]:
        """The series of an expression over the last seconds, a value for each."""
        now = time.time()
        return self._ask("query_range", query=expression, start=now - seconds, end=now, step=1)

    def _ask(self, page: str, **parameters: Any) -> list[Any]:
        url = f"http://{HOST}:{self._port}/api/v1/{page}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
                answer = json.load(response)
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{parameters}: {error.read().decode()}") from None
        assert not answer.get("warnings"), answer
        result: list[Any] = answer["data"]["result"]
        return result

    def fired(self, instance: str) -> set[str]:
        """The alerts that have fired for a proxy by now."""
        series = self.query(f'count_over_time(ALERTS{{alertstate="firing", instance="{instance}"}}[1h])')
        return {each["metric"]["alertname"] for each in series}

    def wait_for_alerts(self, instance: str, *names: str) -> None:
        """Wait until these alerts have fired for a proxy."""
        deadline = time.monotonic() + 2 * TIMEOUT_S
        while missing := {f"KafkaThrottle{name}" for name in names} - self.fired(instance):
            assert time.monotonic() < deadline, f"{sorted(missing)} did not fire, but {sorted(self.fired(instance))}"
            time.sleep(0.5)
