"""A quota over all nodes holds while the leaders of a producer's partitions move; a quota at each node does not."""

import threading
import time

import pytest
from confluent_kafka import Producer

from tests.integration.test_leadership import PARTITIONS, Moves
from tests.integration.topics import make_topic

LIMIT = 150_000
WARM_UP_S = 22
MEASURED_S = 110
PAUSE_S = 15
WINDOW_S = 22
VALUE = bytes(4000)


class Greedy:
    """A producer that sends as much as it may; `acknowledged` has the time and the size of each record that arrived."""

    def __init__(self, bootstrap, client_id, topic):
        self.acknowledged = []
        self.problems = []
        self._topic = topic
        # Few requests under way: those on their way to a node that leads no more are sent and charged twice.
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": client_id,
                "batch.size": 8_192,
                "linger.ms": 5,
                "max.in.flight": 2,
                "acks": 1,
                "queue.buffering.max.messages": 200,
                "topic.metadata.refresh.interval.ms": 2000,
            }
        )
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def stop(self):
        self._done.set()
        self._thread.join(60)
        self._producer.purge()

    def _run(self):
        number = 0
        while not self._done.is_set():
            try:
                self._producer.produce(self._topic, VALUE, partition=number % PARTITIONS, on_delivery=self._note)
                number += 1
            except BufferError:
                self._producer.poll(0.05)

    def _note(self, error, message):
        if error is None:
            self.acknowledged.append((time.monotonic(), len(VALUE)))
        else:
            self.problems.append(error)

    def rate(self, begin_s, end_s):
        """Bytes per second, as a part of the limit."""
        used = sum(size for at_s, size in self.acknowledged if begin_s <= at_s < end_s)
        return used / (end_s - begin_s) / LIMIT


def shown(producers, begin_s, moves):
    """A table: the rate of each producer over all, and the most in WINDOW_S, as parts of the limit."""
    starts = range(MEASURED_S - WINDOW_S + 1)
    rows = [
        (
            name,
            one.rate(begin_s, begin_s + MEASURED_S),
            max(one.rate(begin_s + s, begin_s + s + WINDOW_S) for s in starts),
        )
        for name, one in producers.items()
    ]
    head = f"rate / limit over {MEASURED_S} s with {moves} moves of all leaders | all | most in {WINDOW_S} s"
    return "\n".join([head, *(f"{name:<30} | {whole:.3f} | {most:.3f}" for name, whole, most in rows)])


@pytest.mark.rule("scope")
@pytest.mark.nightly
def test_the_limit_over_all_nodes_holds_while_leaders_move(newest_kafka, start_proxy):
    quota = {"producer_byte_rate": LIMIT}
    proxy = start_proxy([{"client_id": "of-cluster", "scope": "cluster", **quota}, {"client_id": "of-nodes", **quota}])
    newest_kafka.tool(
        "kafka-configs", "--bootstrap-server", newest_kafka.bootstrap_servers, "--alter", "--entity-type", "clients",
        "--entity-name", "of-broker", "--add-config", f"producer_byte_rate={LIMIT}",
    )  # fmt: skip
    at = {
        "proxy, scope: cluster": (proxy.bootstrap, "of-cluster"),
        "proxy, scope: node": (proxy.bootstrap, "of-nodes"),
        "Kafka's own, at each broker": (newest_kafka.bootstrap_servers, "of-broker"),
    }
    for _, client_id in at.values():
        make_topic(newest_kafka.bootstrap_servers, client_id, PARTITIONS)
    moves = Moves(newest_kafka, *(client_id for _, client_id in at.values()), pause_s=PAUSE_S)
    producers = {name: Greedy(bootstrap, client_id, client_id) for name, (bootstrap, client_id) in at.items()}
    try:
        moves.start()
        time.sleep(WARM_UP_S)
        begin_s, before = time.monotonic(), moves.count
        time.sleep(MEASURED_S)
        moved = moves.count - before
    finally:
        for producer in producers.values():
            producer.stop()
        moves.stop()
    table = shown(producers, begin_s, moved)
    print(table)
    of_cluster, of_nodes, of_broker = (one.rate(begin_s, begin_s + MEASURED_S) for one in producers.values())
    assert moved >= 4, table
    assert not any(one.problems for one in producers.values())
    assert 0.95 < of_cluster < 1.05, table
    assert min(of_nodes, of_broker) > 1.2, table
