"""Tables of sensors that are full have few log lines."""

from structlog.testing import capture_logs

from kafka_throttle.proxy.observe.full_tables import FullTables


def test_a_full_table_is_logged_once_a_minute_with_the_newcomers_since():
    with capture_logs() as logs:
        tables = FullTables("main")
        for second, clients, addresses in [(0, 0, 0), (1, 3, 0), (2, 9, 0), (30, 9, 5), (61, 20, 5), (200, 20, 5)]:
            tables.look({"clients": clients, "addresses": addresses}, second * 1_000_000)
    lines = [(line["table"], line["newcomers"], line["setting"]) for line in logs]
    assert lines == [
        ("clients", 3, "limits.max_sensors"),
        ("addresses", 5, None),
        ("clients", 17, "limits.max_sensors"),
    ]
    assert {line["event"] for line in logs} == {"sensors_full"}
