"""One member of a consumer group with librdkafka: it tells when it joins, and each record that it reads.

    python group_member.py BOOTSTRAP CLIENT_ID GROUP TOPIC

Lines out are those of tests/go/group/main.go.
"""

import sys
from typing import Any

from confluent_kafka import Consumer


def main(bootstrap: str, client_id: str, group: str, topic: str) -> None:
    """Read until it is ended."""
    settings = {"bootstrap.servers": bootstrap, "client.id": client_id, "group.id": group, "log_level": 2}
    consumer = Consumer({**settings, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic], on_assign=_joined)
    while True:
        for message in consumer.consume(500, 0.1):
            if message.error() is None:
                print("record", message.partition(), message.offset(), len(message.value()))
        sys.stdout.flush()


def _joined(consumer: Consumer, partitions: Any) -> None:
    print("joined", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
