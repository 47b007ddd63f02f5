"""confluent-kafka or kafka-python in a separate process, sending what it reads as tests/go/pipe does.

    python -m tests.integration.piped_producer confluent-kafka|kafka-python SETTINGS TOPIC

SETTINGS are the library's, as JSON.
"""

import json
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.integration.steady_producers import WithConfluentKafka, WithKafkaPython

if TYPE_CHECKING:
    from tests.integration.steady_producers import SteadyProducer

_LIBRARIES: dict[str, Callable[..., "SteadyProducer"]] = {
    "confluent-kafka": WithConfluentKafka,
    "kafka-python": WithKafkaPython,
}


def main() -> None:
    """See above."""
    library, settings, topic = sys.argv[1:]
    producer = _LIBRARIES[library](topic, **json.loads(settings))
    reported: set[int] = set()
    ended = threading.Event()

    def report() -> None:
        while True:
            last = ended.is_set()
            for one in list(producer.acknowledged()):
                if one.number not in reported:
                    reported.add(one.number)
                    print(*one, flush=True)
            if last:
                return
            time.sleep(0.02)

    reporter = threading.Thread(target=report)
    reporter.start()
    for line in sys.stdin:
        partition, _, value = line.rstrip("\n").partition(" ")
        producer.send(int(partition), value)
    producer.close()
    ended.set()
    reporter.join()


if __name__ == "__main__":
    main()
