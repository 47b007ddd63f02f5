"""One throttled client among 26: each place that an operator may look at names it within two seconds."""

import json
import threading
import time
import urllib.request
from contextlib import ExitStack

import pytest
from click.testing import CliRunner
from confluent_kafka import Producer

from kafka_throttle.proxy.cli.main import main
from tests.integration.proxy_process import ProxyProcess
from tests.integration.topics import make_topic
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.exclusive, pytest.mark.nightly]

VICTIM = "nightly-etl"
QUOTA = 100_000
OTHERS = [f"service-{number:02}" for number in range(25)]
TOPIC = "twenty-six"
WITHIN_S = 2.0


class Client:
    """Produces so many bytes/s until it is closed; `throttled_s` is when a response throttled it first."""

    def __init__(self, bootstrap, name, bytes_per_s):
        self.throttled_s = None
        settings = {"bootstrap.servers": bootstrap, "client.id": name, "linger.ms": 5, "throttle_cb": self._note}
        self._producer = Producer({**settings, "queue.buffering.max.messages": 500, "message.timeout.ms": 600_000})
        self._step_s = 1_000 / bytes_per_s
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _note(self, event):
        if event.throttle_time > 0 and self.throttled_s is None:
            self.throttled_s = time.monotonic()

    def _run(self):
        while not self._ending.is_set():
            try:
                self._producer.produce(TOPIC, bytes(1_000), partition=0)
            except BufferError:
                pass  # it is throttled
            self._producer.poll(self._step_s)

    def close(self):
        self._ending.set()
        self._thread.join()
        self._producer.purge()
        self._producer.flush(TIMEOUT_S)


def top(proxy):
    done = CliRunner().invoke(main, ["top", "-c", str(proxy.config_path), "--once", "--json"])
    assert done.exit_code == 0, done.output
    return done.stdout


def page(proxy):
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.admin_port}/", timeout=TIMEOUT_S) as response:
        return response.read().decode().partition('id="throttled"')[2].partition("</section>")[0]


def metric(proxy):
    names = [
        labels.get("client_id")
        for name, labels, value in proxy.series()
        if name == "kafka_throttle_entity_throttle_seconds_total" and value > 0
    ]
    return json.dumps(names)


PLACES = {
    "API": lambda proxy: json.dumps(proxy.admin("throttled")),
    "log": lambda proxy: json.dumps(proxy.events("throttle_started")),
    "metric": metric,
    "page": page,
    "top": top,
}


def test_the_one_throttled_client_of_26_is_named_everywhere_within_two_seconds(newest_kafka):
    make_topic(newest_kafka.bootstrap_servers, TOPIC)
    quotas = [{"default_client_id": True, "producer_byte_rate": QUOTA}]
    with ProxyProcess(newest_kafka, quotas) as proxy, ExitStack() as closing:
        for name in OTHERS:
            closing.callback(Client(proxy.bootstrap, name, QUOTA // 5).close)
        proxy.wait_for(lambda: proxy.metric("connections") >= len(OTHERS), TIMEOUT_S, "25 clients")
        victim = Client(proxy.bootstrap, VICTIM, QUOTA * 20)
        closing.callback(victim.close)
        proxy.wait_for(lambda: victim.throttled_s, TIMEOUT_S, "the victim to be throttled")
        took_s = {}
        for place, look in PLACES.items():
            named = proxy.wait_for(lambda look=look: VICTIM in (text := look(proxy)) and text, TIMEOUT_S, place)
            took_s[place] = time.monotonic() - victim.throttled_s
            assert not [name for name in OTHERS if name in named], place
        print({place: f"{seconds:.2f} s" for place, seconds in took_s.items()})
        assert max(took_s.values()) < WITHIN_S, took_s
