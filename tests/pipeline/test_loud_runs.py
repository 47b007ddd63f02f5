"""What is left of the records after the quiet ones: every run whole, and one run at a time in little room."""

import numpy as np
import pyarrow as pa
import pytest

from kafka_throttle.pipeline.simulate import simulation
from kafka_throttle.pipeline.simulate.backlog import Window
from kafka_throttle.pipeline.simulate.loud_runs import COLUMNS, Run, runs_in
from tests.pipeline.live_runs import candidate_with
from tests.pipeline.record_fidelity import one_user

LIMIT = 1_000.0


def test_a_run_of_too_many_requests_is_cut_and_each_part_is_told_by_buckets(monkeypatch):
    monkeypatch.setattr(simulation, "MOST_REQUESTS", 100)
    begin_ms = np.arange(1, 11) * simulation.BUCKET_MS // 4
    windows = {"sensor_id": np.full(10, 7), "begin_ms": begin_ms, "requests": np.full(10, 30)}
    found = simulation._as_runs(windows, np.array([0, 0, 0, 0, 0, 0, 3, 3, 3, 3]))
    cut = simulation._PARTS
    reported = [(bucket, run, begin_ms.tolist().index(first), begin_ms.tolist().index(last))
            for _, bucket, run, first, last in found]  # fmt: skip
    assert reported == [(0, 0, 0, 2), (1, 0, 3, 3), (1, 1, 4, 5), (1, 3 * cut, 6, 6), (2, 3 * cut, 7, 9)]


def test_a_window_in_two_records_is_one():
    run = Run(7, "main", "produce", LIMIT)
    for window in ((0, 4, 1.0, 5.0, 1, 0, 0, 0, "0:1"), (0, 10, 2.0, 3.0, 2, 1, 7, 7, "4:2:7")):
        run.add(("a", "x", "", 1), window)
    assert run.windows == {("a", "x", "", 1): [Window(0, 10, 3.0, 5.0, 3, 1, 7, 7, "0:1 4:2:7")]}


def test_the_share_of_a_client_is_held_as_it_was_recorded():
    run = Run(7, "main", "produce", LIMIT)
    for client_id, used in (("x", 30_000.0), ("y", 10_000.0)):
        run.add(("a", client_id, "", 1), (0, 10_000, used, used / 5, 20, 5, 5_000, 5_000, ""))
    x, y, everybody = (
        dict(zip(simulation.REPLAYED.names, row, strict=True))
        for row in run.replayed(candidate_with(one_user(LIMIT)), 60_000)
    )
    for which in ("paced_used", "greedy_used"):
        assert x[which] == pytest.approx(3 * y[which])
        assert x[which] + y[which] == pytest.approx(everybody[which])
    assert everybody["greedy_used"] > everybody["paced_used"]
    assert [row["sharers"] for row in (x, y, everybody)] == [2, 2, 2]


def rows_of_runs():
    """Two runs of a sensor and one of another, as Spark sorts them."""
    plain = {
        "sensor_id": 1, "run": 0, "virtual_cluster": "main", "quota_type": "produce", "new_limit": LIMIT, "user": "a",
        "client_id": "x", "ip": "", "node_id": 1, "begin_ms": 0, "end_ms": 10_000, "used": 30_000.0,
        "peak": 5_000.0, "requests": 50,
        "throttles": 0, "throttled_ms": 0, "muted_ms": 0, "profile": "",
    }  # fmt: skip
    for sensor, run in ((1, 0), (1, 5), (2, 5)):
        for i in range(7):
            begin_ms = (run * 100 + i) * 10_000
            for client in "xyz":
                yield plain | {"sensor_id": sensor, "run": run, "begin_ms": begin_ms, "end_ms": begin_ms + 10_000,
                               "client_id": client}  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 20, 1_000])
def test_runs_do_not_depend_on_how_rows_are_cut_into_batches(size):
    rows = list(rows_of_runs())
    batches = [pa.RecordBatch.from_pylist(rows[i : i + size]) for i in range(0, len(rows), size)]
    assert batches[0].schema.names == list(COLUMNS)
    found = list(runs_in(iter(batches)))
    assert [(run.sensor_id, len(run.windows), [len(w) for w in run.windows.values()]) for run in found] == [
        (1, 3, [7, 7, 7]),
        (1, 3, [7, 7, 7]),
        (2, 3, [7, 7, 7]),
    ]


def test_what_a_run_comes_to_is_told_of_each_client_and_of_all():
    [first, *_] = runs_in(iter([pa.RecordBatch.from_pylist(list(rows_of_runs()))]))
    *clients, everybody = (
        dict(zip(simulation.REPLAYED.names, row, strict=True))
        for row in first.replayed(candidate_with(one_user(LIMIT)), 10**6)
    )
    assert [row["client_id"] for row in clients] == ["x", "y", "z"]
    assert everybody["of_sensor"]
    assert everybody["throttles"] == sum(row["throttles"] for row in clients) > 0
    assert everybody["windows"] == 7
