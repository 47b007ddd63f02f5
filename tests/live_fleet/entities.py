"""Many entities that are all throttled: `python -m tests.live_fleet.entities ENTITIES REQUEST_BYTES HOST:PORT...`.

Each entity has a connection to two of the addresses and sends a request on each as soon as the one before is answered.
Prints the number of responses so far every second, as JSON.
"""

import asyncio
import json
import sys
from struct import pack
from typing import Any

from kafka_throttle.protocol.api_key import PRODUCE
from tests.integration.raw_client import records

_OPENED_PER_SECOND = 200
_VERSION = 7


class Count:
    """Responses so far."""

    def __init__(self) -> None:
        self.responses = 0
        self.connections = 0


def request(client_id: str, size_bytes: int) -> bytes:
    """A frame of about so many bytes, to a topic that is not there: a node charges it and stores nothing."""
    name, topic = client_id.encode(), b"no-such-topic"
    head = pack(">hhih", PRODUCE, _VERSION, 0, len(name)) + name + pack(">hhii", -1, 1, 30_000, 1)
    head += pack(">h", len(topic)) + topic + pack(">ii", 1, 0)
    batch = records(size_bytes - len(head) - 4)
    frame = head + pack(">i", len(batch)) + batch
    return pack(">i", len(frame)) + frame


async def one_connection(host: str, port: int, frame: bytes, count: Count) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    count.connections += 1
    while True:
        writer.write(frame)
        size = int.from_bytes(await reader.readexactly(4), "big")
        await reader.readexactly(size)
        count.responses += 1


async def main() -> None:
    """Until it is killed."""
    entities, size_bytes = int(sys.argv[1]), int(sys.argv[2])
    addresses = [address.rpartition(":")[::2] for address in sys.argv[3:]]
    count = Count()
    reporting = asyncio.create_task(_report(count))
    clients: list[asyncio.Task[Any]] = []
    for number in range(entities):
        frame = request(f"entity-{number}", size_bytes)
        for host, port in (addresses[number % len(addresses)], addresses[(number + 1) % len(addresses)]):
            clients.append(asyncio.create_task(one_connection(host, int(port), frame, count)))
            await asyncio.sleep(1 / _OPENED_PER_SECOND)
    await asyncio.gather(reporting, *clients)


async def _report(count: Count) -> None:
    while True:
        print(json.dumps(vars(count)), flush=True)
        await asyncio.sleep(1)


if __name__ == "__main__":
    asyncio.run(main())
