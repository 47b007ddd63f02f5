"""Keeps how long each test took, and of each failure what it was, and whether the machine was busy meanwhile.

`tests.run` reads that from the file that `--outcome` names; pytest by itself prints the failures in short at the end.
`--shard` and `--exclusive` choose tests (`tests.shards`).
"""

import json
from importlib.util import find_spec
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import providers

from kafka_throttle.proxy.installed import build_in_use, take_build
from tests import shards
from tests.support.disturbance import Disturbance

take_build()

_DRAWN = Path(__file__).resolve().parents[1] / ".hypothesis/examples"
_PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
"""How long an example takes is the machine's affair."""
settings.register_profile("repeating", _PATIENT, derandomize=True)
settings.register_profile("exploring", _PATIENT, derandomize=False, database=DirectoryBasedExampleDatabase(_DRAWN))
settings.load_profile("repeating")
"""Who passes passes again: what is drawn depends on nothing but the test. `make explore` draws anew."""


def pytest_configure() -> None:
    """Constants of whatever modules happen to be loaded are drawn by who explores, not by who repeats."""
    if settings.get_current_profile_name() == "repeating":
        vars(providers)["_get_local_constants"] = lambda: vars(providers)["_local_constants"]


_MOST_CHARACTERS = 5_000
"""Of all failures together."""
_MOST_OF_ONE = 2_500
_LOGS = "logs"
_STATEMENTS = 5

_disturbance = Disturbance()
_durations: dict[str, float] = {}
"""Seconds of each test, set-up and tear-down included."""


def pytest_addoption(parser):
    parser.addini("log_folder", "where the logs of what failed are kept", default="build/test-logs")
    parser.addoption("--outcome", type=Path, help="write durations and failures there, as JSON, for tests.run")
    parser.addoption("--exclusive", choices=["yes", "no"], help="only tests that are marked so, or only the others")
    parser.addoption("--shard", type=int, choices=range(1, shards.SHARDS + 1), help="only this part of the tests")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leave what `--shard` and `--exclusive` do not ask for and the build cannot run; the longest first, by groups."""
    compiled = build_in_use() == "compiled"
    swept = find_spec("kafka_throttle.proxy.net._sweep") is not None
    chosen = [
        item
        for item in items
        if not (compiled and item.get_closest_marker("pure")) and (swept or not item.get_closest_marker("swept"))
    ]
    durations = shards.known_durations()
    if config.option.shard:
        units = shards.shards_of(shards.costs_of(chosen, durations))[config.option.shard - 1]
        chosen = [item for item in chosen if shards.unit_of(item) in units]
    if asked := config.option.exclusive:
        chosen = [item for item in chosen if bool(item.get_closest_marker("exclusive")) == (asked == "yes")]
    kept = set(chosen)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = shards.longest_first(chosen, durations)
    if workerinput := getattr(config, "workerinput", None):
        shards.write_groups(workerinput, items)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return shards.GroupScheduling(config, log)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session):
    if session.config.option.collectonly:
        return (yield)
    with _disturbance:
        return (yield)


def pytest_runtest_logstart():
    _disturbance.begin_anew()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Keep what was wrong in words, without the notes: these are logs."""
    report = yield
    if report.failed:
        report.in_words = in_words(call.excinfo, item.config.rootpath)
        _disturbance.take_stock()
        report.disturbance = str(_disturbance) if _disturbance.seen else ""
    return report


def in_words(raised, root):
    """The statements of our own that were under way, and the message."""
    ours = [entry for entry in raised.traceback if Path(entry.path).is_relative_to(root)]
    under_way = [
        f"{Path(entry.path).relative_to(root)}:{entry.lineno + 1}: {str(entry.statement).strip()}" for entry in ours
    ]
    parts = getattr(raised.value, "exceptions", ())
    reported = [f"{type(error).__name__}: {error}" for error in (*parts, raised.value)]
    return "\n".join([*under_way[-_STATEMENTS:], *reported])


def pytest_runtest_logreport(report):
    _durations[report.nodeid] = _durations.get(report.nodeid, 0.0) + report.duration


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    """After all else that is printed."""
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:  # in a worker
        return result
    reports = [*reporter.getreports("failed"), *reporter.getreports("error")]
    if file := session.config.option.outcome:
        found = {"durations": _durations}
        if reports:
            found |= {"in_short": in_short(reports), "in_full": in_full(reports)}
            found["failed"] = {report.nodeid: getattr(report, "disturbance", "") for report in reports}
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found))
    elif reports:
        reporter.ensure_newline()
        reporter.section("what failed, in short")
        reporter.write_line(in_short(reports))
    return result


def in_short(reports):
    """Each failure's name, message and logs; the more there are, the less of each."""
    most = min(_MOST_CHARACTERS // len(reports), _MOST_OF_ONE)
    return "\n".join(_of_one(report, max(most, 200)) for report in reports)[:_MOST_CHARACTERS]


def in_full(reports):
    """All that pytest knows of each."""
    reported = [[report.nodeid, str(report.longrepr), *map("\n".join, report.sections)] for report in reports]
    return "\n\n".join(part for parts in reported for part in parts)


def _of_one(report, most):
    when = f" ({report.when})" if getattr(report, "when", "call") != "call" else ""
    disturbance = getattr(report, "disturbance", "")
    meanwhile = f"meanwhile: {disturbance}" if disturbance else ""
    words = shortened(getattr(report, "in_words", "") or str(report.longrepr), 2 * most // 3)
    logs = "\n".join(text for title, text in getattr(report, "sections", ()) if title == _LOGS)
    return "\n".join(filter(None, [f"{report.nodeid}{when}", meanwhile, words, shortened(logs, most // 3)]))


def shortened(text, most):
    """The text, or its beginning and its end."""
    return text if len(text) <= most else f"{text[: most // 2]} ... {text[-most // 2 :]}"
