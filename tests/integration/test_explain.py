"""The command line beside a proxy at work: what it explains and changes, and shadow quotas, which have no effect."""

import json
from concurrent.futures import ThreadPoolExecutor

from click.testing import CliRunner
from confluent_kafka import Producer

from kafka_throttle.proxy.cli.main import main
from tests.integration.proxy_process import ProxyProcess
from tests.integration.topics import make_topic
from tests.support.timeouts import TIMEOUT_S

RATE = 200_000
MESSAGES, MESSAGE = 250, b"x" * 10_000
"""A quarter more than a quota of RATE allows at one instant."""


def kafka_throttle(*arguments):
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    assert done.exit_code == 0, done.output
    return done.stdout


def write_all(bootstrap, topic, client_id):
    """Produce 2.5 MB as fast as may be; the longest throttle time in ms that the client got."""
    reported = [0.0]
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": client_id,
            "batch.num.messages": 20,
            "throttle_cb": lambda event: reported.append(event.throttle_time * 1000),
        }
    )
    errors = []
    for _ in range(MESSAGES):
        producer.produce(topic, MESSAGE, partition=0, on_delivery=lambda error, _: error and errors.append(error))
    assert producer.flush(120) == 0
    assert errors == []
    return max(reported)


def explained(proxy, client_id, quota):
    form = json.loads(kafka_throttle("explain", "-c", proxy.config_path, "--client-id", client_id, "--json"))
    assert form["live"] is True
    return next(reported for reported in form["quotas"] if reported["quota"] == quota)


def throttled(proxy):
    return json.loads(kafka_throttle("top", "-c", proxy.config_path, "--once", "--json"))["throttled"]


def test_a_shadow_quota_is_measured_and_not_felt_until_it_is_put_in_force(newest_kafka):
    topic = "explained"
    make_topic(newest_kafka.bootstrap_servers, topic)
    shadow = {"client_id": "loader", "shadow_producer_byte_rate": RATE}
    with ProxyProcess(newest_kafka, [shadow], source={"state_file": "state.json"}) as proxy:
        config = ("-c", proxy.config_path)
        assert write_all(proxy.bootstrap, topic, "loader") == 0
        reported = explained(proxy, "loader", "shadow_producer_byte_rate")
        assert (reported["rule"]["entity"], reported["rule"]["layer"]) == ({"client-id": "loader"}, "proxy.yaml")
        [use] = [use for use in reported["use"] if use["throttles"]]
        labels = {"quota_type": "produce", "node_id": str(use["node_id"])}
        assert proxy.metric("shadow_throttles_total", **labels) == use["throttles"]
        assert proxy.metric("shadow_throttled_seconds_total", **labels) == use["throttled_ms"] / 1000
        assert proxy.metric("throttles_total", quota_type="produce") == 0
        assert not proxy.events("throttle_started")

        kafka_throttle("quotas", "set", *config, "--client-id", "loader", f"producer_byte_rate={RATE}")
        proxy.wait_for(lambda: explained(proxy, "loader", "producer_byte_rate")["rule"] is not None, 5, "the quota")
        with ThreadPoolExecutor(1) as pool:
            written = pool.submit(write_all, proxy.bootstrap, topic, "loader")
            [client] = proxy.wait_for(lambda: throttled(proxy), TIMEOUT_S, "a throttled client")
            assert written.result() > 1000
        assert (client["client_id"], client["quota_type"], client["limit"]) == ("loader", "produce", RATE)
        assert (client["rule"]["entity"], client["rule"]["layer"]) == ({"client-id": "loader"}, "state.json")
        assert client["rate"] > RATE
        [ended] = proxy.wait_for(lambda: proxy.events("throttle_ended"), TIMEOUT_S, "the end of the throttle")
        [started] = proxy.events("throttle_started")
        for line in (started, ended):
            assert (line["client_id"], line["entity"], line["node_id"]) == (
                *("loader", "client-id=loader"),
                client["node_id"],
            )
        assert throttled(proxy) == []
        reported = explained(proxy, "loader", "producer_byte_rate")
        assert (reported["rule"]["limit"], reported["rule"]["layer"]) == (RATE, "state.json")
        past = reported["throttles"][0]
        assert (past["client_id"], past["ip"], past["limit"]) == ("loader", "127.0.0.1", RATE)
        assert past["rate"] > RATE

        kafka_throttle("quotas", "unset", *config, "--client-id", "loader", "producer_byte_rate")
        proxy.wait_for(lambda: explained(proxy, "loader", "producer_byte_rate")["rule"] is None, 5, "its end")
        described = kafka_throttle("quotas", "describe", *config)
        assert described.endswith(f"client-id=loader\n  shadow_producer_byte_rate  {RATE}  proxy.yaml\n")
