"""docs/reference/signals.md, all metrics and log events.

    python -m kafka_throttle.proxy.observe.signals_page > docs/reference/signals.md

Metrics come from the registry. Log events come from the source: from each call of a logger (a name or attribute `log`
or `_log`), whose event must be a constant. Their keys are its keywords; `**` is followed to the function that returns
the mapping, or to the variable.
"""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.metrics import MetricWrapperBase

from kafka_throttle.proxy.observe.log_events import LOG_EVENTS, SECTIONS
from kafka_throttle.proxy.observe.metrics import Metrics

_ROOT = Path(__file__).parents[2]
_ROOMS = ("common", "proxy", "quotas")
_LEVELS = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
_LEVELS_IN_ORDER = tuple(dict.fromkeys(_LEVELS.values()))
_FURTHER = "..."
"""In place of keys that are known only at run time."""

_INTRODUCTION = """# Metrics and log events

Generated from the code by `python -m kafka_throttle.proxy.observe.signals_page > docs/reference/signals.md`; a test
keeps it up to date. What to watch, and what to do: [operations](operations.md).

## Metrics

At `/metrics` of `metrics.bind` and `metrics.port`, in the format of Prometheus or OpenMetrics. Kafka's milliseconds are
seconds here. A metric with the label `user` has series for some entities only: those that use most and those that are
throttled most (`metrics.top_entities`).

| metric | type | labels | unit | meaning |
| --- | --- | --- | --- | --- |
"""

_ABOUT_LOGS = """
## Log events

One line for each event on standard error, as JSON or for people (`log.format`). Every line begins with `timestamp`,
`level`, `event` and `pid` (the process id); if the process is a worker, `worker` has its number. Then come the keys
that all lines about the same thing have, and those of the event, always in the same order. A key without a value is
left out. A line whose event is not in this list comes from a library, and has `logger`. Texts of clients are cut to
128 characters, and their control characters are escaped.
"""

_UNITS = (
    ("_timestamp_seconds", "seconds since 1970"),
    ("_bytes_per_second", "bytes/s"),
    ("_seconds", "seconds"),
    ("_bytes", "bytes"),
    ("_accept_rate", "connections/s"),
    ("_accept_limit", "connections/s"),
    ("entity_rate", "of the quota"),
    ("entities_rate", "of the quota"),
    ("entity_limit", "of the quota"),
    ("entity_tokens", "tokens"),
)
"""The unit of a metric, by the end of its name; otherwise it is a number."""


def signals_page() -> str:
    """The page as Markdown."""
    return _INTRODUCTION + "".join(_metric_rows()) + _ABOUT_LOGS + "".join(_event_tables(logged_events()))


# --------------------------------------------------------------------- metrics


def _metric_rows() -> Iterator[str]:
    rows = {}
    for family, labels in _families(Metrics(CollectorRegistry()).registry):
        name = f"{family.name}{_SUFFIX.get(family.type, '')}"
        shown = ", ".join(f"`{label}`" for label in labels)
        rows[name] = f"| `{name}` | {family.type} | {shown} | {_unit(family)} | {_cell(family.documentation)} |\n"
    yield from (row for _, row in sorted(rows.items()))


_SUFFIX = {"counter": "_total", "info": "_info"}


def _families(registry: CollectorRegistry) -> Iterator[tuple[Metric, Sequence[str]]]:
    """Each metric family, with its labels."""
    for collector in list(registry._collector_to_names):
        for family in collector.collect():
            if family.type == "info":
                yield family, list(family.samples[0].labels)
            elif isinstance(collector, MetricWrapperBase):
                yield family, collector._labelnames
            else:
                yield family, getattr(family, "_labelnames", ())


def _unit(family: Metric) -> str:
    return next((unit for ending, unit in _UNITS if family.name.endswith(ending)), "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# ------------------------------------------------------------------ log events

_Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class LoggedEvent:
    """An event as the calls that log it show it."""

    levels: set[str] = field(default_factory=set)
    keys: dict[str, None] = field(default_factory=dict)


class UnclearCall(Exception):
    """A call of a logger whose event or level is no constant. The text says where it is."""


def logged_events(root: Path = _ROOT) -> dict[str, LoggedEvent]:
    """All events that the code logs. Raises UnclearCall."""
    files = [file for room in _ROOMS for file in sorted((root / room).rglob("*.py"))]
    return _Calls({str(file.relative_to(root)): ast.parse(file.read_text(encoding="utf-8")) for file in files}).events()


def _event_tables(logged: Mapping[str, LoggedEvent]) -> Iterator[str]:
    for section, meanings in LOG_EVENTS.items():
        about = f"{SECTIONS[section]}\n\n" if section in SECTIONS else ""
        yield f"\n### {section}\n\n{about}| event | level | keys | meaning |\n| --- | --- | --- | --- |\n"
        for name, meaning in sorted(meanings.items()):
            event = logged[name]
            levels = ", ".join(level for level in _LEVELS_IN_ORDER if level in event.levels)
            keys = ", ".join(key if key == _FURTHER else f"`{key}`" for key in event.keys)
            yield f"| `{name}` | {levels} | {keys} | {_cell(meaning)} |\n"


class _Calls:
    """The calls of loggers in some modules, by the names of their files."""

    def __init__(self, modules: Mapping[str, ast.Module]) -> None:
        self._modules = modules
        self._functions: dict[str, list[_Function]] = {}
        for module in modules.values():
            for function in _functions_in(module):
                self._functions.setdefault(function.name, []).append(function)

    def events(self) -> dict[str, LoggedEvent]:
        """Each event that is logged, with its levels and keys."""
        events: dict[str, LoggedEvent] = {}
        for name, module in self._modules.items():
            scopes = {id(node): function for function in _functions_in(module) for node in ast.walk(function)}
            for call in _calls_of_loggers(module):
                scope = scopes.get(id(call))
                names, levels = _texts(call.args[-1]) if call.args else [], self._levels(call, scope)
                if not names or not levels:
                    raise UnclearCall(f"{name}, line {call.lineno}: expected constants as the event and its level")
                keys = dict.fromkeys(self._keys_of_call(call, scope))
                for text in names:
                    found = events.setdefault(text, LoggedEvent())
                    found.levels |= levels
                    found.keys |= keys
        return events

    def _levels(self, call: ast.Call, scope: _Function | None) -> set[str]:
        """The level of the method; for `log` those that the function names which chooses the level, here or before."""
        method = _name_of(call.func)
        if method in _LEVELS:
            return {_LEVELS[method]}
        chosen_by = [call.args[0]]
        if isinstance(call.args[0], ast.Name) and scope is not None:
            chosen_by = _assigned(call.args[0].id, scope)
        functions = [function for expression in chosen_by for function in self._called(expression)]
        chosen = [node for function in functions for node in ast.walk(function)]
        return {_name_of(node).lower() for node in chosen if isinstance(node, ast.Attribute)} & {*_LEVELS_IN_ORDER}

    def _keys_of_call(self, call: ast.Call, scope: _Function | None) -> Iterator[str]:
        for keyword in call.keywords:
            if keyword.arg is None:
                yield from self._keys_of(keyword.value, scope)
            else:
                yield "exception" if keyword.arg == "exc_info" else keyword.arg
        if _name_of(call.func) == "exception":
            yield "exception"

    def _keys_of(self, mapping: ast.expr, scope: _Function | None) -> Iterator[str]:
        """The keys of a mapping, as far as the code shows them; otherwise _FURTHER."""
        match mapping:
            case ast.Dict():
                for key, value in zip(mapping.keys, mapping.values, strict=True):
                    yield from self._keys_of(value, scope) if key is None else _texts(key) or [_FURTHER]
            case ast.BinOp(left=one, right=other) | ast.IfExp(body=one, orelse=other):
                yield from self._keys_of(one, scope)
                yield from self._keys_of(other, scope)
            case ast.Name() if scope is not None and (values := _assigned(mapping.id, scope)):
                for value in values:
                    yield from self._keys_of(value, scope)
            case ast.Call() if functions := list(filter(_returns_a_mapping, self._called(mapping))):
                for function in functions:
                    for node in ast.walk(function):
                        if isinstance(node, ast.Return) and node.value is not None:
                            yield from self._keys_of(node.value, function)
            case _:
                yield _FURTHER

    def _called(self, call: ast.expr) -> list[_Function]:
        return self._functions.get(_name_of(call.func), []) if isinstance(call, ast.Call) else []


def _functions_in(module: ast.Module) -> Iterator[_Function]:
    """All functions, each before those inside of it."""
    return (node for node in ast.walk(module) if isinstance(node, _Function))


def _returns_a_mapping(function: _Function) -> bool:
    return function.returns is not None and ast.unparse(function.returns).startswith(("dict[", "Mapping["))


def _calls_of_loggers(module: ast.Module) -> Iterator[ast.Call]:
    for node in ast.walk(module):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            logger = node.func.value
            if node.func.attr in (*_LEVELS, "log") and _name_of(logger) in ("log", "_log"):
                yield node


def _name_of(expression: ast.expr) -> str:
    """The name of a variable, or the last part of a dotted name."""
    if isinstance(expression, ast.Attribute):
        return expression.attr
    return expression.id if isinstance(expression, ast.Name) else ""


def _texts(expression: ast.expr) -> list[str]:
    """The constant, or both constants between which a condition chooses; none if it is not of constants."""
    branches = [expression.body, expression.orelse] if isinstance(expression, ast.IfExp) else [expression]
    texts = [branch.value for branch in branches if isinstance(branch, ast.Constant) and isinstance(branch.value, str)]
    return texts if len(texts) == len(branches) else []


def _assigned(name: str, scope: _Function) -> list[ast.expr]:
    """What is assigned to a variable in a function, also as one of several."""
    found: list[ast.expr] = []
    for node in ast.walk(scope):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=False)
                else:
                    pairs = zip([target], [node.value], strict=False)
                found += [value for each, value in pairs if isinstance(each, ast.Name) and each.id == name]
    return found


if __name__ == "__main__":
    print(signals_page(), end="")
