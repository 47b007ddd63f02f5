"""A run with one throttled, one storming and ten good clients and a node that goes and comes, and the log of it.

python -m tests.quiet_log [--seconds 600] [--log FILE]

The proxy stands in front of three nodes of Kafka 4.3.1. Node 2 is stopped after a quarter of the time and started again
at the half. Prints the events with their numbers and one example each, then all warnings and errors. Exit status 1 if
there is a warning or error for which the run has no cause, or if the log lacks something that it must say.
"""

import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import click

from demo.kafka_cluster import KafkaCluster
from tests.integration.proxy_process import ProxyProcess
from tests.integration.topics import make_topic
from tests.quiet_log import clients
from tests.quiet_log.judged import Line, Timeline, is_alarm, missing, table, unaccounted

GOOD = tuple(f"good-{number}" for number in range(10))
THROTTLED = "throttled"
TOPIC = "events"
NODE_ID = 2
RATE = 20_000


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--seconds", default=600.0, show_default=True, help="How long the run lasts.")
@click.option("--log", "log_file", type=click.Path(path_type=Path), help="Keep the log there.")
def main(seconds: float, log_file: Path | None) -> None:
    """As the head of this file says."""
    lines, timeline = run(seconds)
    if log_file is not None:
        log_file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    for row in table(lines):
        print(row)
    print(f"\n{len(lines)} lines; warnings and errors:")
    for line in filter(is_alarm, lines):
        print(json.dumps(line))
    wrong = [f"no cause: {json.dumps(line)}" for line in unaccounted(lines, timeline)]
    wrong += [f"missing: {what}" for what in missing(lines, timeline)]
    print("\n" + ("\n".join(wrong) or "each warning has a cause, and nothing is missing"))
    sys.exit(bool(wrong))


def run(seconds: float) -> tuple[list[Line], Timeline]:
    """The log of the proxy, from its start to its end, and what has happened meanwhile."""
    quotas = [{"client_id": THROTTLED, "producer_byte_rate": RATE}]
    with ExitStack() as stack:
        cluster = stack.enter_context(KafkaCluster("4.3.1", "kraft", 3, heap="320m"))
        make_topic(cluster.bootstrap_servers, TOPIC, 3)
        proxy = ProxyProcess(cluster, quotas, upstream={"metadata_refresh_s": 5})
        with proxy:
            timeline = _go_on(proxy, cluster, seconds)
        return proxy.log(), timeline


def _go_on(proxy: ProxyProcess, cluster: KafkaCluster, seconds: float) -> Timeline:
    begin_s = time.time()
    with ExitStack() as stack:
        for client_id in GOOD:
            stack.enter_context(clients.good(proxy.bootstrap, TOPIC, client_id))
        stack.enter_context(clients.throttled(proxy.bootstrap, TOPIC, THROTTLED, 3 * RATE))
        storm = stack.enter_context(clients.storm(proxy.host, proxy.port))
        clients.wait_until(begin_s + seconds / 4)
        gone_s = time.time()
        cluster.stop(NODE_ID)
        clients.wait_until(begin_s + seconds / 2)
        cluster.restart(NODE_ID)
        back_s = time.time()
        clients.wait_until(begin_s + seconds)
        end_s = time.time()
    print(f"{storm.rounds} connections of the storm", file=sys.stderr)
    return Timeline(begin_s, end_s, NODE_ID, (gone_s, back_s), THROTTLED, GOOD, clients.STORM_ADDRESS)


if __name__ == "__main__":
    main()
