"""What a relay takes by itself, without sockets: CPU time in us of a request with its response, and of a connection.

    [KAFKA_THROTTLE_COMPILED=$(deploy/compiled.sh)] python tests/bench/relay_alone.py [--rounds 5] [--requests 20000] \
        [--counts]

Prints medians with lowest and highest for the build that the environment asks for. With --counts it
prints how many calls of Python's functions, and how many bytecodes, each step of a request takes instead, below a quota
and above it: these are the same on every machine. Only pure Python can be counted.
"""

import argparse
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from kafka_throttle.proxy.installed import build_in_use, take_build

take_build()

from kafka_throttle.protocol.messages.api_versions import carried  # noqa: E402
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts  # noqa: E402
from kafka_throttle.proxy.relay.actions import Action, RelayLimits, WakeAt  # noqa: E402
from kafka_throttle.proxy.relay.relay import Relay  # noqa: E402
from kafka_throttle.proxy.relay.relay_counters import RelayCounters  # noqa: E402
from kafka_throttle.proxy.side import Side  # noqa: E402
from tests.bench.counting_proxy import Bytecodes  # noqa: E402
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


class Counted:
    """One connection whose requests all exceed a quota, or never do; each step of the latest request is counted."""

    def __init__(self, limit: int, withholds: bool) -> None:
        manager = quota_manager_with(produce=limit, fetch=limit)
        facts = ConnectionFacts(ListenerFacts("main", FixedNodes(), manager, carried), 1, "ANONYMOUS")
        self._relay = Relay(manager, RelayCounters(), RelayLimits(withholds=withholds), facts.bind)
        self._now_us = 1_000_000_000
        self._relay.on_writable(Side.NODE, self._now_us)
        self.steps: dict[str, tuple[int, int]] = {}

    def exchange(self, request: bytes, response: bytes) -> None:
        """Take a request and its response 1 ms later, and let the throttle end, if one began."""
        self.steps = {}
        actions = self._counted("request", lambda: self._relay.on_bytes(Side.CLIENT, request, self._now_us))
        self._now_us += 1000
        actions += self._counted("response", lambda: self._relay.on_bytes(Side.NODE, response, self._now_us))
        for at_ms in [action.at_ms for action in actions if isinstance(action, WakeAt)]:
            self._now_us = at_ms * 1000
            self._counted("end of the throttle", lambda: self._relay.on_time(self._now_us))
        assert self._relay.idle
        assert not self._relay.muted

    def _counted(self, step: str, run: Callable[[], list[Action]]) -> list[Action]:
        counted = Bytecodes()
        counted.begin()
        actions = run()
        counted.end()
        rows = [row for row in counted.rows() if "tests" not in Path(row[0]).parts]
        self.steps[step] = sum(row[3] for row in rows), sum(row[4] for row in rows)
        return actions


_KINDS: Mapping[str, tuple[Callable[[int], bytes], Callable[[int], bytes]]] = {
    "produce": (lambda number: produce(number, size=1000), produced),
    "fetch, paced,": (fetch, fetched),
    "fetch, empty,": (fetch, fetched),
}
_NEVER_EXCEEDED, _EXCEEDED = 10**15, 500


def counts() -> dict[tuple[str, str], dict[str, tuple[int, int]]]:
    """By API and state of its quota, the calls and bytecodes of each step of a request like the ones before."""
    found = {}
    for api, (request, response) in _KINDS.items():
        for state, limit in (("below its quota", _NEVER_EXCEEDED), ("over its quota", _EXCEEDED)):
            counted = Counted(limit, withholds="empty" in api)
            for number in range(40):  # until the first window of the sensor is over
                counted.exchange(request(number), response(number))
            found[api, state] = counted.steps
    return found


def show_counts() -> None:
    """Print a Markdown table."""
    print("| | step | calls | bytecodes |\n|---|---|---|---|")
    for (api, state), steps in counts().items():
        for step, (calls, codes) in steps.items():
            print(f"| {api} {state} | {step} | {calls} | {codes} |")
        calls, codes = (sum(figures) for figures in zip(*steps.values(), strict=True))
        print(f"| {api} {state} | all | {calls} | {codes} |")


def main() -> None:
    """Print a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--counts", action="store_true", help="calls and bytecodes in place of times")
    arguments = parser.parse_args()
    gc.disable()
    if arguments.counts:
        if build_in_use() != "pure":
            parser.error("only pure Python can be counted")
        show_counts()
        return
    print(f"| {build_in_use()} | us |\n|---|---|")
    for title, measure in measures(arguments.requests).items():
        found = [measure() for _ in range(arguments.rounds)]
        print(f"| {title} | {median(found):.2f} ({min(found):.2f} - {max(found):.2f}) |")


if __name__ == "__main__":
    main()
