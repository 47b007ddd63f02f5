"""The judge of the log of a run: what is too much, what is too little."""

from datetime import UTC, datetime

import pytest

from tests.quiet_log.judged import Timeline, missing, table, unaccounted

TIMELINE = Timeline(1_000, 1_200, 2, (1_050, 1_100), "etl", ["good"], "127.0.0.9")


def line(at_s, event, level="info", **keys):
    timestamp = datetime.fromtimestamp(at_s, UTC).isoformat()
    return {"timestamp": timestamp, "level": level, "event": event, "pid": 7, **keys}


CLIENT = {"client_id": "storm", "software_name": "storming", "software_version": "0.1"}
SHORT = {"client": "127.0.0.9:5", "reason": "client_lost", "requests": 1, **CLIENT}
WHOLE = [
    line(1_000, "ready"),
    line(1_001, "throttle_started", client_id="etl", limit=5),
    *[line(at_s, "connection_closed", **SHORT) for at_s in range(1_002, 1_012)],
    line(1_055, "nodes_changed", "warning", gone=[2], nodes=[1, 3]),
    line(1_056, "connection_closed", "warning", client="127.0.0.1:5", reason="node_unreachable", node_id=2),
    line(1_056, "connection_closed", "warning", **{**SHORT, "reason": "node_lost"}),
    line(1_060, "bootstrap_servers_silent", "warning"),
    *[line(at_s, "connections_closed", counts_as="127.0.0.9") for at_s in (1_063, 1_123)],
    line(1_104, "bootstrap_servers_respond"),
    line(1_105, "nodes_changed", come=[2], nodes=[1, 2, 3]),
    line(1_200, "throttle_ended", client_id="etl"),
    line(1_201, "stopped"),
]  # fmt: skip


def test_a_log_that_says_all_and_no_more_is_right():
    assert (unaccounted(WHOLE, TIMELINE), missing(WHOLE, TIMELINE)) == ([], [])


@pytest.mark.parametrize(
    "alarm",
    [
        line(1_010, "not_ready", "warning", reasons=["x"]),
        line(1_010, "nodes_changed", "warning", gone=[2]),
        line(1_060, "nodes_changed", "warning", gone=[2, 3]),
        line(1_060, "connection_closed", "warning", reason="node_unreachable", node_id=3),
        line(1_060, "connection_closed", "warning", reason="response_malformed", node_id=2),
        line(1_060, "internal_error", "error"),
        line(1_190, "bootstrap_servers_silent", "warning"),
    ],
)
def test_an_alarm_without_a_cause_is_found(alarm):
    assert unaccounted([*WHOLE, alarm], TIMELINE) == [alarm]


@pytest.mark.parametrize(
    "event",
    [
        "ready",
        "bootstrap_servers_respond",
        "throttle_started",
        "throttle_ended",
        "nodes_changed",
        "connections_closed",
        "stopped",
    ],
)
def test_a_line_that_is_missing_is_found(event):
    assert missing([each for each in WHOLE if each["event"] != event], TIMELINE)


@pytest.mark.parametrize(
    "wrong",
    [
        line(1_030, "connection_closed", **SHORT),
        line(1_030, "connection_closed", **{**SHORT, "client": "127.0.0.1:5", "software_name": ""}),
        line(1_030, "throttle_started", client_id="good", limit=5),
        {"event": "x", "level": "info", "timestamp": "1970-01-01T00:17:00+00:00", "pid": 7},
    ],
    ids=["too many of the storm", "an empty key", "a good client throttled", "another order"],
)
def test_a_line_that_is_wrong_is_found(wrong):
    assert missing([*WHOLE[:-1], wrong, WHOLE[-1]], TIMELINE)


def test_the_table_has_each_event_of_each_level_once():
    rows = list(table(WHOLE))
    assert rows[2].startswith("| info | connection_closed | 10 | pid=7 client=127.0.0.9:5 ")
    assert len(rows) == 2 + len({(each["level"], each["event"]) for each in WHOLE})
