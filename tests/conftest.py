"""Keeps of each failure what it was, in few words, and whether the machine was busy with something else meanwhile.

`tests.run` reads that from the file that `--failures` names; pytest by itself prints the words in the end.
"""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase
from hypothesis.internal.conjecture import providers

from tests.disturbance import Disturbance

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
_REAL = ("integration", "long")
"""Marks of tests with real processes: those may be held up where nobody sees it, by a cold cache or a neighbour."""
_ALONE = ("alone", *_REAL)
"""Of tests that nothing else may run beside."""
_STATEMENTS = 5

_disturbance = Disturbance()


def pytest_addoption(parser):
    parser.addini("log_folder", "where the logs of what failed are kept", default="build/test-logs")
    parser.addoption("--failures", type=Path, help="write there what failed, as JSON, for tests.run")
    parser.addoption("--side-by-side", choices=["yes", "no"], help="only tests that may run beside others, or may not")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    """Leave what `--side-by-side` does not ask for."""
    if asked := config.option.side_by_side:
        told = [(item, any(map(item.get_closest_marker, _ALONE)) == (asked == "no")) for item in items]
        config.hook.pytest_deselected(items=[item for item, chosen in told if not chosen])
        items[:] = [item for item, chosen in told if chosen]


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
        report.real = any(item.get_closest_marker(mark) for mark in _REAL)
    return report


def in_words(raised, root):
    """The statements of our own that were under way, and the message."""
    ours = [entry for entry in raised.traceback if Path(entry.path).is_relative_to(root)]
    under_way = [
        f"{Path(entry.path).relative_to(root)}:{entry.lineno + 1}: {str(entry.statement).strip()}" for entry in ours
    ]
    parts = getattr(raised.value, "exceptions", ())
    told = [f"{type(error).__name__}: {error}" for error in (*parts, raised.value)]
    return "\n".join([*under_way[-_STATEMENTS:], *told])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session):
    """After all else that is printed."""
    result = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and (reports := [*reporter.getreports("failed"), *reporter.getreports("error")]):
        if file := session.config.option.failures:
            file.parent.mkdir(parents=True, exist_ok=True)
            disturbances = {report.nodeid: getattr(report, "disturbance", "") for report in reports}
            real = [report.nodeid for report in reports if getattr(report, "real", False)]
            found = {"in_short": in_short(reports), "in_full": in_full(reports)}
            found |= {"disturbances": disturbances, "real": real}
            file.write_text(json.dumps(found))
        else:
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
    told = [[report.nodeid, str(report.longrepr), *map("\n".join, report.sections)] for report in reports]
    return "\n\n".join(part for parts in told for part in parts)


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
