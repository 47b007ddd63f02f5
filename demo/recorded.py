"""The part of the demo that goes on: its use is recorded, and changes of the quotas are shown."""

import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import inf
from pathlib import Path

from rich.text import Text

from demo.load import Load
from demo.proxy_process import ProxyProcess
from demo.screen import MB, WINDOW_S, Phase, Screen

RECORDED = "recorded"
"""The name of this phase."""

_QUOTA_TYPES = {
    "good-producer": "produce",
    "good-consumer": "fetch",
    "noisy-producer": "produce",
    "noisy-consumer": "fetch",
}


class InForce:
    """The quotas of the demo's clients as the proxy has them, in bytes/s, and their changes."""

    def __init__(self, proxy: ProxyProcess, quotas: Mapping[str, float]) -> None:
        self.by_client = dict(quotas)
        self._proxy = proxy
        self._at_first = dict(quotas)

    def changes(self) -> Iterator[str]:
        """The changes since the last call, in words. Raises OSError if the proxy does not respond."""
        limits = self._proxy.limits()
        for name, quota_type in _QUOTA_TYPES.items():
            now, before = limits.get((name, quota_type)), self.by_client[name]
            if now is not None and now != before:
                self.by_client[name] = now
                yield f"in force now: {name} {now / MB:.2f} MB/s (was {before / MB:.2f})"

    def summary(self, load: Load) -> Iterator[str]:
        """The results of the clients whose quotas have changed."""
        now_s = time.monotonic()
        for name, first in self._at_first.items():
            if (now := self.by_client[name]) != first:
                used = load.clients[name].seen(max(now_s - WINDOW_S, load.began_s), now_s).bytes_per_second
                quota = f"quota {first / MB:.2f}, now {now / MB:.2f} MB/s"
                yield f"{name}: {quota}; over the last {WINDOW_S} s it had {used / MB:.2f} MB/s"


def go_on(
    screen: Screen, load: Callable[[], Load], proxy: ProxyProcess, quotas: Mapping[str, float], record: Path
) -> None:
    """Run a load through the proxy until Ctrl-C, and report each change of its clients' quotas."""
    for line in next_commands(proxy.bootstrap, record):
        screen.say_whole(Text(line))
    with screen.step("starting four clients again, through the proxy"):
        running = load()
    in_force = InForce(proxy, quotas)
    with suppress(KeyboardInterrupt):
        screen.watch(running, Phase("until Ctrl-C: through the proxy", inf, in_force.by_client), in_force.changes)
    for line in in_force.summary(running):
        screen.say_whole(Text(line, style="bold"))
    running.end()
    proxy.stop()
    screen.say(Text(f"ended; usage records are in {record}"))


def next_commands(bootstrap: str, record: Path) -> Iterator[str]:
    """The commands to run next, in another terminal; they turn the records of `record` into quotas in force."""
    spool, table, quotas, plan = (shlex.quote(f"{record}{end}") for end in ("", "-table", "-quotas", "-plan.json"))
    yield ""
    yield "The load goes on, and is recorded, until Ctrl-C. In another terminal, in this directory:"
    yield f'  make usage ARGS="ingest --from {spool} --table {table}"'
    yield (
        f'  make usage ARGS="recommend --table {table} --out {quotas} --by client-id --types produce,fetch'
        ' --least-days 1 --least-windows 10 --no-simulate --capacity deploy/demo-capacity.yaml"'
    )
    yield f'  make usage ARGS="plan --quotas {quotas}/quotas.yaml --bootstrap-server {bootstrap} --out {plan}"'
    yield f'  make usage ARGS="apply {plan} --bootstrap-server {bootstrap}"'
    yield "What each does: docs/reference/five-commands.md"
    yield ""
