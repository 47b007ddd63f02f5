"""What a relay takes by itself, without sockets: CPU time in us of a request with its response, and of a connection.

    [KAFKA_THROTTLE_COMPILED=$(deploy/compiled.sh)] python tests/bench/relay_alone.py [--rounds 5] [--requests 20000]

Prints medians with lowest and highest for the make of the deciding code that the environment asks for.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from proxy.installed import make_in_use, take_make

take_make()

from protocol.messages.api_versions import carried  # noqa: E402
from proxy.decisions.facts import ConnectionFacts, ListenerFacts  # noqa: E402
from proxy.relay.actions import RelayLimits  # noqa: E402
from proxy.relay.relay import Relay  # noqa: E402
from proxy.relay.relay_counters import RelayCounters  # noqa: E402
from proxy.side import Side  # noqa: E402
from tests.relay.frames import fetch, fetched, produce, produced  # noqa: E402
from tests.relay.script import FixedNodes, quota_manager_with  # noqa: E402

_FRAMES = 1000
_US_PER_REQUEST = 100


class Measured:
    """Relays whose clients have quotas that nothing here exceeds."""

    def __init__(self) -> None:
        self._manager = quota_manager_with(produce=10**15, fetch=10**15)
        self._facts = ConnectionFacts(ListenerFacts("main", FixedNodes(), self._manager, carried), 1, "ANONYMOUS")
        self._counters = RelayCounters()
        self._now_us = 1_000_000_000

    def _relay(self) -> Relay:
        return Relay(self._manager, self._counters, RelayLimits(), self._facts.bind)

    def requests(self, requests: Sequence[bytes], responses: Sequence[bytes], count: int) -> float:
        """The CPU time of one request with its response on one connection, in us."""
        relay, now_us = self._relay(), self._now_us
        relay.on_writable(Side.NODE, now_us)
        begin = time.thread_time()
        for number in range(count):
            now_us += _US_PER_REQUEST
            relay.on_bytes(Side.CLIENT, requests[number % _FRAMES], now_us)
            relay.on_bytes(Side.NODE, responses[number % _FRAMES], now_us)
        self._now_us = now_us
        return (time.thread_time() - begin) / count * 1e6

    def connections(self, count: int) -> float:
        """The CPU time of one connection with one request, in us."""
        request, response = produce(1), produced(1)
        begin = time.thread_time()
        for _ in range(count):
            self._now_us += _US_PER_REQUEST
            relay = self._relay()
            relay.on_bytes(Side.CLIENT, request, self._now_us)
            relay.on_writable(Side.NODE, self._now_us)
            relay.on_bytes(Side.NODE, response, self._now_us)
            relay.on_eof(Side.CLIENT, self._now_us)
        return (time.thread_time() - begin) / count * 1e6


def measures(count: int) -> dict[str, Callable[[], float]]:
    """By title, what is measured."""
    ids, measured = range(1, _FRAMES + 1), Measured()
    alike, responses = [produce(one) for one in ids], [produced(one) for one in ids]
    two_clients = [produce(one, client_id=b"etl" if one % 2 else b"other") for one in ids]
    fetches, small = [fetch(one) for one in ids], [fetched(one, size=4096) for one in ids]
    return {
        "produce like the one before": lambda: measured.requests(alike, responses, count),
        "produce of two clients in turn": lambda: measured.requests(two_clients, responses, count),
        "4 KiB fetch": lambda: measured.requests(fetches, small, count),
        "connection with one produce": lambda: measured.connections(count // 4),
    }


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000)
    arguments = parser.parse_args()
    gc.disable()
    print(f"| {make_in_use()} | us |\n|---|---|")
    for title, measure in measures(arguments.requests).items():
        found = [measure() for _ in range(arguments.rounds)]
        print(f"| {title} | {median(found):.2f} ({min(found):.2f} - {max(found):.2f}) |")


if __name__ == "__main__":
    main()
