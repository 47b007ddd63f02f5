"""Seconds of the past, explained beside a real cluster: before and after a change of quotas, and after kill -9."""

import json
import os
import signal
import time
from datetime import datetime

from click.testing import CliRunner

from kafka_throttle.proxy.cli.main import main
from kafka_throttle.proxy.observe.past.moments import second_text
from tests.integration.proxy_process import ProxyProcess
from tests.integration.test_explain import kafka_throttle, write_all
from tests.integration.topics import make_topic
from tests.support.timeouts import TIMEOUT_S

RATE, LOWER = 200_000, 150_000
CLIENT = "loader"


def at(proxy, second):
    """The explanation of the quota of produce in a second, and the lines of the client in it."""
    arguments = ("explain", "-c", str(proxy.config_path), "--client-id", CLIENT, "--at", second_text(second), "--json")
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    form = json.loads(done.stdout)
    [of_quota] = [each for each in form["quotas"] if each["quota"] == "producer_byte_rate"]
    return form, of_quota


def throttled_second(proxy, topic):
    """Have the client be throttled for some seconds. Returns one in which it was muted nearly all the time."""
    before = len(proxy.events("throttle_started"))
    assert write_all(proxy.bootstrap, topic, CLIENT) > 1_000
    [*_, started] = proxy.events("throttle_started")[before:]
    second = int(datetime.fromisoformat(started["timestamp"]).timestamp()) + 1
    time.sleep(max(second + 1.3 - time.time(), 0))
    return second


def test_a_throttle_is_explained_by_the_quota_of_its_second_also_after_a_change_and_a_kill(newest_kafka):
    topic = "past"
    make_topic(newest_kafka.bootstrap_servers, topic)
    quota = {"client_id": CLIENT, "producer_byte_rate": RATE}
    trace = {"directory": "usage", "trace": {"entities": [{"client_id": CLIENT}]}}
    settings = {"source": {"state_file": "state.json"}, "history": {"directory": "past"}, "usage": trace}
    with ProxyProcess(newest_kafka, [quota], **settings) as proxy:
        before = throttled_second(proxy, topic)
        kafka_throttle("quotas", "set", "-c", proxy.config_path, "--client-id", CLIENT, f"producer_byte_rate={LOWER}")
        changed = int(time.time())
        after = throttled_second(proxy, topic)
        assert_explained(proxy, before, after, changed)

        proxy.wait_for(lambda: time.time() > after + 12, TIMEOUT_S, "quiet seconds to be written")
        os.kill(proxy.pid, signal.SIGKILL)
        proxy.wait_for_exit()
        assert_explained(proxy, before, after, changed)
        proxy.start()
        assert_explained(proxy, before, after, changed)


def assert_explained(proxy, before, after, changed):
    """The two throttles have the quotas of their seconds."""
    form, of_quota = at(proxy, before)
    assert form["skipped"] == 0
    assert (of_quota["rule"]["limit"], of_quota["rule"]["layer"], of_quota["changes"]) == (RATE, "proxy.yaml", [])
    [line] = of_quota["throttled"]
    assert (line["client_id"], line["ip"], line["limit"]) == (CLIENT, "127.0.0.1", RATE)
    assert line["throttled_ms"] > 900
    form, of_quota = at(proxy, after)
    assert (of_quota["rule"]["limit"], of_quota["rule"]["layer"]) == (LOWER, "state.json")
    [line] = of_quota["throttled"]
    assert line["limit"] == LOWER
    [change] = of_quota["changes"]
    assert (change["old"], change["new"], change["layer"]) == (RATE, LOWER, "state.json")
    assert abs(int(change["at"][17:19]) - changed % 60) in (0, 1, 59)
    form, of_quota = at(proxy, after - 1)
    assert form["precision"] == of_quota["precision"] == "exact"
    assert any(operation["throttle_time_ms"] for operation in of_quota["operations"])
