"""The arithmetic between runs and tables, and the plot of it."""

import pytest

from tests.bench.candidates import CANDIDATES, DIRECT, HAPROXY, NGINX, OURS
from tests.bench.columns import COLUMNS, WITHOUT_QUOTA, Comparison
from tests.bench.figures import cell, comparisons, spread, summary, summary_table, table
from tests.bench.plot import LARGEST, better_to_the_right, draw
from tests.bench.speed import columns_named

PRODUCE_1, IDLE = columns_named("produce-1,idle")


def run(per_second, cpu_us=10.0, p50=100, p99=200, rig_busy=0.5):
    return {
        "requests_per_second": per_second,
        "cpu_us_per_request": cpu_us,
        "p50_us": p50,
        "p99_us": p99,
        "rig_busy": rig_busy,
    }


def summaries(**runs_by_column):
    return {key.replace("_", "-"): summary(of_column) for key, of_column in runs_by_column.items()}


def test_a_spread_is_median_lowest_and_highest():
    assert spread([3, 1, 10]) == {"median": 3, "min": 1, "max": 10}
    assert cell(spread([3000, 1000, 10000])) == "3,000 (1,000 - 10,000)"
    assert cell(spread([0.5]), 2, with_range=False) == "0.50"
    assert cell(None) == ""


def test_ratios_are_those_within_a_round():
    """The machine was twice as fast in the second round: the ratios do not know."""
    found = summary({HAPROXY.name: [run(100), run(200), run(100)], OURS.name: [run(60), run(120), run(50)]})
    assert found[OURS.name]["ratio_to_haproxy"] == {"median": 0.6, "min": 0.5, "max": 0.6}
    assert found[OURS.name]["requests_per_second"] == {"median": 60, "min": 50, "max": 120}
    assert found[HAPROXY.name]["ratio_to_haproxy"] == {"median": 1, "min": 1, "max": 1}


def test_who_takes_three_times_the_cpu_has_a_third_by_cpu():
    found = summary({HAPROXY.name: [run(100, cpu_us=12)], OURS.name: [run(100, cpu_us=36)], DIRECT.name: [run(1, 0)]})
    assert found[OURS.name]["cpu_ratio_to_haproxy"]["median"] == pytest.approx(1 / 3)
    assert "cpu_ratio_to_haproxy" not in found[DIRECT.name]


def test_what_is_added_is_what_is_above_the_direct_connection():
    of_column = {
        DIRECT.name: [run(1, p50=20, p99=50), run(1, p50=30, p99=60)],
        HAPROXY.name: [run(1, p50=100, p99=150), run(1, p50=110, p99=160)],
        OURS.name: [run(1, p50=120, p99=170), run(1, p50=150, p99=260)],
    }
    ours = summary(of_column)[OURS.name]
    assert ours["added_p50_us"] == {"median": 110, "min": 100, "max": 120}
    assert ours["added_p99_us"] == {"median": 160, "min": 120, "max": 200}
    assert ours["added_p99_ratio_to_haproxy"] == pytest.approx({"median": 1.6, "min": 1.2, "max": 2.0})


def test_a_round_in_which_haproxy_added_nothing_has_no_ratio_of_what_is_added():
    of_column = {
        DIRECT.name: [run(1, p99=200), run(1, p99=50)],
        HAPROXY.name: [run(1, p99=150), run(1, p99=150)],
        OURS.name: [run(1, p99=300), run(1, p99=250)],
    }
    assert summary(of_column)[OURS.name]["added_p99_ratio_to_haproxy"] == {"median": 2.0, "min": 2.0, "max": 2.0}
    never = {name: rounds[:1] for name, rounds in of_column.items()}
    assert "added_p99_ratio_to_haproxy" not in summary(never)[OURS.name]


def test_without_haproxy_there_are_no_ratios_and_the_table_is_still_made():
    found = summary({OURS.name: [run(50)]})
    assert "ratio_to_haproxy" not in found[OURS.name]
    assert f"| {OURS.name} | 50 (50 - 50) |" in table(PRODUCE_1, found)
    assert comparisons([PRODUCE_1], {"produce-1": found}, OURS.name) == []


@pytest.mark.parametrize(
    ("goal", "less_is_better", "ratio", "met"),
    [
        (0.65, False, 0.65, True),
        (0.65, False, 0.649, False),
        (1.5, True, 1.5, True),
        (1.5, True, 1.51, False),
        (None, True, 1.0, None),
    ],
)
def test_a_goal_is_a_least_or_a_most(goal, less_is_better, ratio, met):
    assert Comparison("figure", "title", goal, less_is_better).is_met(ratio) is met


def test_the_summary_says_which_goals_are_met_and_where_the_rig_was_the_limit():
    found = summaries(
        produce_1={HAPROXY.name: [run(100, rig_busy=0.99)], OURS.name: [run(60)]},
        accept={
            HAPROXY.name: [run(100)],
            NGINX.name: [run(80, rig_busy=0.99)],
            OURS.name: [run(70)],
            WITHOUT_QUOTA: [run(44)],
        },
    )
    assert summary_table(COLUMNS, found).splitlines()[2:] == [
        "| 100 B produce, depth 1, 100 connections | 0.60 (0.60 - 0.60) * | 0.7 or more | **no** |",
        "| accepts, a quota per address | 0.70 (0.70 - 0.70) | 0.65 or more | yes |",
        "| the same, times nginx | 0.88 (0.88 - 0.88) * | 1 or more | **no** |",
        "| accepts, no quota | 0.44 (0.44 - 0.44) | 0.65 or more | **no** |",
    ]


def test_what_is_about_another_candidate_stands_beside_ours_only():
    [accept] = columns_named("accept")
    found = summaries(accept={HAPROXY.name: [run(100)], OURS.name: [run(50)], WITHOUT_QUOTA: [run(44)]})

    def ratios(name):
        return [ratio["median"] for _, ratio, _ in comparisons([accept], found, name)]

    assert (ratios(OURS.name), ratios(WITHOUT_QUOTA)) == ([0.5, 0.44], [0.44])


def test_tls_is_compared_by_processor_time():
    [column] = columns_named("tls-in")
    found = summary({HAPROXY.name: [run(100, cpu_us=10)], OURS.name: [run(120, cpu_us=20)]})
    assert [ratio["median"] for _, ratio, _ in comparisons([column], {"tls-in": found}, OURS.name)] == [0.5]
    assert f"| {OURS.name} | 120 " in table(column, found)


def test_a_connection_that_takes_twice_the_memory_has_a_line_without_a_goal():
    figures = {"bytes_per_idle_connection": 4096.0}
    found = summaries(idle={HAPROXY.name: [figures], OURS.name: [{"bytes_per_idle_connection": 8192.0}]})
    line = "| memory of an idle connection | 2.00 (2.00 - 2.00) |  |  |"
    assert summary_table([IDLE], found).splitlines()[2:] == [line]
    assert f"| {OURS.name} | 8.0 | 2.0 |" in table(IDLE, found["idle"])


def test_every_column_has_a_comparison_that_the_summary_can_make():
    made = run(100) | {"bytes_per_idle_connection": 1.0}
    made_by = {name: [made] for name in (HAPROXY.name, NGINX.name, OURS.name, WITHOUT_QUOTA)}
    of_column = {DIRECT.name: [made | {"p99_us": 100}], **made_by}
    for column in COLUMNS:
        found = comparisons([column], {column.key: summary(of_column)}, OURS.name)
        assert [comparison for comparison, _, _ in found] == list(column.comparisons), column.key


def test_the_columns_of_a_candidate_exist():
    assert {key for candidate in CANDIDATES for key in candidate.columns} <= {column.key for column in COLUMNS}


# ---- the plot ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("less_is_better", "ratio", "drawn"),
    [(False, 0.5, 0.5), (False, 50, LARGEST), (True, 2, 0.5), (True, 0, LARGEST), (True, -3, LARGEST)],
)
def test_better_is_drawn_to_the_right(less_is_better, ratio, drawn):
    assert better_to_the_right(Comparison("figure", "title", None, less_is_better), ratio) == drawn


def test_the_plot_is_the_same_for_the_same_figures(tmp_path):
    found = summaries(
        produce_1={HAPROXY.name: [run(100)], OURS.name: [run(60)], "another": [run(90)]},
        latency={DIRECT.name: [run(1, p99=60)], HAPROXY.name: [run(1, p99=150)], OURS.name: [run(1, p99=50)]},
    )
    for name in ("one.svg", "two.svg"):
        draw(COLUMNS, found, tmp_path / name)
    assert (tmp_path / "one.svg").read_text().startswith("<?xml")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()
