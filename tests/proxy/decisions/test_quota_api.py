"""Which users may describe and alter which quotas, and the responses to the others (quota semantics 11)."""

from math import inf, nan

import pytest

from kafka_throttle.protocol.messages.client_quotas import _Body, read_describe_request
from kafka_throttle.proxy.decisions.decide import decide
from kafka_throttle.proxy.decisions.facts import ConnectionFacts, ListenerFacts
from kafka_throttle.proxy.decisions.steps import ITEMS_PER_STEP, QuotaAlteration, SlowDecision
from kafka_throttle.proxy.relay.actions import CloseReason, Decision, DecisionKind, DecisionRequest
from kafka_throttle.proxy.side import Side
from kafka_throttle.quotas import entities
from kafka_throttle.quotas.changes import Alteration, AlterationRefused, Limit, SourceUnavailable
from kafka_throttle.quotas.entities import Entity, QuotaKey, QuotaType
from tests.support.quota_frames import (
    ALTER,
    DESCRIBE,
    alter_request,
    altered,
    correlation_id,
    describe_request,
    described,
)
from tests.support.whole_messages import finish, read_alter_request

PRODUCE, FETCH = QuotaKey(QuotaType.PRODUCE), QuotaKey(QuotaType.FETCH)
CONNECTION, MUTATION = QuotaKey(QuotaType.CONNECTION), QuotaKey(QuotaType.CONTROLLER_MUTATION)
P, F, C = PRODUCE.text, FETCH.text, CONNECTION.text
D = entities.DEFAULT
EXACT, DEFAULT, ANY = 0, 1, 2
NOT_AUTHORISED = 31
INVALID = 42

QUOTAS = {
    Entity("alice"): {PRODUCE: Limit(1.0, "file"), FETCH: Limit(2.0, "overlay")},
    Entity("alice", "app"): {PRODUCE: Limit(3.0, "file")},
    Entity("alice", D): {PRODUCE: Limit(4.0, "file")},
    Entity(D): {PRODUCE: Limit(5.0, "file")},
    Entity(D, "app"): {MUTATION: Limit(0.5, "file")},
    Entity(D, D): {PRODUCE: Limit(6.0, "file")},
    Entity("<default>"): {PRODUCE: Limit(7.0, "file")},
    Entity(client_id="app"): {
        PRODUCE: Limit(8.0, "file"),
        QuotaKey(QuotaType.PRODUCE, shadow=True): Limit(9.0, "file"),
    },
    Entity(client_id=D): {PRODUCE: Limit(10.0, "file")},
    Entity(ip="10.0.0.1"): {CONNECTION: Limit(0.0, "file")},
    Entity(ip="::1"): {CONNECTION: Limit(11.0, "file")},
    Entity(ip=D): {CONNECTION: Limit(12.0, "file")},
    Entity("shadow"): {QuotaKey(QuotaType.FETCH, shadow=True): Limit(1.0, "file")},
}
USERS = [e for e in QUOTAS if e.user is not None and e.user != "shadow"]


def facts(may_alter=True, may_describe=True, user="ANONYMOUS"):
    return ConnectionFacts(ListenerFacts("main", None, None, None, lambda: QUOTAS), 1, user, may_alter, may_describe)


def decided(frame, version, **who):
    ask = DecisionRequest(1, DecisionKind.QUOTA_API, Side.CLIENT, frame[5], version, frame)
    decision = decide(ask, facts(**who), 0)
    return finish(decision.steps) if isinstance(decision, SlowDecision) else decision


@pytest.fixture(params=[0, 1])
def version(request):
    return request.param


# -------------------------------------------------------------------- describe


def ask(components, strict=False, version=1, **who):
    outcome = decided(describe_request(components, strict, version=version, corr=70), version, **who)
    assert isinstance(outcome, Decision)
    assert correlation_id(outcome.response) == 70
    return described(outcome.response, version)


def found(components, strict=False, **who):
    """Which entities are described."""
    code, message, entries = ask(components, strict, **who)
    assert (code, message) == (0, "")
    for entity in QUOTAS:
        values = {key.text: limit.value for key, limit in QUOTAS[entity].items() if not key.shadow}
        assert entries.get(parts(entity), values) == values
    return {entity for entity in QUOTAS if parts(entity) in entries}


def parts(entity):
    return frozenset((part, None if name is D else name) for part, name in entity.parts if name is not None)


def test_an_empty_filter_describes_everything_or_if_strict_nothing(version):
    assert found([], version=version) == set(QUOTAS) - {Entity("shadow")}
    assert found([], strict=True, version=version) == set()


@pytest.mark.parametrize(
    ("components", "loosely", "strictly"),
    [
        (
            [("user", EXACT, "alice")],
            {Entity("alice"), Entity("alice", "app"), Entity("alice", D)},
            {Entity("alice")},
        ),
        ([("user", EXACT, "<default>")], {Entity("<default>")}, {Entity("<default>")}),
        ([("user", EXACT, "")], set(), set()),
        ([("user", DEFAULT, None)], {Entity(D), Entity(D, "app"), Entity(D, D)}, {Entity(D)}),
        ([("user", ANY, None)], set(USERS), {e for e in USERS if e.client_id is None}),
        (
            [("client-id", EXACT, "app")],
            {e for e in QUOTAS if e.client_id == "app"},
            {Entity(client_id="app")},
        ),
        ([("client-id", DEFAULT, None)], {e for e in QUOTAS if e.client_id is D}, {Entity(client_id=D)}),
        ([("client-id", EXACT, "app"), ("user", DEFAULT, None)], {Entity(D, "app")}, {Entity(D, "app")}),
        (
            [("user", ANY, None), ("client-id", ANY, None)],
            *[{e for e in USERS if e.client_id is not None}] * 2,
        ),
        ([("ip", EXACT, "10.0.0.1")], *[{Entity(ip="10.0.0.1")}] * 2),
        ([("ip", EXACT, "::ffff:10.0.0.1")], *[{Entity(ip="10.0.0.1")}] * 2),
        ([("ip", EXACT, "0:0::1")], *[{Entity(ip="::1")}] * 2),
        ([("ip", EXACT, "no address")], set(), set()),
        ([("ip", DEFAULT, None)], *[{Entity(ip=D)}] * 2),
        ([("ip", ANY, None)], *[{e for e in QUOTAS if e.ip is not None}] * 2),
    ],
)
def test_a_filter_chooses(components, loosely, strictly):
    assert found(components) == loosely
    assert found(components, strict=True) == strictly


@pytest.mark.parametrize(
    ("components", "code", "message"),
    [
        ([("", EXACT, "x")], INVALID, "Invalid empty entity type."),
        ([("group", EXACT, "x")], 35, "Unsupported entity type group"),
        (
            [("user", EXACT, "a"), ("user", ANY, None)],
            INVALID,
            "Entity type user cannot appear more than once in the filter.",
        ),
        (
            [("ip", ANY, None), ("client-id", EXACT, "a")],
            INVALID,
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component.",
        ),
        ([("user", 3, None)], INVALID, "Unknown match type 3"),
        ([("user", -1, None)], INVALID, "Unknown match type -1"),
        (
            [("user", EXACT, None)],
            INVALID,
            "Request specified MATCH_TYPE_EXACT, but set match string to null.",
        ),
        (
            [("user", DEFAULT, "")],
            INVALID,
            "Request specified MATCH_TYPE_DEFAULT, but also specified a match string.",
        ),
        (
            [("user", ANY, "a")],
            INVALID,
            "Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.",
        ),
    ],
)
def test_a_filter_that_makes_no_sense_is_refused(components, code, message, version):
    assert ask(components, version=version) == (code, message, None)


def test_every_user_may_describe_its_own_quotas(version):
    own = {"may_alter": False, "may_describe": False, "user": "alice", "version": version}
    assert found([("user", EXACT, "alice")], **own) == {Entity("alice"), Entity("alice", "app"), Entity("alice", D)}
    assert found([("client-id", EXACT, "app"), ("user", EXACT, "alice")], strict=True, **own) == {
        Entity("alice", "app")
    }
    for components in (
        [],
        [("user", ANY, None)],
        [("user", DEFAULT, None)],
        [("user", DEFAULT, "alice")],
        [("user", EXACT, "bob")],
        [("client-id", EXACT, "alice")],
        [("ip", EXACT, "alice")],
        [("group", 9, None)],
    ):
        assert ask(components, **own) == (NOT_AUTHORISED, None, None)


@pytest.mark.rule("rights")
def test_a_user_who_may_describe_may_not_alter(version):
    assert alter([(ALICE, [(P, 1.0, False)])], version=version, may_alter=False) == [refused(ALICE)]


# ----------------------------------------------------------------------- alter

ALICE = (("user", "alice"),)
ADDRESS = (("ip", "10.0.0.9"),)
APP = (("client-id", "app"),)


def put(key, value):
    return key, value, False


def drop(key):
    return key, nan, True


def alteration_request(entries, validate_only=False, version=1, **who):
    frame = alter_request(entries, validate_only, version=version, corr=71, client_id="käufer".encode())
    return decided(frame, version, **who)


def alter(entries, validate_only=False, version=1, results=None, **who):
    """The entries of the response, when what had to be written was, or had these results."""
    decision = alteration_request(entries, validate_only, version, **who)
    if isinstance(decision, QuotaAlteration):
        decision = finish(decision.reply(results or [None] * len(decision.alterations)))
    assert correlation_id(decision.response) == 71
    return altered(decision.response, version)


def alterations(entries):
    decision = alteration_request(entries)
    return list(decision.alterations) if isinstance(decision, QuotaAlteration) else []


def refused(entity):
    return NOT_AUTHORISED, "Cluster authorization failed.", entity


def test_changes_are_written_before_the_response(version):
    entries = [(ALICE, [put(P, 5), drop(F)]), ((("client-id", None),), [put(P, 1235.0000001)])]
    decision = alteration_request(entries, version=version)
    assert isinstance(decision, QuotaAlteration)
    assert decision.alterations == (
        Alteration(Entity("alice"), {PRODUCE: 5.0, FETCH: None}),
        Alteration(Entity(client_id=D), {PRODUCE: 1235.0000001}),
    )
    assert decision.client_id == "käufer"
    response = altered(finish(decision.reply([None, None])).response, version)
    assert response == [(0, None, ALICE), (0, None, (("client-id", None),))]


@pytest.mark.parametrize(
    ("parts", "entity"),
    [
        ([("user", "a")], Entity("a")),
        ([("user", None)], Entity(D)),
        ([("client-id", "a")], Entity(client_id="a")),
        ([("client-id", None)], Entity(client_id=D)),
        ([("user", "a"), ("client-id", "b")], Entity("a", "b")),
        ([("client-id", None), ("user", "a")], Entity("a", D)),
        ([("user", None), ("client-id", None)], Entity(D, D)),
        ([("user", "<default>")], Entity("<default>")),
        ([("user", "a"), ("user", "b")], Entity("b")),
        ([("ip", "10.1.2.3")], Entity(ip="10.1.2.3")),
        ([("ip", None)], Entity(ip=D)),
        ([("ip", "0:0::1")], Entity(ip="::1")),
        ([("ip", "::ffff:10.1.2.3")], Entity(ip="10.1.2.3")),
    ],
)
def test_every_kind_of_entity_is_altered_and_the_response_repeats_it(parts, entity):
    key = CONNECTION if entity.ip is not None else MUTATION
    assert alterations([(parts, [put(key.text, 3)])]) == [Alteration(entity, {key: 3.0})]
    [(code, message, reported)] = alter([(parts, [put(key.text, 3)])])
    assert (code, message, dict(reported)) == (0, None, dict(parts))


@pytest.mark.parametrize(
    ("entity", "message"),
    [
        ((), "Invalid empty client quota entity"),
        ((("group", "a"),), "Unhandled client quota entity type: group"),
        ((("", "a"),), "Unhandled client quota entity type: "),
        ((("user", ""),), "Empty user not supported"),
        ((("user", "a"), ("client-id", "")), "Empty client-id not supported"),
        ((("user", ""), ("client-id", "")), "Empty client-id not supported"),
        ((("ip", ""),), "Empty ip not supported"),
        (
            (("ip", "10.0.0.1"), ("user", "a")),
            "Invalid quota entity combination, IP entity shouldnot be combined with User or ClientId",
        ),
        ((("ip", "10.0.0.256"),), "10.0.0.256 is not a valid IP or resolvable host."),
        ((("ip", "a b"),), "a b is not a valid IP or resolvable host."),
        (
            (("ip", "broker-1.example.com"),),
            "broker-1.example.com is not an IP address. Host names are not taken as an ip.",
        ),
        ((("ip", "localhost"),), "localhost is not an IP address. Host names are not taken as an ip."),
    ],
)
@pytest.mark.parametrize("operations", [[put(P, 1)], [drop(C)], []])
def test_what_is_no_entity_is_refused(entity, message, operations):
    [(code, reported, _)] = alter([(entity, operations)])
    assert (code, reported) == (INVALID, message)
    assert alterations([(entity, operations)]) == []


@pytest.mark.parametrize(
    ("entity", "key"),
    [
        (ALICE, C),
        (APP, C),
        (ADDRESS, P),
        (ALICE, "fast"),
        (ALICE, ""),
        (ALICE, "shadow_producer_byte_rate"),
        (ALICE, "SCRAM-SHA-256"),
    ],
)
def test_keys_that_an_entity_has_not_are_refused_but_may_be_removed(entity, key):
    assert alter([(entity, [put(key, 1)])]) == [(INVALID, f"Invalid configuration key {key}", entity)]
    assert alter([(entity, [drop(key)])]) == [(0, None, entity)]
    assert alterations([(entity, [drop(key)])]) == []


R, M = "request_percentage", "controller_mutation_rate"
TOO_SMALL = [0.0, -0.0, -1.0, -1e-9, -inf]


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        *((key, value, "Quota {} must be greater than 0") for key in (P, F, R, M) for value in TOO_SMALL),
        *((C, value, "Quota {} must be greater than 0") for value in TOO_SMALL[2:]),
        *((P, value, "Proposed value for {} is too large for a LONG.") for value in (2.0**63 + 2048, 1e300, inf)),
        *((C, value, "Proposed value for {} is too large for an INT.") for value in (2.0**31, 2**31 - 0.5, inf)),
        *(
            (key, value, "{} cannot be a fractional value.")
            for key in (P, C)
            for value in (0.5, 1234.9999999, 1.000002)
        ),
        *((P, v, f"{{}} of user=alice: expected a whole number from 1 to 2^63-1, got {v}") for v in (1e-9, nan)),
        *((C, v, f"{{}} of ip=10.0.0.9: expected a whole number from 0 to 2^31-1, got {v}") for v in (1e-9, nan)),
        *((key, v, f"{{}} of user=alice: expected a number above 0, got {v}") for key in (R, M) for v in (inf, nan)),
    ],
)
def test_values_that_are_no_quota_are_refused(key, value, message):
    entity = ADDRESS if key == C else ALICE
    assert alter([(entity, [put(key, value)])]) == [(INVALID, message.format(key), entity)]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (P, [1, 1235.0000001, 1.0000005, 2.0**63]),
        (C, [0, 1, 1.0000005, 2.0**31 - 1]),
        (R, [1e-9, 12.3, 1e300]),
        (M, [0.1, 2.0**70]),
    ],
)
def test_values_stay_as_they_are(key, values):
    entity = ADDRESS if key == C else ALICE
    for value in values:
        [alteration] = alterations([(entity, [put(key, value)])])
        assert list(alteration.limits.values()) == [value]


def test_an_entity_is_changed_whole_or_not_at_all_and_the_others_are():
    entries = [(ALICE, [put(P, 5), put(F, -1)]), (APP, [put(P, 6)]), ((("user", "b"),), [put("x", 1), put(P, 7)])]
    assert alterations(entries) == [Alteration(Entity(client_id="app"), {PRODUCE: 6.0})]
    assert [code for code, _, _ in alter(entries)] == [INVALID, 0, INVALID]


def test_of_several_problems_the_first_is_in_the_response():
    [(_, message, _)] = alter([(ALICE, [put(P, 5), put("one", 1), put("two", 1), put(F, -1)])])
    assert message == "Invalid configuration key one"


@pytest.mark.parametrize(
    "operations", [[put(P, 5), put(P, 6)], [put(P, 5), drop(P)], [drop(P), drop(P)], [put("x", 5), put("x", 6)]]
)
def test_an_entity_with_the_same_key_twice_is_not_changed(operations):
    message = "Ignoring duplicate entity ClientQuotaEntity(entries={user=alice})"
    assert alter([(ALICE, operations)]) == [(INVALID, message, ALICE)]
    assert alterations([(ALICE, operations)]) == []


def test_of_a_repeated_entity_the_first_is_done_and_the_response_says_otherwise():
    turned = [(("user", "a"), ("client-id", None)), (("client-id", None), ("user", "a"))]
    entries = [(turned[0], [put(P, 1)]), (turned[1], [put(P, 2)]), (turned[0], [put(F, 3)])]
    assert alterations(entries) == [Alteration(Entity("a", D), {PRODUCE: 1.0})]
    message = "Ignoring duplicate entity ClientQuotaEntity(entries={client-id=null, user=a})"
    assert alter(entries) == [(INVALID, message, turned[1])]
    assert alter(entries, results=[SourceUnavailable("away")]) == [(INVALID, message, turned[1])]


def test_two_spellings_of_an_address_are_one_entity():
    entries = [((("ip", "::1"),), [put(C, 1)]), ((("ip", "0::1"),), [put(C, 2)])]
    assert alterations(entries) == [Alteration(Entity(ip="::1"), {CONNECTION: 1.0})]
    message = "Ignoring duplicate entity ClientQuotaEntity(entries={ip=0::1})"
    assert alter(entries) == [(0, None, (("ip", "::1"),)), (INVALID, message, (("ip", "0::1"),))]


def test_validating_only_judges_and_changes_nothing(version):
    entries = [(ALICE, [put(P, 5)]), (APP, [put(P, -5)])]
    decision = alteration_request(entries, validate_only=True, version=version)
    assert isinstance(decision, Decision)
    assert altered(decision.response, version) == [
        (0, None, ALICE),
        (INVALID, f"Quota {P} must be greater than 0", APP),
    ]


def test_nothing_to_do_is_done_at_once(version):
    for entries in ([], [(ALICE, [])], [(ALICE, [drop("fast")])], [((), [])]):
        decision = alteration_request(entries, version=version)
        assert isinstance(decision, Decision)
        assert len(altered(decision.response, version)) == len(entries)


def test_an_alteration_that_could_not_be_written_has_an_error_which_may_be_retried_if_the_source_is_away():
    entries = [(ALICE, [put(P, 5)]), (APP, [put(P, 0)]), (ADDRESS, [put(C, 5)]), ((("user", "b"),), [put(P, 5)])]
    results = [AlterationRefused("not here"), SourceUnavailable("disk: full"), None]
    assert alter(entries, results=results) == [
        (44, "not here", ALICE),
        (INVALID, f"Quota {P} must be greater than 0", APP),
        (7, "disk: full", ADDRESS),
        (0, None, (("user", "b"),)),
    ]


@pytest.mark.rule("rights")
def test_a_user_who_may_not_alter_gets_an_error_for_every_entry_of_the_request(version):
    twice = (("user", "a"), ("user", "b"))
    entries = [(ALICE, [put(P, 5)]), (ALICE, [put("x", nan)]), (twice, []), ((), [])]
    for who in ({"may_alter": False}, {"may_alter": False, "may_describe": False, "user": "alice"}):
        for validate_only in (False, True):
            response = alter(entries, validate_only, version, **who)
            assert response == [refused(ALICE), refused(ALICE), refused(twice), refused(())]


MANY = 12_000
LONG_REFUSALS = {
    "entities": ([(ALICE, [put(P, 5)])] * MANY, 33),
    "entities of nothing": ([((), ())] * MANY, 100),
    "parts of one": ([([("user", "a")] * MANY, [])], 0),
    "operations of one": ([(ALICE, [put(P, 5)] * MANY)], 1),
    "operations of the first": ([(ALICE, [put(P, 5)] * MANY), (APP, [])], 1),
}


@pytest.mark.parametrize(("entries", "named"), LONG_REFUSALS.values(), ids=LONG_REFUSALS.keys())
def test_a_refusal_costs_the_same_however_long_the_request_is(entries, named, version, monkeypatch):
    read = []
    for name in ("part", "operation", "end"):
        monkeypatch.setattr(_Body, name, counted(getattr(_Body, name), read))
    response = alter(entries, version=version, may_alter=False)
    assert len(read) <= 3 * 100
    assert response[:named] == [refused(tuple(parts)) for parts, _ in entries[:named]]
    others = (NOT_AUTHORISED, "Cluster authorization failed, also for all entities that are not listed.", ())
    assert response[named:] == ([others] if named < len(entries) else [])


def counted(method, calls):
    def call(self):
        calls.append(1)
        return method(self)

    return call


def test_a_user_who_may_not_describe_is_refused_by_the_first_of_many_components(version):
    components = [("client-id", EXACT, "a")] * MANY
    assert ask(components, version=version, may_describe=False) == (NOT_AUTHORISED, None, None)


def test_a_filter_of_many_components_is_refused_like_any_that_makes_no_sense(version):
    components = [("user", EXACT, "a"), ("client-id", ANY, None), ("ip", ANY, None), *[("user", EXACT, "b")] * MANY]
    code, message, entries = ask(components, version=version)
    assert (code, entries) == (INVALID, None)
    assert message == "Entity type user cannot appear more than once in the filter."


@pytest.mark.parametrize("many", ["entities", "operations"])
def test_an_administrator_may_alter_more_than_ten_thousand_at_once(many, version):
    if many == "entities":
        entries = [((("user", f"u{i}"),), [put(P, 5)]) for i in range(MANY)]
        assert alter(entries, version=version, results=[None] * MANY) == [(0, None, parts) for parts, _ in entries]
    else:
        [(code, message, _)] = alter([(ALICE, [put(f"k{i}", 1) for i in range(MANY)])], version=version)
        assert (code, message) == (INVALID, "Invalid configuration key k0")


# ------------------------------------------------------------------- bad bytes


@pytest.mark.parametrize("frame", [describe_request([("user", 0, "a")]), alter_request([(ALICE, [put(P, 1)])])])
def test_bytes_that_are_no_request_close_the_connection(frame):
    outcome = decided(frame[:-3], 1)
    assert outcome.close.reason is CloseReason.REQUEST_MALFORMED
    assert outcome.response is None


def test_requests_are_what_the_frames_of_the_tests_say():
    assert read_describe_request(describe_request([]), 1).head.client_id == "etl"
    assert read_alter_request(alter_request([]), 1).entries == ()
    assert (describe_request([])[5], alter_request([])[5]) == (DESCRIBE, ALTER)


# -------------------------------------------------------------- in small steps


def steps_of(frame, of_quotas=QUOTAS, version=1):
    """What is decided, and in how many steps."""
    ask = DecisionRequest(1, DecisionKind.QUOTA_API, Side.CLIENT, frame[5], version, frame)
    of_all = ConnectionFacts(ListenerFacts("main", None, None, None, lambda: of_quotas), 1, "u", True, True)
    decision = decide(ask, of_all, 0)
    if not isinstance(decision, SlowDecision):
        return decision, 1
    count, steps = 1, decision.steps
    try:
        while True:
            count += 1
            next(steps)
    except StopIteration as end:
        return end.value, count


def test_describing_very_many_is_done_in_steps():
    many = {Entity(f"u{i}"): {PRODUCE: Limit(1.0 + i, "file")} for i in range(5 * ITEMS_PER_STEP)}
    outcome, steps = steps_of(describe_request([], False, version=1, corr=70), many)
    assert steps >= 5
    code, _, entries = described(outcome.response, 1)
    assert (code, len(entries)) == (0, len(many))


def test_of_very_many_one_is_found_in_one_step():
    many = {Entity(f"u{i}"): {PRODUCE: Limit(1.0 + i, "file")} for i in range(5 * ITEMS_PER_STEP)}
    outcome, steps = steps_of(describe_request([("user", EXACT, "u7")], True, version=1, corr=70), many)
    assert steps == 1
    assert len(described(outcome.response, 1)[2]) == 1


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("user", ["alice", "nobody", "<default>", "shadow", ""])
def test_the_quotas_described_of_a_user_are_the_same_when_its_entities_are_known(user, strict):
    frame = describe_request([("user", EXACT, user)], strict, version=1, corr=70)
    ask = DecisionRequest(1, DecisionKind.QUOTA_API, Side.CLIENT, frame[5], 1, frame)
    scanning, knowing = facts(user=user), facts(user=user)
    knowing.listener.entities_of = lambda name: [entity for entity in QUOTAS if entity.user == name]
    assert decide(ask, knowing, 0) == decide(ask, scanning, 0)


def test_altering_very_many_is_done_in_steps():
    entries = [((("user", f"u{i}"),), [put(P, 5)]) for i in range(3 * ITEMS_PER_STEP)]
    decision, steps = steps_of(alter_request(entries, corr=71))
    assert isinstance(decision, QuotaAlteration)
    assert (len(decision.alterations), steps) == (len(entries), 7)
    results = decision.reply([None] * len(entries))
    assert sum(1 for _ in results) == 3


def test_one_entity_with_very_many_operations_is_read_in_steps():
    _, steps = steps_of(alter_request([(ALICE, [put(P, 5)] * 50 * ITEMS_PER_STEP)]))
    assert steps > 50


def test_a_long_request_that_ends_badly_closes_its_connection():
    entries = [((("user", f"u{i}"),), [put(P, 5)]) for i in range(2 * ITEMS_PER_STEP)]
    outcome, steps = steps_of(alter_request(entries, corr=71)[:-4])
    assert (outcome.close.reason, steps > 1) == (CloseReason.REQUEST_MALFORMED, True)


def test_a_request_without_the_right_to_it_is_noted(version):
    met = []
    one = facts(may_alter=False, may_describe=False, user="bob")
    one.note_denied = lambda *what: met.append(what)
    alter_frame = alter_request([(ALICE, [(P, 1.0, False)])], version=version, client_id=b"tool")
    describe_frame = describe_request([("user", EXACT, "alice")], version=version)
    for frame, client_id in ((alter_frame, b"tool"), (describe_frame, b"x")):
        ask = DecisionRequest(1, DecisionKind.QUOTA_API, Side.CLIENT, frame[5], version, frame, client_id)
        decide(ask, one, 0)
    assert met == [("AlterClientQuotas", "bob", b"tool"), ("DescribeClientQuotas", "bob", b"x")]
