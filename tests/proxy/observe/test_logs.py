import io
import json
import logging
import os

import pytest
import structlog

from kafka_throttle.proxy.observe import logs


@pytest.fixture(autouse=True)
def quiet_afterwards():
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    yield
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()
    logs.set_level("info")
    root.setLevel(level)


def lines(capsys):
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_an_event_is_one_json_object_with_its_keys(capsys):
    logs.configure("info", "json")
    structlog.get_logger().bind(listener="plain").info("connection_closed", requests=3, reason="client_closed")
    [line] = lines(capsys)
    assert line.pop("timestamp").endswith("Z")
    assert line.pop("pid") == os.getpid()
    assert line == {
        "event": "connection_closed",
        "level": "info",
        "listener": "plain",
        "reason": "client_closed",
        "requests": 3,
    }


def test_a_logger_that_is_bound_later_is_made_once_and_only_for_a_line(capsys):
    logs.configure("info", "json")
    made = []

    def make():
        made.append(1)
        return structlog.get_logger().bind(client="127.0.0.1:9")

    log = logs.bound_later(make)
    assert made == []
    log.info("first")
    log.bind(node_id=3).info("second")
    reported = [(line["event"], line["client"], line.get("node_id")) for line in lines(capsys)]
    assert (reported, made) == ([("first", "127.0.0.1:9", None), ("second", "127.0.0.1:9", 3)], [1])


def test_strings_are_cut_to_128_characters():
    assert logs.printable("x" * 128) == "x" * 128
    assert logs.printable("x" * 129) == "x" * 127 + "…"
    assert len(logs.printable("\x1b" * 1000)) == 128


def test_control_characters_are_shown_as_escapes():
    assert logs.printable("a\r\nb\x1b[31m\u2028\ud800") == r"a\r\nb\x1b[31m\u2028\ud800"
    assert logs.printable("größe 日本") == "größe 日本"


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_client_cannot_forge_a_line(capsys, form):
    logs.configure("info", form)
    structlog.get_logger().info("x_happened", client_id='a\n{"event": "forged"}\x1b[2J', ids=["b\n" * 300])
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "\x1b[2J" not in err
    assert len(err) < 600


def test_a_long_value_of_any_type_is_cut(capsys):
    logs.configure("info", "json")
    structlog.get_logger().info("x_happened", mapping={"a": "y" * 1000}, data=b"z" * 1000)
    [line] = lines(capsys)
    assert len(line["mapping"]) == len(line["data"]) == 128


def test_a_level_change_reaches_loggers_that_are_already_bound(capsys):
    logs.configure("info", "json")
    log = structlog.get_logger().bind(connection_id=1)
    log.debug("first")
    logs.set_level("debug")
    log.debug("second")
    logs.set_level("error")
    log.warning("third")
    log.error("fourth")
    assert [line["event"] for line in lines(capsys)] == ["second", "fourth"]


def test_what_libraries_log_comes_out_the_same_way(capsys):
    logs.configure("info", "json")
    logging.getLogger("some.library").warning("lost %s\n", "a node")
    logging.getLogger("some.library").debug("detail")
    logging.getLogger("kafka.conn").info("chatter")
    logging.getLogger("kafka.conn").error("one attempt of many has failed")
    logging.getLogger("asyncio").error("trouble")
    assert [(line["logger"], line["level"], line["event"]) for line in lines(capsys)] == [
        ("some.library", "warning", r"lost a node\n"),
        ("asyncio", "error", "trouble"),
    ]


def test_debug_lets_chatty_libraries_through(capsys):
    logs.configure("debug", "json")
    logging.getLogger("kafka.conn").debug("chatter")
    assert [line["event"] for line in lines(capsys)] == ["chatter"]


def test_even_debug_shows_no_password_of_the_proxys_own(capsys):
    logs.configure("debug", "json")
    logging.getLogger("kafka.admin.client").debug("Starting with %s", {"sasl_plain_password": "secret"})
    logging.getLogger("kafka.admin.client").info("started")
    assert [line["event"] for line in lines(capsys)] == ["started"]


def test_configuring_twice_logs_once(capsys):
    logs.configure("info", "json")
    logs.configure("info", "json")
    logging.getLogger("some.library").warning("once")
    assert len(lines(capsys)) == 1


@pytest.mark.parametrize("form", ["json", "console"])
def test_a_traceback_is_whole(capsys, form):
    logs.configure("info", form)
    try:
        raise AssertionError("our\x1b bug")
    except AssertionError:
        structlog.get_logger().exception("internal_error")
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert "test_a_traceback_is_whole" in err
    assert "\x1b" not in err


def test_a_closed_standard_error_stops_nothing(monkeypatch):
    logs.configure("info", "json")
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stderr", closed)
    structlog.get_logger().info("x_happened")
    logging.getLogger("some.library").warning("x")


def test_time_level_event_and_process_come_first_then_the_loggers_keys_then_those_of_the_event(capsys):
    logs.configure("info", "json", worker=3)
    structlog.get_logger().bind(listener="plain", client="127.0.0.1:9").warning("x_happened", zeal=1, age=2)
    [line] = lines(capsys)
    assert list(line) == ["timestamp", "level", "event", "pid", "worker", "listener", "client", "zeal", "age"]
    assert (line["pid"], line["worker"]) == (os.getpid(), 3)


def test_the_console_has_the_same_order(capsys):
    logs.configure("info", "console")
    structlog.get_logger().bind(listener="plain").info("x_happened", zeal=1, age=2, detail="")
    [line] = capsys.readouterr().err.splitlines()
    places = [line.index(text) for text in ("Z ", "[info", "x_happened", "pid=", "listener=", "zeal=", "age=")]
    assert places == sorted(places)
    assert "detail" not in line


def test_a_line_about_a_worker_has_the_number_of_that_worker(capsys):
    logs.configure("info", "json")
    structlog.get_logger().error("worker_lost", worker=2)
    assert [line["worker"] for line in lines(capsys)] == [2]


def test_a_key_without_a_value_is_left_out_but_zero_and_false_are_values(capsys):
    logs.configure("info", "json")
    structlog.get_logger().info("x_happened", detail="", user=None, others=[], sizes={}, requests=0, cut=False, ms=0.0)
    [line] = lines(capsys)
    assert list(line)[4:] == ["requests", "cut", "ms"]


def test_a_forked_process_writes_its_own_id(capfd):
    logs.configure("info", "json")
    if not (child := os.fork()):
        structlog.get_logger().info("x_happened")
        os._exit(0)
    os.waitpid(child, 0)
    assert json.loads(capfd.readouterr().err)["pid"] == child
