"""The demo from end to end, ended in every way, and its verdict about runs that went wrong."""

import io
import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from rich.console import Console

from demo.demo import QUOTAS, Outcome, decision_of, problems_of, split, telling
from demo.load import ClientReports, Report, Seen
from demo.screen import summary_table
from tests.support.disturbance import Disturbance
from tests.support.places import ROOT
from tests.support.timeouts import TIMEOUT_S


def start_demo(folder, *arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        start_new_session=True,
        preexec_fn=_hear_interrupts,
    )


def _hear_interrupts():
    """A shell has its background jobs ignore SIGINT, and so all that they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def assert_nothing_is_left(processes, folder):
    _, alive = psutil.wait_procs(processes, timeout=TIMEOUT_S)
    assert alive == []
    deadline = time.monotonic() + TIMEOUT_S
    while found := [path for path in folder.iterdir() if path.name.startswith("kafka-throttle")]:
        assert time.monotonic() < deadline, f"left behind: {found}"
        time.sleep(0.1)


@pytest.mark.kafka
@pytest.mark.exclusive
@pytest.mark.nightly
def test_the_demo_holds_the_noisy_clients_and_loses_nothing_of_the_good_ones(tmp_path):
    demo = start_demo(tmp_path, "--json", "--seconds", "27")
    with Disturbance() as disturbance:
        out, err = demo.communicate(timeout=600)
    [line] = out.splitlines()
    shown = json.loads(line)
    assert disturbance.seen or shown["ok"], shown["verdict"] + err
    assert demo.returncode == (not shown["ok"])
    assert shown["ok"] or all("was not held to its quota" in part for part in shown["verdict"].split("; ")), out
    assert shown["rates_judged"]
    # A client that stood still for a while has more left of its window afterwards.
    most = 2.5 if disturbance.seen else 1.15
    for name in ("noisy-producer", "noisy-consumer"):
        client = shown["clients"][name]
        assert client["proxied"]["bytes_per_second"] / QUOTAS[name] <= most
        noise = client["direct"]["bytes_per_second"]
        assert disturbance.seen or noise > 1.15 * QUOTAS[name], "not noisy: the quota had nothing to hold"
        assert client["direct"]["throttles"] == 0
        assert client["proxied"]["max_throttle_ms"] > 0
    for name in ("good-producer", "good-consumer"):
        client = shown["clients"][name]
        assert client["proxied"]["throttles"] == 0
        assert client["proxied"]["bytes_per_second"] == pytest.approx(200_000, rel=0.6 if disturbance.seen else 0.1)
    for phase, least in (("direct", 300), ("proxied", 1_000)):
        records = shown["good_records"][phase]
        assert records["lost"] == 0
        assert records["sent"] == records["read"] >= least
    assert len(shown["metrics"]) == 4
    assert_nothing_is_left([], tmp_path)


@pytest.mark.kafka
@pytest.mark.nightly
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_demo_that_is_ended_early(tmp_path, number):
    demo = start_demo(tmp_path, "--seconds", "60")
    heard = []
    for line in demo.stdout:
        heard.append(line)
        if "good-producer" in line:
            break
    family = psutil.Process(demo.pid).children(recursive=True)
    assert len(family) >= 10, "".join(heard)  # three nodes, the proxy, four clients, two keepers
    demo.send_signal(number)
    out, err = demo.communicate(timeout=TIMEOUT_S)
    assert demo.returncode == (-number if number == signal.SIGKILL else 130), out + err
    assert "Traceback" not in out + err
    assert_nothing_is_left(family, tmp_path)


@pytest.mark.parametrize("seconds", [5, 26, 27, 40, 3_600])
def test_both_phases_together_take_the_time_asked_for_after_the_warm_up(seconds):
    plan = split(seconds)
    assert plan.direct_s - plan.direct_from_s + plan.proxied_s == seconds
    assert 0 < plan.direct_from_s < plan.direct_s
    assert 0 < plan.proxied_from_s < plan.proxied_s


@pytest.mark.parametrize("seconds", [27, 40, 3_600])
def test_rates_are_judged_over_whole_windows_after_the_burst(seconds):
    plan = split(seconds)
    assert plan.judges_rates
    assert plan.proxied_from_s >= 11
    assert (plan.proxied_s - plan.proxied_from_s) % 11 == 0


def test_a_run_that_is_too_short_to_judge_rates_says_so():
    plan = split(26)
    assert not plan.judges_rates
    burst = outcome(noisy_producer=3.0)
    assert problems_of(plan, outcome(), burst) == []
    assert "too short to judge the rates" in decision_of(plan, outcome(), burst)


def outcome(*, noisy_producer=1.0, throttles=9, sent=100, failed=0, read=100):
    """A phase in which each client had its share of its quota."""
    shares = {"good-producer": 0.04, "good-consumer": 0.04, "noisy-producer": noisy_producer, "noisy-consumer": 1.0}
    clients = {
        name: Seen(
            share * QUOTAS[name], 1_234.5, 12_345.6, throttles if name.startswith("noisy") else 0, 12_345.6, 19_999
        )
        for name, share in shares.items()
    }
    return Outcome(clients, sent, failed, read)


def test_a_good_run_has_no_problems():
    assert problems_of(split(40), outcome(), outcome()) == []
    held = "noisy-producer held to 1.00 MB/s (quota 1.00, without the proxy 1.00)"
    assert decision_of(split(40), outcome(), outcome()).startswith(held)


@pytest.mark.parametrize(
    ("proxied", "sentence"),
    [
        (
            outcome(noisy_producer=1.16),
            "noisy-producer was not held to its quota of 1.00 MB/s: it had 1.16 MB/s",
        ),
        (
            outcome(noisy_producer=0.84),
            "noisy-producer was not held to its quota of 1.00 MB/s: it had 0.84 MB/s",
        ),
        (outcome(read=99), "1 of 100 good records were lost through the proxy"),
        (outcome(failed=2), "2 of 100 good records were lost through the proxy"),
        (outcome(sent=0, read=0), "the good producer could send nothing through the proxy"),
    ],
)
def test_each_problem_is_a_sentence(proxied, sentence):
    assert problems_of(split(40), outcome(), proxied) == [sentence]


def test_noisy_clients_that_never_got_a_throttle_time_are_a_problem():
    assert problems_of(split(40), outcome(), outcome(throttles=0)) == [
        "noisy-producer never got a throttle time",
        "noisy-consumer never got a throttle time",
    ]


def test_a_stretch_counts_the_reports_within_it():
    reports = ClientReports([Report(at, 100, 1, 0, [at * 1_000], [at]) for at in range(1, 101)])
    seen = reports.seen(11, 21)
    assert (seen.bytes_per_second, seen.p50_ms, seen.p99_ms) == (100, 15, 20)
    assert (seen.throttles, seen.mean_throttle_ms, seen.max_throttle_ms) == (10, 15.5, 20)


def test_the_summary_fits_into_80_columns():
    console = Console(width=80, file=io.StringIO(), record=True)
    console.print(summary_table(outcome().clients, outcome().clients, QUOTAS, console.width))
    text = console.export_text()
    assert "…" not in text
    for name in QUOTAS:
        [row] = [line for line in text.splitlines() if name in line]
        assert row.split()[-1] == "12,346"


def test_the_metrics_shown_are_of_the_noisy_clients_at_their_nodes():
    lines = [
        f'kafka_throttle_{name}{{client_id="{client}",node_id="{node_id}",quota_type="{quota_type}"}} 1.0'
        for name in ("entity_rate", "entity_limit", "entity_throttle_seconds_total")
        for client in ("good-producer", "noisy-producer", "noisy-consumer")
        for node_id in (1, 2, 3)
        for quota_type in ("produce", "fetch")
    ]
    assert [line.split("{")[0] + line[-4:] for line in telling(lines)] == [
        "kafka_throttle_entity_rate 1.0",
        "kafka_throttle_entity_rate 1.0",
        "kafka_throttle_entity_throttle_seconds_total 1.0",
        "kafka_throttle_entity_throttle_seconds_total 1.0",
    ]
