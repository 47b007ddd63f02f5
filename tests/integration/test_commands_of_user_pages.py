"""The commands on the pages for users, word for word, in front of a real cluster.

Only addresses, and the second of `--at`, are those of the test. tests/commands_of_user_pages.yaml says which commands
each test here runs.
"""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from kafka_throttle.common.child_process import die_with_parent
from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.config.load import load_config
from tests.integration import certified, logins
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.quota_client import QuotaClient
from tests.integration.topics import make_topic
from tests.integration.workloads.scenarios import wait_until
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S
from tests.support.user_pages import blocks, commands_of, run_by

QUICK_START, IN_FRONT = (ROOT / "docs" / f"{name}.md" for name in ("quick-start", "in-front-of-a-cluster"))
RATE, RECORD = 20_000, bytes(600_000)
"""At this rate a client is muted for 20 s after each record."""
SAID = (
    (" init ", r"proxy\.yaml is written: \S+, its nodes are 1-3; "),
    (" check .*--connect", "proxy.yaml is valid and fits its clusters\n"),
    (" check --print", "max_mib: 256\n"),
    (" check ", r"proxy\.yaml is valid\n(.*\n)+  listener plain: SASL_PLAINTEXT, "),
    (" top ", r" alice +etl +\d +produce .* user=alice, client-id=etl, of quotas.json"),
    (" explain .*ANONYMOUS", "no client with user='ANONYMOUS' is connected"),
    (" explain ", "by user=alice, client-id=etl, level 1, of quotas.json"),
    (" describe", r"user=alice, client-id=etl\n  producer_byte_rate  \d+  quotas.json"),
    (" unset ", r"  no quotas\nin force in the proxy at "),
    (" set ", r"  producer_byte_rate  \d+  quotas.json\nin force in the proxy at "),
    ("/livez", '"live": true'),
    ("/metrics", r"(?s)event_loop_lag_seconds \d.*process_cpu_seconds_total \d.*added_latency"),
)
"""What commands print behind a login: the first pattern that a command fits, and a pattern of its output."""


class Reader(ProxyProcess):
    """Somebody who types what the pages say, in an empty directory. The proxy is that of `kafka-throttle run`."""

    def __init__(self, cluster, node, **addresses):
        super().__init__(cluster)
        self.folder = self.config_path.parent
        self.config_path.unlink()
        self.instead = {"kafka-1.internal:9092": node, "kafka-1.internal:9093": node, **addresses}
        self._path = [str(Path(sys.executable).parent), os.environ["PATH"]]
        self._run = []

    def command(self):
        return ["env", f"--chdir={self.folder}", f"PYTHONPATH={ROOT}", sys.executable, "-m", "proxy", *self._run]

    def here(self, text):
        """What a page says, with what is true here."""
        longest_first = sorted(self.instead, key=len, reverse=True)
        return re.sub("|".join(map(re.escape, longest_first)), lambda found: self.instead[found[0]], text)

    def types(self, text):
        """What the command prints. It has to end with status 0; the proxy goes on."""
        program, *arguments = words = shlex.split(self.here(text))
        if program != "kafka-throttle":
            done = subprocess.run(
                ["bash", "-o", "pipefail", "-c", self.here(text)],
                cwd=self.folder, env=self._variables, capture_output=True, text=True, timeout=4 * TIMEOUT_S,
            )  # fmt: skip
            assert done.returncode == 0, (text, done)
            return done.stdout
        if words[1] == "run":
            self._run = arguments
            self.start()
            return ""
        with contextlib.chdir(self.folder):
            done = CliRunner().invoke(main, arguments)
        assert done.exit_code == 0, (text, done.output, done.exception)
        if words[1] == "init":
            self._learn_ports()
        return done.output

    @contextlib.contextmanager
    def in_background(self, text):
        words = shlex.split(self.here(text).removesuffix("&"))
        process = subprocess.Popen(words, cwd=self.folder, env=self._variables, preexec_fn=die_with_parent)
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def give(self, name, program):
        """Let the reader have a program."""
        folder = self.folder / "bin"
        folder.mkdir()
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(program)} "$@"\n')
        (folder / name).chmod(0o755)
        self._path.insert(0, str(folder))

    @property
    def _variables(self):
        return {**os.environ, "PATH": ":".join(self._path)}

    def _learn_ports(self):
        config = load_config(self.config_path)
        [listener] = config.virtual_clusters[0].listeners
        assert listener.advertised_host == HOST
        self.port, self.metrics_port, self.admin_port = listener.port, config.metrics.port, config.admin.port
        self.instead |= {
            "10.0.0.5:19092": self.bootstrap,
            "127.0.0.1:9404": f"{HOST}:{self.metrics_port}",
            "127.0.0.1:9405": f"{HOST}:{self.admin_port}",
        }


@pytest.fixture
def commands(request):
    """The different ones that this test runs, as the table says; page by page."""
    found = run_by(f"tests/integration/{Path(__file__).name}::{request.node.originalname}")
    return list(dict.fromkeys(text for _, text in found))


@pytest.fixture
def start_reader(newest_kafka):
    with contextlib.ExitStack() as stack:

        def start(node, **instead):
            reader = Reader(newest_kafka, node, **instead)
            stack.callback(reader.kill)
            return reader

        yield start


def test_the_quick_start_does_what_it_says(newest_kafka, start_reader, commands):
    reader = start_reader(newest_kafka.bootstrap_servers.split(",")[0])
    page = QUICK_START.read_text()
    texts = list(dict.fromkeys(text for text in commands_of(QUICK_START) if text in commands))
    assert sorted(texts) == sorted(commands), "a command that this test runs is not on the page"
    said = {}
    with contextlib.ExitStack() as load:
        for text in texts:
            if text == "python load.py":
                [program] = [content for language, content in blocks(QUICK_START) if language == "python"]
                (reader.folder / "load.py").write_text(reader.here(program))
            if text == "python load.py &":
                load.enter_context(reader.in_background(text))
                reader.wait_for(lambda: reader.events("throttle_started"), TIMEOUT_S, "a throttle")
            else:
                if " unset " in text:
                    load.close()
                said[text] = reader.types(text)
    reader.stop()

    for text, words in {
        "kafka-throttle check --connect": ["proxy.yaml is valid and fits its clusters"],
        "kafka-throttle quotas set --client-id etl producer_byte_rate=100000": [
            "quotas.json",
            "in force in the proxy at 127.0.0.1:9405",
        ],
        "kafka-throttle quotas unset --client-id etl producer_byte_rate": ["no quotas", "in force"],
    }.items():
        for each in words:
            assert f"`{each}`" in page
            assert reader.here(each) in said[text]
    of_init, of_explain = (content for language, content in blocks(QUICK_START) if language == "")
    for line in of_init.splitlines():
        assert reader.here(line.strip()) in said["kafka-throttle init --bootstrap kafka-1.internal:9092"]
    for line in of_explain.splitlines():
        assert line.strip() in said["kafka-throttle explain --client-id etl"]
    assert re.search(r" etl +\d +produce .* client-id=etl, of quotas.json", said["kafka-throttle top --once"])
    assert json.loads(said["curl http://127.0.0.1:9404/readyz"])["ready"] is True


def test_behind_tls_and_a_login_commands_do_what_pages_say(newest_kafka, certificates, start_reader, commands):
    logins.add_scram_users(newest_kafka.bootstrap_servers)
    make_topic(newest_kafka.bootstrap_servers, "pages")
    node = newest_kafka.bootstrap(certified.WITH_LOGIN).split(",")[0]
    reader = start_reader(node, **{"kafka.example.com": HOST})
    (reader.folder / "tls").mkdir()
    (reader.folder / "tls" / "nodes-ca.pem").write_bytes(certificates.authority.file.read_bytes())
    (reader.folder / "password").write_text(logins.PASSWORDS["proxy"])

    init, check, run = (text for text in commands_of(IN_FRONT) if text in commands)
    others = [text for text in commands if text not in (init, check, run)]
    said = {text: reader.types(text) for text in (init, check)}
    reader.types(run)
    reader.types(f"kafka-throttle quotas set --user alice --client-id etl producer_byte_rate={RATE}")
    login = logins.confluent_settings(logins.PLAIN, "alice", logins.PASSWORDS["alice"])
    producer = Producer({"bootstrap.servers": reader.bootstrap, "client.id": "etl", **login})
    try:
        for _ in range(5):
            producer.produce("pages", RECORD)
        [started, *_] = reader.wait_for(lambda: reader.events("throttle_started"), TIMEOUT_S, "a throttle")
        second = datetime.fromisoformat(started["timestamp"]) + timedelta(seconds=1)
        time.sleep(max(second.timestamp() + 1.3 - time.time(), 0))
        reader.instead["03:12:07"] = f"{second:%H:%M:%S}"
        said |= {text: reader.types(text) for text in others}
    finally:
        producer.purge()
    reader.stop()
    for text, output in said.items():
        words = [words for pattern, words in SAID if re.search(pattern, text)]
        assert words, f"add to SAID what this prints: {text}"
        assert re.search(words[0], output), (text, output)


@pytest.mark.nightly
def test_kafka_configs_at_nodes_and_at_the_proxy(newest_kafka, start_proxy, start_reader, commands):
    source = {"state_file": "quotas.json", "admin_listeners": ["plain"]}
    proxy = start_proxy(source=source)
    reader = start_reader(newest_kafka.bootstrap_servers.split(",")[0], **{"kafka.example.com:19092": proxy.bootstrap})
    reader.give("kafka-configs", newest_kafka.tool_command("kafka-configs"))
    limits = [("producer_byte_rate", 1e9, False), ("consumer_byte_rate", 2e9, False)]
    alice, etl, ip = ("user", "alice"), ("client-id", "etl"), ("ip", "10.9.8.7")
    with QuotaClient(newest_kafka.address(1)) as client:
        client.alter([([alice], limits), ([etl], limits), ([alice, etl], limits)])
        client.alter([([ip], [("connection_creation_rate", 9, False)])])
    wait_until_nodes_have(newest_kafka, [alice], [etl], [alice, etl], [ip])
    *described, removed, altered = (reader.types(text) for text in commands)
    names = ["user-principal 'alice'", "client-id 'etl'", "user-principal 'alice', client-id 'etl'", "ip '10.9.8.7'"]
    for output, name in zip(described, names, strict=True):
        assert f"Quota configs for {name} are " in output
    assert "Completed updating config for user alice." in removed
    assert "Completed updating config for user bob." in altered
    wait_until_nodes_have(newest_kafka, [etl], [alice, etl], [ip])
    with QuotaClient((HOST, proxy.port)) as client:
        assert client.describe().entries == {frozenset([("user", "bob")]): {"producer_byte_rate": 1048576}}


def wait_until_nodes_have(cluster, *entities):
    """Until each node knows quotas of these and of no others."""

    def has_them(node_id):
        with QuotaClient(cluster.address(node_id)) as client:
            return client.describe().entries.keys() == set(map(frozenset, entities))

    for node_id in cluster.node_ids:
        wait_until(lambda node_id=node_id: has_them(node_id), f"the quotas of node {node_id}")
