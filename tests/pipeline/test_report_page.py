"""The page, made from findings that are made up: no Spark."""

import csv
import io
import shlex
from datetime import date, timedelta
from decimal import Decimal
from html.parser import HTMLParser

import pytest

from kafka_throttle.pipeline.report import words
from kafka_throttle.pipeline.report.chargeback import Bill
from kafka_throttle.pipeline.report.findings import Findings, KilledProcess, Missing, silences, whole_days, width_for
from kafka_throttle.pipeline.report.forecast import forecast
from kafka_throttle.pipeline.report.next_commands import next_commands
from kafka_throttle.pipeline.report.page import page_of
from kafka_throttle.pipeline.report.price_sheet import UNASSIGNED, UNITS, PriceSheet
from kafka_throttle.pipeline.report.summary import summary
from kafka_throttle.pipeline.report.tables import Column, Table, arrow_of, csv_of
from kafka_throttle.pipeline.report.views import muted_share, tables_of, utilisation_in_words
from kafka_throttle.pipeline.spark.day import DAY_MS
from kafka_throttle.pipeline.spark.rule import kind_of
from kafka_throttle.proxy.cli.main import main, usage
from kafka_throttle.quotas.records.usage_record import UsageRecord
from tests.pipeline import story
from tests.pipeline.spools import MONDAY_MS

HOSTILE = [
    "<script>alert(1)</script>",
    '"><img src=http://evil.example/x onerror=alert(1)>',
    "\u202egnp.exe",
    "a" * 1024,
    "{{ 7 * 7 }}{% raw %}",
    "=cmd|' /C calc'!A0",
    "tab\tline\nnul\0end",
    "",
]


def use(number=1, **values):
    names = ("in_bytes", "out_bytes", "requests", "handler_us", "milli_mutations", "throttles", "throttled_ms",
             "backlogged_ms", "muted_ms", "shadow_throttles", "shadow_throttled_ms", "shadow_windows", "unsent_bytes",
             "window_ms", "throttled_window_ms", "records")  # fmt: skip
    sums = dict.fromkeys(names, number)
    return {**sums, "bytes": 2 * number, "virtual_cluster": "main", "ip": "", **values}


def findings(**values):
    clients = [use(10 + i, user=name, client_id=name) for i, name in enumerate(HOSTILE)]
    known = {
        "table": "<b>table</b>",
        "top_n": 20,
        "records": 8,
        "begin_ms": MONDAY_MS,
        "end_ms": MONDAY_MS + 3_600_000,
        "totals": use(500),
        "by_type": [use(500, quota_type="produce")],
        "client_count": 8,
        "clients": clients,
        "users": clients,
        "client_ids": clients,
        "throttled": [{**row, "quota_type": "produce", } for row in clients],
        "throttled_clients": 8,
        "width_ms": 60_000,
        "timeline": [use(5, at_ms=MONDAY_MS + i * 60_000) for i in range(60)],
        "days": [use(5, day=date(2026, 10, 26))],
        "utilisation": [
            {"virtual_cluster": "main", "quota_type": "fetch", "rule": f"user={name!r}", "user": name, "client_id": "",
             "ip": "", "limit": 1e6, "windows": 10, "p50": 0.5, "p95": 0.9, "p99": 1.1, "most": 3.0, "most_node_id": 1,
             "peak": 4.0, "windows_over": 1}
            for name in HOSTILE
        ],
        "quotas_in_use": 8,
    }  # fmt: skip
    return Findings(**{**known, **values})


def test_the_page_says_beside_the_forecast_how_far_such_forecasts_were_off():
    """In its head, in the section, and as numbers in the table."""
    steps = [date(2026, 9, 1) + timedelta(i) for i in range(56)]
    found = forecast([(day, 1e9 if i % 2 else 2e9) for i, day in enumerate(steps)])
    made = findings(forecasts={"bytes": found})
    said = "ade on 36 earlier days, this forecast was off by "
    assert any(f"M{said}" in remark.text for remark in summary(made))
    assert f"<small>m{said}" in page_of(made, tables_of(made), MONDAY_MS)
    [row] = next(table for table in tables_of(made) if table.name == "forecast").rows
    assert (row["origins"], row["error"], row["high"]) == (36, found.month.error, found.month.high)


class Read(HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags, self.outside, self.texts = [], [], []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            if name in ("src", "href", "action", "srcset") and not (value or "").startswith(("#", "data:,")):
                self.outside.append((tag, name, value))
            assert not name.startswith("on"), (tag, name)

    def handle_data(self, data):
        self.texts.append(data)


def read(page):
    parser = Read()
    parser.feed(page)
    return parser


def page(found):
    return page_of(found, tables_of(found), MONDAY_MS)


def test_names_that_are_markup_are_shown_as_what_they_are():
    made = page(findings())
    parser = read(made)
    assert parser.tags.count("script") == 1
    assert "img" not in parser.tags
    assert not parser.outside
    assert "<script>alert(1)</script>" in parser.texts
    assert "{{ 7 * 7 }}{% raw %}" in parser.texts


def test_names_cannot_turn_the_writing_around_or_push_all_else_away():
    made = page(findings())
    assert "\u202e" not in made
    assert "\\u202egnp.exe" in made
    assert max(map(len, "".join(read(made).texts).split())) < 200


def test_what_the_pictures_in_docs_are_made_from_has_all_columns_of_a_record():
    rows = story.records(days=1).to_dict("records")
    last = UsageRecord(**rows[-1])
    assert (last.sequence, last.muted_ms) == (len(rows), last.throttled_ms)
    assert {type(value) for value in rows[-1].values()} <= {int, float, str, type(None)}


def test_the_page_says_itself_that_it_fetches_nothing():
    assert "default-src &#39;none&#39;" in page(findings()) or "default-src 'none'" in page(findings())


def test_an_empty_table_is_told_plainly():
    made = page(Findings(table="t", top_n=20))
    assert "The table holds no usage records." in made
    assert [remark.text for remark in summary(Findings(table="t", top_n=20, since_ms=MONDAY_MS))] == [
        "The table holds no usage records from 2026-10-26 00:00 to the end (UTC)."
    ]


def test_what_is_missing_comes_first():
    lost = [Missing("a", 1, 100, 120, False), Missing("a", 1, 130, 130, False), Missing("b", 1, 5, 6, True)]
    remarks = [remark.text for remark in summary(findings(missing=lost, quarantined=2))]
    assert remarks[:3] == [
        "Records 100-120 of instance a and 130 of instance a are missing: all sums are too small by their use.",
        "Records 5-6 of instance b are missing because the proxy had no room for them.",
        "2 lines could not be read and are in quarantine.",
    ]


def test_noisy_neighbours_are_in_the_summary_and_their_absence_is_on_the_page():
    nobody = "At no time did one client have most of a node while others were throttled there."
    assert nobody in page(findings())
    episode = {
        "begin_ms": MONDAY_MS, "end_ms": MONDAY_MS + 10_000, "virtual_cluster": "main", "node_id": 1, "user": "a",
        "client_id": "", "share": 0.9, "bytes": 5, "others_throttled": 1, "others_throttled_ms": 2_000,
    }  # fmt: skip
    made = findings(episodes=[episode], episode_count=1)
    assert nobody not in page(made)
    [remark] = [remark for remark in summary(made) if remark.place == "noise"]
    assert remark.text == "1 time one client had most of a node while others were throttled there: “a”."


def test_a_killed_process_is_told_first_and_with_the_bills():
    once = [KilledProcess("a", 1, 2, 10_000)]
    crash = "(if the machine crashed, also the use in the last file)."
    lost = f"1 process of the proxy was killed: the use of the last 10 s at most before that has no records {crash}"
    first = summary(findings(killed=once))[0]
    assert (first.text, first.tone) == (f"{lost} All sums are too small by this use.", "bad")
    made = page(findings(killed=once, sheet=PriceSheet("EUR", 2, {})))
    assert f"{words.unbroken(lost)} This use is in no bill." in made
    assert "No record is missing" not in made
    assert words.unbroken(lost) in page(Findings(table="t", top_n=20, killed=once)), "a page without records"
    older = [*once, KilledProcess("a", 2, 3, 0)]
    assert summary(findings(killed=older))[0].text.startswith(
        "2 processes of the proxy were killed: the use of the last usage.window_s at most before that has no records"
    )


def test_the_last_row_of_the_talkers_is_what_is_left():
    for table in tables_of(findings())[1:4]:
        for name in ("bytes", "in_bytes", "out_bytes", "requests", "handler_us", "throttled_ms"):
            assert sum(row[name] for row in table.rows) == findings().totals[name], (table.name, name)


def test_csv_is_read_back_and_starts_no_formula():
    table = Table("t", "T", (Column("user", "User", "text"), Column("n", "N", "bytes")), [
        {"user": name, "n": 2**62} for name in HOSTILE
    ])  # fmt: skip
    rows = list(csv.reader(io.StringIO(csv_of(table), newline="")))
    assert rows[0] == ["user", "n"]
    assert [row[1] for row in rows[1:]] == [str(2**62)] * len(HOSTILE)
    assert rows[6][0] == "'" + HOSTILE[5]
    assert all(not row[0].startswith(("=", "+", "-", "@")) for row in rows)


def test_every_table_has_its_types_in_parquet():
    for table in tables_of(findings()):
        stored = arrow_of(table)
        assert stored.num_rows == len(table.rows)
        assert stored.schema.names == [column.name for column in table.columns]
    clients = arrow_of(tables_of(findings())[1])
    assert clients["user"].to_pylist()[:-1] == [row["user"] for row in tables_of(findings())[1].rows[:-1]]


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (words.size(999), "999 B"),
        (words.size(999_999), "1.00 MB"),
        (words.size(1_234_000_000), "1.23 GB"),
        (words.duration(59_999), "60.0 s"),
        (words.duration(5_400_000), "1.50 h"),
        (words.duration(42 * DAY_MS), "42 d"),
        (
            words.unbroken("12 of 42.0 d, 20 % of 1.14 billion B, 4 due"),
            "12 of 42.0\xa0d, 20\xa0% of 1.14\xa0billion B, 4 due",
        ),
        (words.share(0.0001), "<0.1 %"),
        (words.share(0), "0 %"),
        (words.ratio(0), "0"),
        (words.ratio(0.0001), "<0.001"),
        (words.ratio(1.2712), "1.27"),
        (words.ratio(1234.5), "1,234"),
        (words.share(12.5), "1,250 %"),
        (words.about(1_250_000), "1.25 million"),
        (words.money(Decimal("1234.50"), "EUR"), "1,234.50 EUR"),
        (words.listed(["a", "b", "c", "d"]), "a, b, c and 1 more"),
        (words.listed(["a"]), "a"),
        (words.name("x" * 100, 10), "xxxxxx…xxx"),
    ],
)
def test_words(reported, expected):
    assert reported == expected


@pytest.mark.parametrize(
    ("p99", "most", "window_ms", "expected"),
    [
        (1.65, 1.9, 10_000, "p99 165 %: bursts of ten seconds allow it, up to 200 % in 10 s."),
        (1.65, 1.9, 60_000, "p99 165 %: more than bursts of ten seconds allow, which is 117 % in 1 min."),
        (0.9, 1.2, 10_000, "Above the quota in 2.0 % of its windows of 10 s only."),
        (0.9, 0.95, 10_000, "Never above the quota: at most 95 % of it."),
    ],
)
def test_utilisation_in_words(p99, most, window_ms, expected):
    row = {"p99": p99, "most": most, "windows": 100, "windows_over": 2}
    assert utilisation_in_words(row, window_ms).startswith(expected)


def test_throttled_time_is_a_share_and_throttles_are_a_ratio():
    held = use(1, user="etl", client_id="job", quota_type="fetch", throttles=127, throttled_ms=50_000,
               muted_ms=8_000, window_ms=20_000, backlogged_ms=0)  # fmt: skip
    client = {**held, "requests": 100}
    made = findings(clients=[client], throttled=[held], throttled_clients=1)
    texts = read(page(made)).texts
    assert "1.27" in texts
    assert "127\xa0%" not in "".join(texts)
    assert (
        "1 client was throttled. Most: “etl” (job), for 40 % of its time by its fetch quota, and hardly felt it."
        in [remark.text for remark in summary(made)]
    )
    assert muted_share({**held, "muted_ms": 30_000}) == 1, "the last mute may end after the last window"
    at_once = {**held, "window_ms": 0}
    assert muted_share(at_once) is None
    assert "for 50 s, added up over nodes and connections, by its" in "".join(
        one.text for one in summary(findings(throttled=[at_once], throttled_clients=1))
    )


def shared(by_user, rate, use_share, wait_share, muted_share):
    return {
        "virtual_cluster": "main", "quota_type": "produce", "rule": "user=<default>", "user": "<b>team</b>",
        "client_id": "", "ip": "", "by_user": "<b>team</b>", "by_client_id": by_user, "rate": rate, "limit": 1e5,
        "use_share": use_share, "wait_share": wait_share, "muted_share": muted_share, "sharers": 2, "wait_ms": 9,
    }  # fmt: skip


def test_who_held_whom_is_on_the_page_and_in_the_summary():
    made = findings(shared=[shared("big", 104e3, 0.91, 0.1, 0.05), shared("<i>small</i>", 10e3, 0.09, 0.9, 0.56)])
    [text] = [remark.text for remark in summary(made) if remark.place == "held"]
    assert text == (
        "“<b>team</b>” (<i>small</i>) at 10.0 kB/s was held 56 % of its time by “<b>team</b>” (big) at 104 kB/s: "
        "2 clients share the produce quota of user=<default> (<b>team</b>)."
    )
    parser = read(page(made))
    assert words.unbroken(text) in parser.texts
    assert "b" not in parser.tags
    equal = findings(shared=[shared("big", 104e3, 0.9, 0.9, 0.5), shared("small", 10e3, 0.1, 0.1, 0.05)])
    assert not [remark for remark in summary(equal) if remark.place == "held"], "each waits for what it uses itself"


def test_addresses_are_called_addresses_and_not_logins():
    held = {**use(5, user="", client_id="", ip="10.0.0.9"), "quota_type": "connection", "rule": "ip=<default>"}
    made = findings(clients=[held], throttled=[held], throttled_clients=0, throttled_addresses=1)
    assert "1 address was throttled. Most: address 10.0.0.9, for 100 % of its time by its connections quota." in (
        " ".join(remark.text for remark in summary(made))
    )
    table = page(made).split('aria-label="Throttled clients"')[1].split("</table>")[0]
    assert '<span class="by">address</span> <bdi>10.0.0.9</bdi>' in table
    assert "logins" not in table


def test_a_clock_that_is_ahead_names_its_proxy():
    made = findings(clocks_ahead=[{"instance": "proxy-2", "ahead_ms": 90_400}])
    assert "The clock of proxy-2 is ahead by 90 s or more" in summary(made)[0].text


def test_shadow_quotas_are_told_as_a_share_of_windows():
    """Throttle times that nobody waits for add up to hours in minutes."""
    shadow = use(1, user="etl", client_id="job", quota_type="fetch", shadow_rule="user=etl", shadow_limit=5.0,
                 shadow_throttled_ms=26_748_000, shadow_windows=9, windows=20)  # fmt: skip
    made = findings(shadows=[shadow], shadow_rows=1, shadow_hurt=1, shadow_seen=3)
    said = "The shadow quotas would throttle 1 client; most often “etl” (job), in 45 % of its windows."
    assert said in [remark.text for remark in summary(made)]
    assert "7.43" not in page(made)


def test_the_bars_of_the_bill_are_under_its_numbers_the_largest_first_and_unassigned_last():
    used, charged = dict.fromkeys(UNITS, 0), dict.fromkeys(UNITS, Decimal(0))
    bills = [
        Bill("2026-10", name, used, charged, {"gb_in": Decimal(amount)})
        for name, amount in (("small", 1), ("<i>large</i>", 7), (UNASSIGNED, 20))
    ]
    made = page(findings(sheet=PriceSheet("EUR", 2, {"gb_in": Decimal(1)}), bills=bills))
    section = made.split('id="chargeback"')[1].split("</section>")[0]
    table, bars = section.split("</table>", 1)
    assert "&lt;i&gt;large&lt;/i&gt;" in table
    places = [bars.index(text) for text in ("&lt;i&gt;large", "small", '<span class="none">unassigned</span>')]
    assert places == sorted(places)


def test_tables_that_are_cut_say_of_how_many_rows_they_are():
    text = " ".join(" ".join(read(page(findings(client_count=1_234, throttled_count=9))).texts).split())
    assert "Clients 8 of 1,234" in text
    assert "Throttled clients 8 of 9" in text
    whole = " ".join(" ".join(read(page(findings(client_count=8, throttled_count=8))).texts).split())
    assert "Throttled clients 8 of 8" not in whole


@pytest.mark.parametrize(
    ("rule", "by"),
    [
        ("user=etl", "user"),
        ("user=<default>", "user"),
        ("client-id=etl", "client-id"),
        ("user=etl, client-id=<default>", "user+client-id"),
        ("user='etl, client-id='", "user"),
    ],
)
def test_the_next_commands_are_for_the_kind_of_entity_that_the_quota_is_set_on(rule, by):
    assert kind_of(rule) == by


def test_commands_can_be_typed_as_they_are():
    made = findings(
        table="/srv/my table; rm -rf $HOME", since_ms=MONDAY_MS, until_ms=MONDAY_MS + 7_200_500, window_ms=10_000
    )
    rows = [{"rule": "user=a", "quota_type": "fetch"}, {"rule": "user=b", "quota_type": "produce"}]
    [found] = next_commands(made, rows)
    for command in (found.recommend, found.simulate):
        program, group, job, *arguments = shlex.split(command)
        assert (program, group) == ("kafka-throttle", "usage")
        with usage.commands[job].make_context(job, arguments, **main.context_settings) as context:
            assert context.params["table"] == made.table
            assert (context.params["since_ms"], context.params["until_ms"]) == (MONDAY_MS, MONDAY_MS + 7_200_500)
    assert shlex.split(found.recommend)[-6:] == [
        "--types", "produce,fetch", "--least-days", "1", "--least-windows", "3",
    ]  # fmt: skip
    assert "--candidate advice-by-user/quotas.yaml" in found.simulate
    assert f'id="{found.anchor}"' in page(findings())


def test_days_that_are_there_in_part_are_no_whole_days():
    rows = [{"day": date(2026, 10, 26 + i)} for i in range(3)]
    assert whole_days(rows, MONDAY_MS, MONDAY_MS + 3 * DAY_MS) == rows
    assert whole_days(rows, MONDAY_MS + 3_600_000, MONDAY_MS + 3 * DAY_MS - 3_600_000) == rows[1:2]


def test_silence_is_found_and_steps_are_few():
    assert silences([{"at_ms": 0}, {"at_ms": 10}, {"at_ms": 60}], 10) == [(20, 60)]
    for length in (1, DAY_MS, 30 * DAY_MS, 4_000 * DAY_MS, 40_000 * DAY_MS):
        assert length / width_for(0, length) <= 200
