"""Nodes are restarted one after the other, with one of them in the proxy's file: the proxy stays ready for clients."""

import socket
import threading
import time
from collections import Counter
from contextlib import ExitStack
from struct import pack, unpack

import pytest

from kafka_throttle.protocol.api_key import METADATA
from tests.integration.proxy_process import HOST, ProxyProcess
from tests.integration.test_leadership import Reader, Writer, follows
from tests.integration.topics import make_topic
from tests.integration.workloads.__main__ import library_of
from tests.integration.workloads.scenarios import assert_same, wait_until
from tests.relay.frames import request
from tests.support.timeouts import TIMEOUT_S

PARTITIONS = 6
_EVERY_S = 0.05
_ALL_NODES = request(METADATA, 1, pack(">i", 0))
_ENDS = {"stopped": "stop", "killed": "kill"}


class Newcomers:
    """One new client after the other that bootstraps at the proxy: it connects, asks for metadata and leaves.

    As any client of Kafka it comes again, once, when its connection ends before the response.
    """

    def __init__(self, port):
        self.slowest_s = 0.0
        self.outcomes = Counter()
        self._port = port
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join(TIMEOUT_S)

    def _run(self):
        while not self._done.wait(_EVERY_S):
            began_s = time.monotonic()
            outcome = self._bootstrap()
            if outcome != "served":
                outcome = f"{outcome}, then {self._bootstrap()}"
            self.outcomes[outcome] += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)

    def _bootstrap(self):
        try:
            with socket.create_connection((HOST, self._port), TIMEOUT_S) as sock, sock.makefile("rb") as stream:
                sock.sendall(_ALL_NODES)
                size = stream.read(4)
                if not size:
                    return "closed"
                response = stream.read(unpack(">i", size)[0])
                return "served" if unpack(">i", response[4:8])[0] > 0 else "without nodes"
        except OSError as error:
            return type(error).__name__


class Probe:
    """Counts the statuses of /readyz, which it asks for ten times a second."""

    def __init__(self, proxy):
        self.statuses = Counter()
        self._proxy = proxy
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._done.set()
        self._thread.join(TIMEOUT_S)

    def _run(self):
        while not self._done.wait(0.1):
            self.statuses[self._proxy.status("readyz")] += 1


@pytest.mark.nightly
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_while_nodes_are_restarted_one_by_one_the_proxy_is_ready_and_refuses_no_client(newest_kafka, end):
    """Each node is away long enough for a look at the cluster to find it so."""
    kafka, topic = newest_kafka, f"restarted-{end}"
    with ExitStack() as stack:
        upstream = {"metadata_refresh_s": 2}
        proxy = stack.enter_context(ProxyProcess("{}:{}".format(*kafka.address(1)), upstream=upstream))
        make_topic(proxy.bootstrap, topic, PARTITIONS)
        library = library_of("confluent-kafka", proxy.bootstrap)
        writer, reader = Writer(library, topic), Reader(library, topic)
        try:
            wait_until(lambda: len(reader.records) > 200, "records to flow")
            with Newcomers(proxy.port) as newcomers, Probe(proxy) as probe:
                for node_id in kafka.node_ids:
                    getattr(kafka, _ENDS[end])(node_id)
                    try:
                        wait_until(lambda node_id=node_id: follows(proxy, topic, node_id), "other leaders")
                        time.sleep(3)
                    finally:
                        kafka.restart(node_id)
                    seen = len(reader.records)
                    wait_until(lambda seen=seen: len(reader.records) > seen + 200, "records to flow again")
        finally:
            writer.stop()
        wait_until(lambda: len(reader.records) >= len(writer.sent), "the rest to be read")
        time.sleep(0.5)
        reader.stop()
        library.close()
        print(f"{end}: {newcomers.outcomes}, slowest {newcomers.slowest_s:.2f} s; /readyz {probe.statuses}")
        print(Counter((line["reason"], line.get("node_id")) for line in proxy.events("connection_closed")))
        print(f"{len(writer.sent)} records written, {len(reader.records)} read")
        assert set(probe.statuses) == {200}
        lost = {line["reason"] for line in proxy.events("connection_closed")} - {"client_closed", "client_sent_nothing"}
        assert lost <= {"node_closed", "node_lost", "client_lost", "node_unreachable"}
        assert newcomers.outcomes["served"] > 100
        assert set(newcomers.outcomes) <= {"served", "closed, then served"}
        assert newcomers.outcomes["closed, then served"] <= len(kafka.node_ids)  # those whose node ended meanwhile
        refused = [line for line in proxy.events("connection_closed") if line["reason"] == "node_unreachable"]
        assert not [line for line in refused if "node_id" not in line], "nobody who bootstraps is refused"
        assert_same((record.value for record in reader.records), writer.sent)
        assert proxy.events("bootstrap_servers_silent")
        assert not proxy.events("cluster_unreachable")
        assert not proxy.events("internal_error")
