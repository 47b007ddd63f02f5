"""Clients that connect, ask which APIs there are, and go away: many that come as fast as they can, some that do not.

python -m tests.storm.clients {storm,good} HOST PORT ADDRESSES SECONDS

Prints JSON: for each address, in ms since the beginning, when each attempt was made (`attempts`), when those that were
answered were (`admitted`), how many were closed, or given up after 30 s, in place of that, and how long a response took
(`took_ms`).
"""

import asyncio
import json
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import uvloop

_API_VERSIONS = bytes.fromhex("0000000d00120000000000010003676f64")
"""Version 0, as any client may ask it first."""

_LOOPS = 2
"""So many clients at each bad address come again as soon as they are gone."""

_PACED_EVERY_S = 0.04
"""And so often comes one more there, whatever has become of those before, unless `_MOST_PACED` are still waiting."""

_MOST_PACED = 200
_GOOD_EVERY_S = 0.5
_TIMEOUT_S = 30.0
_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True)
class Reported:
    """What one address has seen."""

    attempts: list[int] = field(default_factory=list)
    admitted: list[int] = field(default_factory=list)
    took_ms: list[float] = field(default_factory=list)
    closed: int = 0
    given_up: int = 0


async def attempt(address: str, target: tuple[str, int], began: float, reported: Reported) -> None:
    """One connection from `address`, noted in `reported`."""
    loop, sock = asyncio.get_running_loop(), socket.socket()
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # no port is to wait for its end
        sock.bind((address, 0))
        start = time.monotonic()
        reported.attempts.append(round((start - began) * 1000))
        async with asyncio.timeout(_TIMEOUT_S):
            await loop.sock_connect(sock, target)
            await loop.sock_sendall(sock, _API_VERSIONS)
            response = await loop.sock_recv(sock, 4)
        if response:
            end = time.monotonic()
            reported.admitted.append(round((end - began) * 1000))
            reported.took_ms.append(round((end - start) * 1000, 2))
        else:
            reported.closed += 1
    except TimeoutError:
        reported.given_up += 1
    except OSError:
        reported.closed += 1
        await asyncio.sleep(0)
    finally:
        sock.close()


async def storm(addresses: Sequence[str], target: tuple[str, int], seconds: float) -> dict[str, Reported]:
    """All addresses at once, each with several clients that come again as soon as they are gone."""
    began, reported = time.monotonic(), {address: Reported() for address in addresses}

    async def keep_coming(address: str) -> None:
        while time.monotonic() < began + seconds:
            await attempt(address, target, began, reported[address])

    async def come_anyway(address: str, first_s: float) -> None:
        waiting: set[asyncio.Task[None]] = set()
        at_s = began + first_s
        while at_s < began + seconds:
            await asyncio.sleep(at_s - time.monotonic())
            if len(waiting) < _MOST_PACED:
                waiting.add(task := asyncio.create_task(attempt(address, target, began, reported[address])))
                task.add_done_callback(waiting.discard)
            at_s = max(at_s + _PACED_EVERY_S, time.monotonic())
        await asyncio.gather(*waiting)

    spread = _PACED_EVERY_S / len(addresses)
    await asyncio.gather(
        *(keep_coming(address) for address in addresses for _ in range(_LOOPS)),
        *(come_anyway(address, i * spread) for i, address in enumerate(addresses)),
    )
    return reported


async def good(addresses: Sequence[str], target: tuple[str, int], seconds: float) -> dict[str, Reported]:
    """Each address twice a second, evenly."""
    began, reported = time.monotonic(), {address: Reported() for address in addresses}

    async def come_now_and_then(address: str, first_s: float) -> None:
        at_s = began + first_s
        while at_s < began + seconds:
            await asyncio.sleep(at_s - time.monotonic())
            await attempt(address, target, began, reported[address])
            at_s = max(at_s + _GOOD_EVERY_S, time.monotonic())

    spread = _GOOD_EVERY_S / len(addresses)
    await asyncio.gather(*(come_now_and_then(address, i * spread) for i, address in enumerate(addresses)))
    return reported


def main() -> None:
    """As the head of this file says."""
    kind, host, port, addresses, seconds = sys.argv[1:]
    clients = {"storm": storm, "good": good}[kind]
    reported = uvloop.run(clients(addresses.split(","), (host, int(port)), float(seconds)))
    json.dump({address: asdict(of_address) for address, of_address in reported.items()}, sys.stdout)


if __name__ == "__main__":
    main()
