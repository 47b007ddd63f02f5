"""`python -m tests.integration.workloads NAME --bootstrap HOST:PORT --topic PREFIX` puts one library through all.

Prints one JSON object: records (or partitions) by scenario, and seconds by scenario.
"""

import argparse
import importlib
import json
import time

from tests.integration.workloads.scenarios import SCENARIOS, Library

LIBRARIES = {
    "kafka-python": ("with_kafka_python", "KafkaPython"),
    "confluent-kafka": ("with_confluent_kafka", "ConfluentKafka"),
    "aiokafka": ("with_aiokafka", "AioKafka"),
}


def library_of(name: str, bootstrap: str) -> Library:
    """A client library by its name; only this one is imported."""
    module, kind = LIBRARIES[name]
    made: Library = getattr(importlib.import_module(f"tests.integration.workloads.{module}"), kind)(bootstrap)
    return made


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=LIBRARIES)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    arguments = parser.parse_args()
    library = library_of(arguments.name, arguments.bootstrap)
    counts, seconds = {}, {}
    for scenario in SCENARIOS:
        began = time.monotonic()
        counts[scenario.__name__] = scenario(library, f"{arguments.topic}-{scenario.__name__}")
        seconds[scenario.__name__] = round(time.monotonic() - began, 2)
    library.close()
    print(json.dumps({"counts": counts, "seconds": seconds}))


if __name__ == "__main__":
    main()
