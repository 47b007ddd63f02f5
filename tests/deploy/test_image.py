"""The image and the compose file: what can be said of them without a container engine."""

import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from demo.kafka_cluster import KafkaCluster
from kafka_throttle.common.yaml_file import read_yaml_file
from kafka_throttle.proxy.config.load import load_config
from tests.deploy.tools import DEPLOY, hadolint, passes
from tests.integration.proxy_process import ProxyProcess
from tests.support.go_program import go_program
from tests.support.places import ROOT

COMPOSE = DEPLOY / "compose"
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@contextlib.contextmanager
def page(status):
    """A page with this status; its address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with HTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/readyz"
        server.shutdown()


def health(url):
    """The exit status of the health check, with a proxy of the environment that leads nowhere."""
    environment = {"HEALTH_URL": url, "http_proxy": "http://127.0.0.1:9"}
    return subprocess.run([sys.executable, "-I", DEPLOY / "healthcheck.py"], env=environment).returncode


def test_the_image_is_healthy_while_its_page_says_so():
    with page(200) as url:
        assert health(url) == 0
    with page(503) as url:
        assert health(url) == 1
    assert health(url) == 1


def test_the_health_check_is_in_the_image_and_asks_whether_the_proxy_lives():
    assert "COPY deploy/healthcheck.py /opt/kafka-throttle/" in DOCKERFILE
    assert 'CMD ["python", "-I", "/opt/kafka-throttle/healthcheck.py"]' in DOCKERFILE
    assert "HEALTH_URL=http://127.0.0.1:9404/livez" in DOCKERFILE


def test_the_image_without_a_target_is_the_proxy_and_that_of_the_pipeline_has_java_and_the_script():
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.M)[1:]
    assert 'ENTRYPOINT ["kafka-throttle"]' in stages[-1]
    assert "openjdk" not in stages[-1]
    [pipeline] = [stage for stage in stages if stage.partition("\n")[0].endswith(" AS pipeline")]
    assert "openjdk-17-jre-headless" in pipeline
    assert "USER 10001:10001" in pipeline
    [(source, name)] = re.findall(r"^COPY (deploy/\S+) /opt/kafka-throttle/bin/(\S+)$", pipeline, re.M)
    assert os.access(ROOT / source, os.X_OK)
    assert f'CMD ["{name}"]' in pipeline


def test_the_proxy_of_the_compose_file_has_a_valid_configuration_at_the_ports_that_are_published():
    config = load_config(COMPOSE / "proxy" / "proxy.yaml")
    services = read_yaml_file(COMPOSE / "compose.yaml")["services"]
    [listener] = config.virtual_clusters[0].listeners
    first, last = map(int, re.fullmatch(r"127.0.0.1:(\d+)-(\d+):\1-\2", *services["proxy"]["ports"]).groups())
    assert [listener.port, *listener.ports().values()] == list(range(first, last + 1))
    assert list(listener.ports()) == [int(services["kafka"]["environment"]["KAFKA_NODE_ID"])]
    assert (config.metrics.bind, config.metrics.port) == ("0.0.0.0", 9404)
    grace_s = int(services["proxy"]["stop_grace_period"].removesuffix("s"))
    assert grace_s > config.drain.lame_duck_s + config.limits.drain_s + 30


def test_files_that_the_compose_file_mounts_are_there():
    for service in read_yaml_file(COMPOSE / "compose.yaml")["services"].values():
        for volume in service.get("volumes", ()):
            source = volume.split(":")[0]
            assert not source.startswith(".") or (COMPOSE / source).exists(), source


@pytest.mark.nightly
@pytest.mark.kafka
def test_the_noisy_client_of_the_compose_file_is_throttled():
    """Its command is run with Kafka's own jars, against a proxy with the quotas of the compose file."""
    [cluster] = read_yaml_file(COMPOSE / "proxy" / "proxy.yaml")["virtual_clusters"]
    program, *arguments = read_yaml_file(COMPOSE / "compose.yaml")["services"]["noisy"]["command"]
    with KafkaCluster(nodes=1) as kafka, ProxyProcess(kafka, cluster["quotas"]["entries"]) as proxy:
        changed = {"--num-records=100000000": "--num-records=15000"}
        changed["bootstrap.servers=localhost:19092"] = f"bootstrap.servers={proxy.bootstrap}"
        kafka.tool(Path(program).stem, *(changed.pop(argument, argument) for argument in arguments))
        assert not changed
        assert proxy.metric("entity_throttle_seconds_total", client_id="noisy", quota_type="produce") > 1


@pytest.mark.nightly
def test_the_compose_file_is_one():
    project = json.loads(passes(go_program("compose"), COMPOSE / "compose.yaml"))
    assert set(project["services"]) == {"kafka", "proxy", "prometheus", "grafana", "noisy"}


@pytest.mark.nightly
def test_hadolint_has_nothing_to_say_of_the_dockerfile():
    assert passes(hadolint(), ROOT / "Dockerfile") == ""
