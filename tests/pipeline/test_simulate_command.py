"""`kafka-throttle usage simulate`: what is refused before Spark is started, and the response as people see it."""

import io
import re
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner

from kafka_throttle.pipeline.jobs.simulate import write
from kafka_throttle.pipeline.simulate.page import CSV_COLUMNS
from kafka_throttle.proxy.cli import period
from kafka_throttle.proxy.cli.main import main

ROW = {
    "virtual_cluster": "main",
    "node_id": 1,
    "quota_type": "produce",
    "new_limit": 1_000_000.0,
    "new_rule": "user=[bold]",
    "live_used": 10e6,
    "live_requests": 50,
    "live_throttles": 0,
    "live_throttled_ms": 0,
    "throttles": 7,
    "throttled_ms": 3_000,
    "greedy_throttled_ms": 4_500,
    "longest_ms": 800,
    "muted_ms": 3_000,
    "muted_share": 0.3,
    "paced_used": 8e6,
    "greedy_used": None,
}
CLIENT = {**ROW, "user": "[bold]", "client_id": "app", "ip": "", "change": "hurt", "shared_by": 3}
RESPONSE = {
    "begin_ms": 1_795_000_000_000,
    "end_ms": 1_795_000_010_000,
    "records": 12_345,
    "replayed_windows": 1,
    "sensors": [{**ROW, "shared_by": 3}],
    "clients": [CLIENT],
}


def refused(*arguments: str) -> str:
    result = CliRunner().invoke(main, ["usage", "simulate", "--table", "nowhere", *arguments])
    assert result.exit_code == 2
    return result.output


def test_every_mistake_of_a_candidate_is_told_with_file_and_place(tmp_path):
    path = tmp_path / "candidate.yaml"
    path.write_text("entries:\n- {user: a, producer_byte_rate: -1}\n- {usr: b, consumer_byte_rate: 1}\n")
    output = refused("--candidate", str(path))
    assert f"{path}: entries[0].producer_byte_rate: expected a whole number" in output
    assert f"{path}: entries[1].usr: unknown key, did you mean 'user'?" in output


def test_a_candidate_that_is_not_there_is_named(tmp_path):
    assert "nowhere.yaml" in refused("--candidate", str(tmp_path / "nowhere.yaml"))


def test_a_time_that_is_none_is_refused(tmp_path):
    assert "got 'tuesday'" in refused("--candidate", "x", "--since", "tuesday")


@pytest.mark.parametrize("time", ["2026-11-17", "2026-11-17T00:00:00+00:00", "2026-11-17T01:00:00+01:00"])
def test_times_are_iso_8601_and_utc(time):
    from kafka_throttle.proxy.cli.period import Moment

    assert Moment().convert(time, None, None) == 1_794_873_600_000


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("-30d", "2026-10-18T00:00"),
        ("-4w", "2026-10-20T00:00"),
        ("today", "2026-11-17T00:00"),
        ("yesterday", "2026-11-16T00:00"),
        ("-12h", "2026-11-17T01:30"),
        ("-90m", "2026-11-17T12:00"),
        ("-0d", "2026-11-17T00:00"),
    ],
)
def test_times_may_say_how_long_ago_and_days_are_whole_ones_of_utc(text, time):
    now = datetime(2026, 11, 17, 13, 30, tzinfo=UTC)
    assert period._ago(text, now) == datetime.fromisoformat(f"{time}+00:00")


@pytest.mark.parametrize("text", ["-d", "30d", "-1.5d", "-5y", "--1d", "-999999w", "now", ""])
def test_what_says_no_time_is_refused(text):
    assert f"got {text!r}" in refused("--candidate", "x", f"--since={text}")


def test_a_period_that_ends_before_it_begins_is_refused():
    output = refused("--candidate", "x", "--since", "2026-11-17T01:00", "--until", "2026-11-17")
    assert output == "--since: expected a time before --until\n"


def test_the_table_says_who_is_hurt_and_takes_no_name_for_markup():
    to = io.StringIO()
    write(RESPONSE, "table", to)
    text = to.getvalue()
    assert "12,345 usage records" in text
    assert "1 hurt" in text
    assert "user=[bold]" in text
    assert "3.0..4.5 s" in text
    assert "8 M or more" in text
    assert re.search(r"hurt +1 +produce +\[bold\] +app", text)
    assert "with the share of it that was recorded" in text


@pytest.mark.parametrize(("recorded_ms", "is_same"), [(2_999, False), (3_000, True), (4_500, True), (4_501, False)])
def test_a_quota_that_does_what_was_recorded_is_tagged(recorded_ms, is_same):
    sensor = {**RESPONSE["sensors"][0], "live_throttled_ms": recorded_ms}
    to = io.StringIO()
    write({**RESPONSE, "sensors": [sensor], "clients": []}, "table", to)
    assert f"Quotas at nodes, that throttled or would: 1 ({int(is_same)} same)" in to.getvalue()
    assert bool(re.search(r"^same +1 +produce +user=\[bold\]", to.getvalue(), re.MULTILINE)) == is_same


def test_csv_has_a_line_for_each_client():
    to = io.StringIO()
    write(RESPONSE, "csv", to)
    header, line = to.getvalue().splitlines()
    assert header.split(",") == CSV_COLUMNS
    assert line.startswith("main,1,produce,[bold],app,,user=[bold],1000000.0,hurt,")
