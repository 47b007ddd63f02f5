"""The rules of the product and the tests that hold them: those that are marked `rule`.

python -m tests.rules    writes the table into docs/proofs/testing.md
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

from tests.support.places import ROOT

RULES = {
    "rates": "Byte rates and request percentages are measured with Kafka's arithmetic, bit for bit",
    "burst": "A client that was idle may use ten seconds' worth at once, except with fetches",
    "debt": "A client that waits its throttle time owes nothing; what a throttle was cut by is added to later ones",
    "bucket": "KIP-599: mutations spend tokens of Kafka's token bucket; a topic is refused while it is overdrawn",
    "levels": "Of the eight levels the most specific quota applies",
    "default": "A default is a template: each client that it applies to is measured separately",
    "mute": "KIP-219: a response goes out at once with the throttle time, then nothing is read until that is over",
    "throttle time": "The throttle time is in each response whose version has it; the largest one counts",
    "fetch": "A fetch asks for no more than what is left; connections under one quota share it evenly",
    "request": "KIP-124: request time is charged as such requests cost the node; a throttle is one second at most",
    "connection rate": "KIP-612: connections that an address makes too fast are held, then closed",
    "connections": "No more connections are open than an address or a user may have",
    "cap": "All connections together get no more than the cap; entities take turns",
    "unchanged": "Requests and responses pass byte for byte, except for what the proxy has to change",
    "order": "Responses come in the order of the requests",
    "addresses": "Clients find the nodes at the proxy's own addresses, and never connect around it",
    "nothing lost": "No record is lost or doubled by the proxy, whatever fails",
    "any bytes": "Whatever bytes arrive, only their own connection ends",
    "reconnect": "A client cannot avoid a throttle by reconnecting or hanging up",
    "sasl": "A login by SASL names its user when the node has accepted it, not before",
    "certificate": "A certificate names its user as Kafka's principal mapping rules do",
    "shadow": "A shadow quota slows no client down",
    "scope": "With the scope cluster a limit counts over all nodes",
    "fleet": "Shares of a limit in a fleet never add up to more than the limit",
    "moving": "A load that moves between instances gets no new burst",
    "rights": "Only users with the right to do so describe or alter quotas",
    "live": "A changed quota is in force for live connections, and what was used still counts",
    "reload": "A configuration that is wrong changes nothing and is reported",
    "last good": "Without their source, the last good quotas stay",
    "restart": "A restart waits for responses that are due, and refuses no client",
    "handed over": "The next process goes on with what the one before it has measured",
    "usage": "Each usage record is in one complete file, or reported as lost",
}
PAGE = ROOT / "docs/proofs/testing.md"
_BEGIN, _END = "<!-- rules -->\n", "<!-- end of rules -->"
_SLOW = ("nightly", "kafka", "spark", "exclusive")


class Held(NamedTuple):
    """A rule, and a test that is marked with it. `is_fast`: it needs no cluster and runs for each change."""

    rule: str
    is_fast: bool
    test: str


@cache
def held() -> tuple[Held, ...]:
    """All marks, in the order of files and lines."""
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    return tuple(each for file in files if "@pytest.mark.rule(" in file.read_text() for each in _held_in(file))


def _held_in(file: Path) -> Iterator[Held]:
    name = file.relative_to(ROOT).as_posix()
    for node in ast.parse(file.read_text()).body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        marks = [ast.unparse(decorator) for decorator in node.decorator_list]
        is_slow = name.startswith("tests/integration/") or any(
            f"mark.{slow}" in mark for slow in _SLOW for mark in marks
        )
        for decorator in node.decorator_list:
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.rule":
                yield Held(ast.literal_eval(decorator.args[0]), not is_slow, f"{name}::{node.name}")


def table() -> str:
    """A row for each rule; its fast tests come first."""
    tests: dict[str, list[str]] = {}
    for each in sorted(held(), key=lambda each: not each.is_fast):
        tests.setdefault(each.rule, []).append(f"`{each.test.removeprefix('tests/')}`")
    rows = [f"| {text} | {'<br>'.join(tests.get(rule, []))} |\n" for rule, text in RULES.items()]
    return "| rule | tests, below `tests/` |\n|---|---|\n" + "".join(rows)


def with_table(page: str) -> str:
    """The page with the table in its place."""
    begin, end = page.index(_BEGIN) + len(_BEGIN), page.index(_END)
    return page[:begin] + table() + page[end:]


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
