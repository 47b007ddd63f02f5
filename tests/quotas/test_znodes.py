"""Names, contents, notifications and changes of Kafka's quota znodes; what Kafka itself says is in the jars."""

import json
import random
import struct
import subprocess
from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.changes import Limit
from kafka_throttle.quotas.entities import DEFAULT, Entity, InvalidQuota, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.sources.znodes import (
    Content,
    Create,
    Delete,
    EntityNodes,
    Replace,
    Seen,
    change_number,
    content_of,
    decoded,
    encoded,
    entity_at,
    keys_of,
    limit_in,
    notification,
    notified_path,
    path_of,
    rewritten,
    steps_to,
    text_of,
    written,
)
from tests.support.java_program import java_program

ALICE = Entity(user="alice")
PRODUCE, FETCH, REQUEST = (QuotaKey(t) for t in (QuotaType.PRODUCE, QuotaType.FETCH, QuotaType.REQUEST))
SHADOW_PRODUCE = QuotaKey(QuotaType.PRODUCE, shadow=True)
CONNECTION = QuotaKey(QuotaType.CONNECTION)
MUTATION = QuotaKey(QuotaType.CONTROLLER_MUTATION)


def node(**config):
    return written(config)


# ------------------------------------------------------- Kafka's own responses


def kafka_says(folder, questions):
    """What Kafka 3.9.2, the last with znodes, returns for each (operation, text); None where it throws."""
    lines = [f"{operation}\t{text.encode('utf-16-be', 'surrogatepass').hex()}\n" for operation, text in questions]
    (folder / "calls").write_text("".join(lines))
    command = java_program("NodeTexts", "3.9.2")
    subprocess.run([*command, folder / "calls", folder / "results"], check=True, timeout=600)
    responses = (folder / "results").read_text().splitlines()
    assert len(responses) == len(questions)
    return [None if response == "-" else bytes.fromhex(response).decode("utf-16-be") for response in responses]


def or_none(ask, *args):
    try:
        return ask(*args)
    except InvalidQuota:
        return None


def bits(number):
    return struct.pack(">d", number).hex()


def double(bits):
    return struct.unpack(">d", int(bits, 16).to_bytes(8, "big"))[0]


def random_names(rng):
    """All of ASCII, each by itself, and mixtures of that with what needs two, three and four bytes of UTF-8."""
    yield from map(chr, range(128))
    letters = [
        *map(chr, range(32, 127)),
        "é",
        "ß",
        "Ж",
        "中",
        "\u2028",
        "😀",
        "\U0010ffff",
        "\ufffd",
        "%",
        "+",
        "*",
        "~",
    ]
    for _ in range(2000):
        yield "".join(rng.choices(letters, k=rng.randrange(1, 12)))
    yield from ("<default>", "CN=x,O=y z", "..", "\ud83d", "a\udc00b", "..%2F")


def random_values(rng):
    digits = "0123456789"
    for _ in range(1000):
        yield "".join(rng.choices(digits + digits + ".-+eEdDfF xXpPaN_", k=rng.randrange(1, 8)))
        yield rng.choice(["", "-", "+"]) + "".join(rng.choices(digits, k=rng.randrange(1, 22)))
        yield repr(rng.random() * 10 ** rng.randrange(-30, 30))
        exponential = f"{rng.random():.{rng.randrange(20)}e}"
        yield rng.choice(["", "+", " ", "\t"]) + exponential + rng.choice(["", "d", "F", " "])
        yield (rng.random() * 10 ** rng.randrange(-5, 5)).hex().upper().replace("P", rng.choice("pP"))
    yield from (
        "NaN",
        "Infinity",
        "-Infinity",
        "nan",
        "inf",
        "1e400",
        "0x1p2000",
        "",
        " ",
        "1_000",
        "1.",
        ".5",
        ".",
        "5.e3",
    )
    yield from ("9223372036854775807", "9223372036854775808", "9007199254740993", "0" * 30 + "1")


def test_names_and_numbers_are_kafkas_own(tmp_path):
    rng = random.Random(5)
    names, values = list(random_names(rng)), list(random_values(rng))
    doubles = [bits(rng.random() * 10 ** rng.randrange(-10, 12)) for _ in range(3000)]
    doubles += [bits(number) for number in (1e-3, 9999999.0, 1e7, 12.0, 0.1, 1e21, 1.5e300, 100.0, 123456789.0)]
    malformed = ["%", "a%4", "%zz", "%4x", "%%20", "50%"]
    escaped = [encoded(name) for name in names] + ["a+b", "a~b", "a*b", "%7e", "%C3%A9", "%ff", "%C3x", "é", *malformed]
    questions = (
        [("encode", name) for name in names]
        + [("decode", text) for text in escaped]
        + [("long", value) for value in values]
        + [("double", value) for value in values]
        + [("text", number) for number in doubles]
    )
    responses = dict(zip(questions, kafka_says(tmp_path, questions), strict=True))
    for name in names:
        assert encoded(name) == responses["encode", name]
    for text in escaped:
        assert or_none(decoded, text) == responses["decode", text]
    for value in values:
        whole, number = responses["long", value], responses["double", value]
        whole = None if whole is None or int(whole) < 1 else float(whole)
        assert or_none(limit_in, ALICE, PRODUCE, value) == whole, value
        number = None if number is None or not 0 < double(number) < float("inf") else double(number)
        assert or_none(limit_in, ALICE, REQUEST, value) == number, value
    for number in doubles:
        assert text_of(QuotaType.REQUEST, double(number)) == responses["text", number], number


# -------------------------------------------------------------------- names

names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(lambda name: name not in (".", ".."))
parts = names | st.just(DEFAULT)
entities = (
    st.builds(Entity, user=parts)
    | st.builds(Entity, client_id=parts)
    | st.builds(Entity, user=parts, client_id=parts)
    | st.builds(
        Entity, ip=st.ip_addresses().map(str) | st.just(DEFAULT) | st.from_regex(r"[a-z][a-z0-9-]{0,9}", fullmatch=True)
    )
)


@given(entities)
def test_the_node_of_an_entity_leads_back_to_it(entity):
    path = path_of(entity)
    assert entity_at(path) == entity
    assert not {"", ".", ".."} & set(path.split("/"))


@pytest.mark.parametrize(
    ("entity", "path"),
    [
        (Entity("alice"), "users/alice"),
        (Entity(DEFAULT), "users/<default>"),
        (Entity("<default>"), "users/%3Cdefault%3E"),
        (Entity("CN=x, O=y/z", "a~b *"), "users/CN%3Dx%2C%20O%3Dy%2Fz/clients/a%7Eb%20%2A"),
        (Entity(DEFAULT, DEFAULT), "users/<default>/clients/<default>"),
        (Entity(client_id="é"), "clients/%C3%A9"),
        (Entity(ip="10.0.0.1"), "ips/10.0.0.1"),
        (Entity(ip="0:0::1"), "ips/::1"),
        (Entity(ip="::ffff:10.0.0.1"), "ips/10.0.0.1"),
        (Entity(ip="host.example"), "ips/host.example"),
        (Entity(ip=DEFAULT), "ips/<default>"),
    ],
)
def test_every_kind_of_entity_has_the_node_that_kafka_gives_it(entity, path):
    assert path_of(entity) == path
    assert entity_at(path) == entity


@pytest.mark.parametrize(
    "path",
    ["users", "users/", "users/a/clients", "users/a/clients/", "users/a/topics/b", "users/a/clients/b/c", "topics/t"]
    + ["users/%", "users/%4", "clients/%zz", "users/a/clients/%", "ips/%3A%3A1", "ips/a b", "ips/fe80::1%eth0", ""],
)
def test_a_path_that_no_entity_has_is_refused(path):
    with pytest.raises(InvalidQuota, match="expected"):
        entity_at(path)


@pytest.mark.parametrize(
    "entity", [Entity("."), Entity(client_id=".."), Entity("a", "."), Entity(ip="a/b"), Entity(ip="..")]
)
def test_what_zookeeper_can_have_no_node_for_is_refused(entity):
    with pytest.raises(InvalidQuota, match="expected"):
        path_of(entity)


# ------------------------------------------------------------------ content


def test_a_node_is_read_with_kafkas_keys_and_our_own():
    data = node(producer_byte_rate="1024", request_percentage="12.3", shadow_producer_byte_rate="2048")
    assert data == (
        b'{"version":1,"config":{"producer_byte_rate":"1024","request_percentage":"12.3",'
        b'"shadow_producer_byte_rate":"2048"}}'
    )
    assert content_of(ALICE, data) == Content({PRODUCE: 1024.0, REQUEST: 12.3, SHADOW_PRODUCE: 2048.0})


def test_secrets_and_unknown_keys_are_no_quotas():
    data = written(
        {"SCRAM-SHA-256": "salt=x", "connection_creation_rate": "3", "window": "9", "consumer_byte_rate": "5"}
    )
    assert content_of(ALICE, data) == Content({FETCH: 5.0}, ("connection_creation_rate", "window"))
    assert content_of(Entity(ip="10.0.0.1"), node(connection_creation_rate="0")).limits == {CONNECTION: 0.0}


def test_a_node_without_data_says_nothing():
    assert content_of(ALICE, b"") == content_of(ALICE, written({})) == Content({})


def test_a_node_has_one_scope_which_needs_a_quota_that_has_one():
    assert content_of(ALICE, node(producer_byte_rate="5", scope="cluster")) == Content(
        {PRODUCE: 5.0}, scope=Scope.CLUSTER
    )
    assert content_of(ALICE, node(controller_mutation_rate="5", scope="cluster")).unknown == ("scope",)
    assert content_of(Entity(ip="10.0.0.1"), node(connection_creation_rate="5", scope="node")).unknown == ("scope",)
    wrong = content_of(ALICE, node(producer_byte_rate="5", scope="all"))
    assert wrong == Content({PRODUCE: 5.0}, wrong={"scope": "expected scope to be node or cluster, got 'all'"})


def test_a_changed_limit_keeps_the_scope_of_a_node_and_the_last_one_takes_it_along():
    scoped = node(producer_byte_rate="5", scope="cluster")
    assert rewritten(scoped, {PRODUCE: 6.0}) == node(producer_byte_rate="6", scope="cluster")
    assert rewritten(scoped, {PRODUCE: None, FETCH: 1.0}) == node(scope="cluster", consumer_byte_rate="1")
    assert rewritten(scoped, {PRODUCE: None}) == b""
    assert rewritten(node(producer_byte_rate="5"), {}, Scope.CLUSTER) == scoped
    assert rewritten(scoped, {}, Scope.NODE) == node(producer_byte_rate="5")


def test_the_scope_of_a_node_is_in_its_limits_and_survives_nonsense():
    nodes = EntityNodes("/config")
    nodes.take("users/alice", node(producer_byte_rate="5", controller_mutation_rate="2", scope="cluster"))
    layer = "/config/users/alice"
    in_force = {PRODUCE: Limit(5.0, layer, Scope.CLUSTER), MUTATION: Limit(2.0, layer)}
    assert nodes.quotas == {ALICE: in_force}
    nodes.take("users/alice", b"oops")
    assert nodes.quotas == {ALICE: in_force}
    written_anew = nodes.changes_to("users/alice", b"oops", {PRODUCE: 6.0})
    assert content_of(ALICE, written_anew) == Content({PRODUCE: 6.0, MUTATION: 2.0}, scope=Scope.CLUSTER)
    with pytest.raises(InvalidQuota, match="scope of user=alice: expected producer_byte_rate or"):
        nodes.changes_to("users/alice", b"", {MUTATION: 1.0}, Scope.CLUSTER)


BAD = {
    "no JSON": b"producer_byte_rate=5",
    "half of it": node(producer_byte_rate="5")[:-3],
    "more after it": node(producer_byte_rate="5") + b"}",
    "no UTF-8": b'{"version":1,"config":{"x":"\xff\xfe"}}',
    "an array": b"[1]",
    "null": b"null",
    "a number": b"7",
    "no config": b'{"version":1}',
    "null for config": b'{"version":1,"config":null}',
    "an array for config": b'{"version":1,"config":[]}',
    "brackets without end": b"[" * 50_000,
    "1 MiB": b'{"version":1,"config":{"x":"' + b"y" * 2**20 + b'"}}',
}


WRONG = {
    "a number for a string": b'{"version":1,"config":{"producer_byte_rate":5}}',
    "null for a string": b'{"version":1,"config":{"producer_byte_rate":null}}',
    "an object for a string": b'{"version":1,"config":{"producer_byte_rate":{}}}',
    "a blank": node(producer_byte_rate=" 5"),
    "a fraction": node(producer_byte_rate="5.0"),
    "zero": node(consumer_byte_rate="0"),
    "less than zero": node(controller_mutation_rate="-1"),
    "not a number": node(request_percentage="NaN"),
    "infinity": node(request_percentage="1e999"),
    "a long that is none": node(producer_byte_rate=str(2**63)),
    "digits without end": node(producer_byte_rate="9" * 10_000),
    "words": node(request_percentage="ten"),
}
"""Wrong values of one quota."""


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_value_takes_no_other_quota_of_its_node_away(kind):
    [(text, value)] = json.loads(WRONG[kind])["config"].items()
    others = {"producer_byte_rate": "7", "controller_mutation_rate": "2.5", "request_percentage": "9.5"}
    others.pop(text, None)
    nodes = EntityNodes(PLACE)
    nodes.take("users/alice", written({**others, text: value, "SCRAM-SHA-256": "x"}))
    assert nodes.quotas == {ALICE: limits(**others)}
    [problem] = nodes.problems.values()
    assert "expected " in problem
    assert problem.endswith("; nothing is in force for it")
    assert len(problem) < 250
    nodes.take("users/alice", written({**others, text: "8"}))
    nodes.take("users/alice", written({text: value, **others}))
    assert nodes.quotas[ALICE][QuotaKey.parse(text)] == Limit(8.0, f"{PLACE}/users/alice")
    assert nodes.problems[f"{PLACE}/users/alice"].endswith("; the last good quota stays in force")
    nodes.take("users/alice", written(others))
    assert nodes.quotas == {ALICE: limits(**others)}
    assert nodes.problems == {}


def test_each_wrong_value_and_each_unknown_key_of_a_node_is_reported():
    nodes = EntityNodes(PLACE)
    nodes.take("users/alice", node(producer_byte_rate="5", scope="cluster"))
    content = {"producer_byte_rate": "x", "consumer_byte_rate": "6", "scope": "all", "produser_byte_rate": "6", "y": 1}
    nodes.take("users/alice", written(content))
    in_force = {PRODUCE: Limit(5.0, f"{PLACE}/users/alice", Scope.CLUSTER)}
    assert nodes.quotas[ALICE] == in_force | {FETCH: Limit(6.0, f"{PLACE}/users/alice", Scope.CLUSTER)}
    assert nodes.problems == {
        f"{PLACE}/users/alice": "expected producer_byte_rate to be a whole number of at most 9223372036854775807, "
        "got 'x'; the last good quota stays in force. expected scope to be node or cluster, got 'all'; the scope "
        "cluster is in force. expected 'y' to be a string, got a number; nothing is in force for it. ignored, as this "
        "version knows no such quota of user=alice: 'produser_byte_rate'"
    }


def test_of_very_many_wrong_values_some_are_reported_and_the_others_counted():
    nodes = EntityNodes(PLACE)
    nodes.take("users/alice", written({f"x{i}": i for i in range(1_000)} | {"producer_byte_rate": "5"}))
    assert nodes.quotas == {ALICE: limits(producer_byte_rate=5)}
    [problem] = nodes.problems.values()
    assert problem.endswith(". and 996 more")
    assert len(problem) < 500


def test_an_alteration_repairs_the_wrong_values_of_its_node_and_keeps_the_others():
    nodes = EntityNodes(PLACE)
    nodes.take("users/alice", node(producer_byte_rate="1"))
    wrong = written({"producer_byte_rate": "x", "consumer_byte_rate": "6", "request_percentage": "y", "window": "9"})
    nodes.take("users/alice", wrong)
    assert json.loads(nodes.changes_to("users/alice", wrong, {MUTATION: 3.0}))["config"] == {
        "producer_byte_rate": "1",
        "consumer_byte_rate": "6",
        "window": "9",
        "controller_mutation_rate": "3.0",
    }


@pytest.mark.parametrize("kind", BAD)
def test_what_is_no_configuration_is_refused_whole_with_a_reason(kind):
    with pytest.raises(InvalidQuota, match="expected") as refused:
        content_of(ALICE, BAD[kind])
    assert len(str(refused.value)) < 200


@given(
    st.binary(max_size=200)
    | st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(),
        lambda inner: (
            st.lists(inner)
            | st.dictionaries(
                st.sampled_from(["version", "config", "producer_byte_rate", "entity_path"]) | st.text(), inner
            )
        ),
    ).map(lambda value: json.dumps(value).encode())
)
def test_whatever_a_node_holds_it_is_read_or_refused(data):
    for read in (lambda: content_of(ALICE, data), lambda: notified_path(data), lambda: rewritten(data, {PRODUCE: 1.0})):
        with suppress(InvalidQuota):
            read()


def test_what_is_refused_is_not_shown_for_it_may_be_a_secret():
    for data in (b"stored_key=secret", b'["secret"]'):
        with pytest.raises(InvalidQuota) as refused:
            content_of(ALICE, data)
        assert "secret" not in str(refused.value)
    wrong = content_of(ALICE, written({})[:-2] + b'"SCRAM-SHA-256":["secret"]}}').wrong
    assert wrong == {"SCRAM-SHA-256": "expected 'SCRAM-SHA-256' to be a string, got an array"}


def test_a_rewrite_changes_its_own_keys_and_leaves_all_others_as_they_are():
    data = written(
        {
            "SCRAM-SHA-256": "salt=x",
            "producer_byte_rate": "0009007199254740993",
            "x": "\ud800",
            "request_percentage": "1",
        }
    )
    changed = json.loads(rewritten(data, {REQUEST: None, FETCH: 7.0, SHADOW_PRODUCE: 8.0}))
    assert changed == {
        "version": 1,
        "config": {
            "SCRAM-SHA-256": "salt=x",
            "producer_byte_rate": "0009007199254740993",
            "x": "\ud800",
            "consumer_byte_rate": "7",
            "shadow_producer_byte_rate": "8",
        },
    }


def test_nothing_is_left_when_the_last_key_goes():
    assert rewritten(node(producer_byte_rate="5"), {PRODUCE: None, FETCH: None}) == b""
    assert rewritten(b"no JSON", {PRODUCE: None}) == b""


def test_a_rewrite_makes_strings_of_what_trips_brokers():
    assert rewritten(b'{"version":1,"config":{"x":5,"y":[1]}}', {PRODUCE: 1.0}) == node(
        x="5", y="[1]", producer_byte_rate="1"
    )


@given(st.sampled_from(sorted(keys_of(ALICE) | keys_of(Entity(ip="10.0.0.1")), key=str)), st.data())
def test_a_limit_that_is_written_is_read_again(key, data):
    is_whole = key.quota_type not in (QuotaType.REQUEST, QuotaType.CONTROLLER_MUTATION)
    largest = 2**31 - 1 if key.quota_type is QuotaType.CONNECTION else 2**53
    limits = st.integers(1, largest).map(float) if is_whole else st.floats(0, exclude_min=True, allow_infinity=False)
    limit = data.draw(limits)
    entity = Entity(ip="10.0.0.1") if key.quota_type is QuotaType.CONNECTION else ALICE
    assert content_of(entity, rewritten(b"", {key: limit})).limits == {key: limit}


def test_the_largest_byte_rate_stays_within_a_long():
    assert text_of(QuotaType.PRODUCE, 2.0**63) == str(2**63 - 1)
    assert text_of(QuotaType.FETCH, 1235.0000001) == "1235"


# ------------------------------------------------------------ notifications


def test_a_notification_names_the_path_below_config():
    assert notification("users/alice/clients/app") == b'{"version":2,"entity_path":"users/alice/clients/app"}'
    assert notified_path(notification("users/alice/clients/app")) == "users/alice/clients/app"


def test_notifications_of_version_1_are_of_client_ids_and_those_of_other_types_are_ignored():
    assert notified_path(b'{"version":1,"entity_type":"clients","entity_name":"a%20b"}') == "clients/a%20b"
    assert notified_path(b'{"version":1,"entity_type":"topics","entity_name":"t"}') is None
    assert notified_path(b'{"version":2,"entity_path":"topics/t"}') is None
    assert notified_path(b'{"version":2,"entity_path":"brokers/<default>"}') is None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no JSON",
        b"[]",
        b"{}",
        b'{"version":3,"entity_path":"users/alice"}',
        b'{"version":2,"entity_path":5}',
        b'{"version":2}',
        b'{"version":1,"entity_type":"users","entity_name":"alice"}',
        b'{"version":1,"entity_type":"clients","entity_name":null}',
        b'{"version":2,"entity_path":"users/alice/clients"}',
        b'{"version":2,"entity_path":"users/%"}',
    ],
)
def test_what_is_no_notification_is_refused(data):
    with pytest.raises(InvalidQuota, match="expected"):
        notified_path(data)


def test_notifications_are_numbered_by_zookeeper():
    assert change_number("config_change_0000000042") == 42
    assert change_number("config_change_2147483647") == 2**31 - 1
    assert [change_number(name) for name in ("config_change_", "config_change_-1", "other_1", "xconfig_change_1")] == [
        None
    ] * 4


# ------------------------------------------------------------------ writing

PAIR = "users/alice/clients/app"
FULL = node(producer_byte_rate="5")


def around_pair(user=None, between=None, pair=None):
    return {"users": Seen(b"", 0, 9), "users/alice": user, "users/alice/clients": between, PAIR: pair}


def test_a_new_node_comes_with_its_parents():
    assert steps_to("clients/app", FULL, {"clients": Seen(b"", 0, 0), "clients/app": None}) == [
        Create("clients/app", FULL)
    ]
    assert steps_to(PAIR, FULL, around_pair()) == [
        Create("users/alice", b""),
        Create("users/alice/clients", b""),
        Create(PAIR, FULL),
    ]
    assert steps_to(PAIR, FULL, around_pair(Seen(FULL, 7, 0))) == [
        Create("users/alice/clients", b""),
        Create(PAIR, FULL),
    ]


def test_a_node_is_replaced_in_the_version_that_was_read_and_left_alone_if_it_says_that_already():
    old = node(producer_byte_rate="4")
    assert steps_to(PAIR, FULL, around_pair(Seen(b"", 0, 1), Seen(b"", 0, 1), Seen(old, 7, 0))) == [
        Replace(PAIR, FULL, 7)
    ]
    assert steps_to(PAIR, FULL, around_pair(Seen(b"", 0, 1), Seen(b"", 0, 1), Seen(FULL, 7, 0))) == []
    assert steps_to(PAIR, b"", around_pair()) == []


def test_the_last_pair_takes_along_what_was_there_for_its_sake():
    pair = Seen(FULL, 7, 0)
    gone, between, user = Delete(PAIR, 7), Delete("users/alice/clients", 3), Delete("users/alice", 2)
    assert steps_to(PAIR, b"", around_pair(Seen(b"", 2, 1), Seen(b"", 3, 1), pair)) == [gone, between, user]
    assert steps_to(PAIR, b"", around_pair(Seen(written({}), 2, 1), Seen(b"", 3, 1), pair)) == [gone, between, user]
    assert steps_to(PAIR, b"", around_pair(Seen(FULL, 2, 1), Seen(b"", 3, 1), pair)) == [gone, between]
    assert steps_to(PAIR, b"", around_pair(Seen(b"?", 2, 1), Seen(b"", 3, 1), pair)) == [gone, between]
    assert steps_to(PAIR, b"", around_pair(Seen(b"", 2, 1), Seen(b"", 3, 2), pair)) == [gone]


def test_a_node_with_children_stays_without_content():
    def user(data):
        return {"users": Seen(b"", 0, 9), "users/alice": Seen(data, 7, 1)}

    assert steps_to("users/alice", b"", user(FULL)) == [Replace("users/alice", written({}), 7)]
    assert steps_to("users/alice", b"", user(written({}))) == steps_to("users/alice", b"", user(b"")) == []


# -------------------------------------------------------------------- nodes

PLACE = "/kafka/config"


def limits(path="users/alice", **config):
    return {QuotaKey.parse(text): Limit(float(value), f"{PLACE}/{path}") for text, value in config.items()}


def test_what_is_read_is_in_force_with_its_znode_as_the_layer_until_the_node_is_gone():
    nodes = EntityNodes(PLACE)
    nodes.take("users/alice", node(producer_byte_rate="5"))
    nodes.take(PAIR, node(request_percentage="1.5"))
    nodes.take("users/bob", b"")
    before = nodes.quotas
    assert before == {ALICE: limits(producer_byte_rate=5), Entity("alice", "app"): limits(PAIR, request_percentage=1.5)}
    nodes.take("users/alice", None)
    assert nodes.quotas == {Entity("alice", "app"): limits(PAIR, request_percentage=1.5)}
    assert before[ALICE] == limits(producer_byte_rate=5), "a snapshot has changed"
    assert nodes.problems == {}


@pytest.mark.parametrize("kind", BAD)
def test_an_invalid_node_keeps_its_last_good_quotas_and_is_reported(kind):
    nodes = EntityNodes(PLACE)
    nodes.take("users/alice", node(producer_byte_rate="1", consumer_byte_rate="2"))
    nodes.take("users/bob", node(producer_byte_rate="3"))
    before = nodes.quotas
    nodes.take("users/alice", BAD[kind])
    assert nodes.quotas == before
    [(path, problem)] = nodes.problems.items()
    assert path == "/kafka/config/users/alice"
    assert problem.startswith("expected") or " expected " in problem
    assert problem.endswith("; the last good quota stays in force")
    nodes.take("users/alice", node(producer_byte_rate="4"))
    assert nodes.quotas[ALICE] == limits(producer_byte_rate=4)
    assert nodes.problems == {}


def test_a_node_that_was_never_valid_or_has_no_entity_is_reported_until_it_is_gone():
    nodes = EntityNodes(PLACE)
    nodes.take("users/alice", b"?")
    nodes.take("users/%", node(producer_byte_rate="1"))
    nodes.cannot_read("clients/app", "cannot be read: not allowed")
    assert nodes.quotas == {}
    assert nodes.problems == {
        "/kafka/config/users/alice": "expected JSON, got something else; nothing is in force",
        "/kafka/config/users/%": "expected a name with %XX for special characters, got '%'; nothing is in force for it",
        "/kafka/config/clients/app": "cannot be read: not allowed; nothing is in force",
    }
    for path in nodes.paths:
        nodes.take(path, None)
    assert nodes.problems == {}
    assert nodes.paths == set()


def test_unknown_keys_are_reported_and_the_others_are_in_force():
    nodes = EntityNodes(PLACE)
    nodes.take("users/alice", written({"producer_byte_rate": "5", "produser_byte_rate": "6", "SCRAM-SHA-512": "x"}))
    assert nodes.quotas == {ALICE: limits(producer_byte_rate=5)}
    assert nodes.problems == {
        "/kafka/config/users/alice": "ignored, as this version knows no such quota of user=alice: 'produser_byte_rate'"
    }


def test_last_good_quotas_count_until_their_node_has_been_read_and_while_it_is_invalid():
    last_good = {ALICE: limits(producer_byte_rate=5), Entity("."): limits("users/.", producer_byte_rate=6)}
    nodes = EntityNodes(PLACE, last_good)
    assert nodes.quotas == {ALICE: limits(producer_byte_rate=5)}
    assert nodes.paths == {"users/alice"}
    assert nodes.holds_below("users")
    assert not nodes.holds_below("clients")
    nodes.take("users/alice", b"?")
    assert nodes.quotas == {ALICE: limits(producer_byte_rate=5)}
    nodes.take("users/alice", None)
    assert nodes.quotas == {}


def test_what_came_from_elsewhere_does_not_speak_for_a_root_that_is_gone():
    nodes = EntityNodes(PLACE, {ALICE: {PRODUCE: Limit(5.0, "/other/config/users/alice")}})
    assert set(nodes.quotas) == {ALICE}
    assert not nodes.holds_below("users")
    nodes.take(PAIR, node(producer_byte_rate="1"))
    assert nodes.holds_below("users")


def test_of_two_nodes_for_one_entity_the_one_with_kafkas_name_counts():
    ab = Entity("a b")
    nodes = EntityNodes(PLACE)
    assert nodes.path_of(ab) == "users/a%20b"
    nodes.take("users/a+b", node(producer_byte_rate="1"))
    assert nodes.quotas == {ab: limits("users/a+b", producer_byte_rate=1)}
    assert nodes.path_of(ab) == "users/a+b"
    nodes.take("users/a%20b", node(producer_byte_rate="2"))
    assert nodes.quotas == {ab: limits("users/a%20b", producer_byte_rate=2)}
    assert nodes.problems == {
        "/kafka/config/users/a+b": "ignored, for /kafka/config/users/a%20b stands for user='a b' too"
    }
    nodes.take("users/a%20b", None)
    assert nodes.quotas == {ab: limits("users/a+b", producer_byte_rate=1)}
    assert nodes.problems == {}


def test_each_change_of_quotas_or_problems_is_a_new_version_and_nothing_else_is():
    nodes = EntityNodes(PLACE)
    versions = [nodes.version]
    for data in (FULL, FULL, b"?", b"?", FULL, written({}), b"", None):
        nodes.take("users/alice", data)
        versions.append(nodes.version)
    changed = [after > before for before, after in pairwise(versions)]
    assert changed == [True, False, True, False, True, True, False, False]


def test_an_alteration_of_an_invalid_node_starts_from_the_quotas_in_force():
    nodes = EntityNodes(PLACE)
    nodes.take("users/alice", node(producer_byte_rate="1", consumer_byte_rate="2"))
    bad = b'{"version":1,"config":{"producer_byte_rate":7,"consumer_byte_rate":"","SCRAM-SHA-256":"x"}}'
    nodes.take("users/alice", bad)
    written_anew = nodes.changes_to("users/alice", bad, {REQUEST: 3.0})
    expected = {"producer_byte_rate": "1", "consumer_byte_rate": "2", "request_percentage": "3.0", "SCRAM-SHA-256": "x"}
    assert json.loads(written_anew)["config"] == expected
    good = node(producer_byte_rate="8")
    assert nodes.changes_to("users/alice", good, {REQUEST: 3.0}) == node(
        producer_byte_rate="8", request_percentage="3.0"
    )
