"""What stands over the operator's file: set, removed, unset, written down and read again."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_throttle.quotas.changes import Alteration, AlterationRefused, Limit
from kafka_throttle.quotas.entities import DEFAULT, Entity, InvalidQuota, QuotaKey, QuotaType, Scope
from kafka_throttle.quotas.limits import valid_limit
from kafka_throttle.quotas.sources.overlay import (
    Change,
    Changed,
    DamagedOverlay,
    Entry,
    Layers,
    ScopeChange,
    altered,
    format_overlay,
    parse_overlay,
    reverted,
)

ALICE, BOB = Entity("alice"), Entity("bob")
PRODUCE, FETCH = QuotaKey(QuotaType.PRODUCE), QuotaKey(QuotaType.FETCH)
REQUEST = QuotaKey(QuotaType.REQUEST)
FILE = {ALICE: Entry({PRODUCE: 10.0, FETCH: 20.0})}

names = st.one_of(st.none(), st.just(DEFAULT), st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
keys = st.builds(QuotaKey, st.sampled_from(QuotaType), st.booleans())
numbers = st.one_of(st.none(), st.floats(min_value=0), st.integers(0, 2**63).map(float))

TOO_DEEP = "maximum recursion" if sys.version_info < (3, 14) else "Stack overflow"


def edits(*layers):
    """By place, what the operator has edited in vain."""
    return {place: problem for entity in layers[2] for place, problem in Layers(*layers).edits_of(entity).items()}


@st.composite
def overlays(draw):
    """Any overlay that can be."""
    overlay = {}
    for user, client_id, ip, changes in draw(
        st.lists(st.tuples(names, names, names, st.dictionaries(keys, st.tuples(numbers, numbers))))
    ):
        try:
            entity = Entity(user, client_id, ip)
            for key, limits in changes.items():
                for limit in limits:
                    if limit is not None:
                        valid_limit(entity, key.quota_type, limit)
        except InvalidQuota:
            continue
        if changes:
            scope = draw(st.none() | st.builds(ScopeChange, st.sampled_from(Scope), st.sampled_from(Scope)))
            overlay[entity] = Changed({key: Change(*limits) for key, limits in changes.items()}, scope)
    return overlay


def layered(entries, overlay):
    return Layers(entries, "file", overlay, "state").changes_since({})


def after(overlay, entity, **limits):
    changes = {QuotaKey.parse(key): limit for key, limit in limits.items()}
    return altered(overlay, FILE, [Alteration(entity, changes)])


def test_a_limit_that_is_set_stands_over_the_file_key_by_key():
    assert layered(FILE, after({}, ALICE, producer_byte_rate=5)) == {
        ALICE: {PRODUCE: Limit(5.0, "state"), FETCH: Limit(20.0, "file")}
    }


def test_a_limit_that_is_set_to_what_the_file_says_no_longer_follows_the_file():
    overlay = after({}, ALICE, producer_byte_rate=10)
    assert layered({ALICE: Entry({PRODUCE: 99.0})}, overlay)[ALICE][PRODUCE] == Limit(10.0, "state")


def test_a_removal_hides_what_the_file_says_also_after_an_edit():
    overlay = after({}, ALICE, producer_byte_rate=None)
    assert layered(FILE, overlay) == {ALICE: {FETCH: Limit(20.0, "file")}}
    assert PRODUCE not in layered({ALICE: Entry({PRODUCE: 11.0, FETCH: 20.0})}, overlay)[ALICE]


def test_an_entity_all_of_whose_keys_are_removed_is_not_there():
    assert layered(FILE, after({}, ALICE, producer_byte_rate=None, consumer_byte_rate=None)) == {}


def test_a_removal_of_what_the_file_does_not_set_leaves_no_trace():
    assert after({}, BOB, producer_byte_rate=None) == {}
    assert after(after({}, BOB, producer_byte_rate=7), BOB, producer_byte_rate=None) == {}


def test_what_is_unset_follows_the_file_again():
    for overlay in (after({}, ALICE, producer_byte_rate=5), after({}, ALICE, producer_byte_rate=None)):
        assert reverted(overlay, FILE, ALICE, [PRODUCE, FETCH]) == {}
        assert reverted(overlay, FILE, ALICE, [FETCH]) == reverted(overlay, FILE, BOB, [PRODUCE]) == overlay


def test_nothing_that_was_given_is_changed():
    overlay = {ALICE: Changed({PRODUCE: Change(1.0, None)})}
    after(overlay, ALICE, producer_byte_rate=2, consumer_byte_rate=3)
    reverted(overlay, FILE, ALICE, [PRODUCE])
    layered(FILE, overlay)
    assert (overlay, FILE) == (
        {ALICE: Changed({PRODUCE: Change(1.0, None)})},
        {ALICE: Entry({PRODUCE: 10.0, FETCH: 20.0})},
    )


def test_an_edit_of_an_overlaid_key_is_reported_until_it_agrees_or_the_key_is_set_again():
    overlay = after({}, ALICE, producer_byte_rate=5)
    assert edits(FILE, "file", overlay, "state") == {}
    edited = {ALICE: Entry({PRODUCE: 11.0})}
    [(place, problem)] = edits(edited, "file", overlay, "state").items()
    assert place == "user=alice: producer_byte_rate"
    assert problem == ("11 in file now, and 5 in state, which stands over it until `kafka-throttle quotas unset`")
    assert "not set in file now" in edits({}, "file", overlay, "state")[place]
    assert edits({ALICE: Entry({PRODUCE: 5.0})}, "file", overlay, "state") == {}
    anew = altered(overlay, edited, [Alteration(ALICE, {PRODUCE: 5.0})])
    assert edits(edited, "file", anew, "state") == {}


def test_an_edit_of_a_removed_key_is_reported():
    overlay = after({}, ALICE, producer_byte_rate=None)
    [problem] = edits({ALICE: Entry({PRODUCE: 11.0})}, "file", overlay, "state").values()
    assert problem.startswith("11 in file now, and not set in state")
    assert edits({}, "file", overlay, "state") == {}


CLUSTER = Scope.CLUSTER


def scoped(overlay, entries, scope, **limits):
    changes = {QuotaKey.parse(key): limit for key, limit in limits.items()}
    return altered(overlay, entries, [Alteration(ALICE, changes, scope)])


def test_a_scope_is_that_of_all_quotas_of_the_entity_that_have_one_from_either_layer():
    mutations = QuotaKey(QuotaType.CONTROLLER_MUTATION)
    entries = {ALICE: Entry({PRODUCE: 10.0, mutations: 3.0}, CLUSTER)}
    overlay = scoped({}, entries, None, consumer_byte_rate=5)
    assert layered(entries, overlay) == {
        ALICE: {
            PRODUCE: Limit(10.0, "file", CLUSTER),
            FETCH: Limit(5.0, "state", CLUSTER),
            mutations: Limit(3.0, "file"),
        }
    }
    overlay = scoped({}, FILE, CLUSTER)
    assert layered(FILE, overlay) == {
        ALICE: {key: Limit(FILE[ALICE].limits[key], "file", CLUSTER) for key in (PRODUCE, FETCH)}
    }


def test_setting_a_limit_keeps_the_scope_and_removing_the_last_removes_it():
    overlay = scoped({}, {}, CLUSTER, producer_byte_rate=5, controller_mutation_rate=1)
    overlay = scoped(overlay, {}, None, producer_byte_rate=6)
    assert layered({}, overlay)[ALICE][PRODUCE] == Limit(6.0, "state", CLUSTER)
    assert parse_overlay(format_overlay(overlay)) == (overlay, {})
    for gone in (
        scoped(overlay, {}, None, producer_byte_rate=None),
        reverted(overlay, {}, ALICE, [PRODUCE]),
    ):
        assert layered({}, scoped(gone, {}, None, producer_byte_rate=7))[ALICE][PRODUCE] == Limit(7.0, "state")


def test_a_scope_that_is_unset_follows_the_file_again_and_an_edit_of_it_in_vain_is_reported():
    overlay = scoped({}, FILE, CLUSTER)
    assert reverted(overlay, FILE, ALICE, [], scope=True) == {}
    of_cluster = {ALICE: FILE[ALICE]._replace(scope=CLUSTER)}
    assert edits(FILE, "file", overlay, "state") == edits(of_cluster, "file", overlay, "state") == {}
    overlay = scoped({}, of_cluster, CLUSTER)
    [(place, problem)] = edits(FILE, "file", overlay, "state").items()
    assert (place, problem[:39]) == ("user=alice: scope", "node in file now, and cluster in state,")


def test_a_scope_needs_a_quota_that_has_one():
    with pytest.raises(AlterationRefused, match="scope of user=alice: expected producer_byte_rate or"):
        scoped({}, {}, CLUSTER, controller_mutation_rate=1)


@given(overlays())
def test_what_is_written_is_read_again(overlay):
    assert parse_overlay(format_overlay(overlay)) == (overlay, {})


def test_each_entity_has_a_line():
    overlay = {Entity(DEFAULT, "c"): Changed({PRODUCE: Change(1.5e6, None)})}
    lines = format_overlay(overlay).decode().splitlines()
    assert lines == [
        '{"version": 1, "overlay": [',
        ' {"entity": {"user": null, "client-id": "c"}, '
        '"limits": {"producer_byte_rate": {"limit": 1500000.0, "over": null}}}',
        "]}",
    ]


def damaged(overlay=(), **fields):
    return json.dumps({"version": 1, "overlay": list(overlay)} | fields).encode()


def entry(entity={"user": "alice"}, key="producer_byte_rate", limit=5, over=None):  # noqa: B006
    return {"entity": entity, "limits": {key: {"limit": limit, "over": over}}}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "expected JSON in UTF-8: Expecting value: line 1 column 1 (char 0)"),
        (b'{"version": 1, "overlay": [', "line 1 column 28"),
        (b'\xff{"version": 1}', "expected JSON in UTF-8: 'utf-8' codec can't decode byte 0xff"),
        (b"[" * 100_000, f"expected JSON in UTF-8: {TOO_DEEP}"),
        (b'{"version": 1, "version": 1, "overlay": []}', "a field twice"),
        (b"[]", "the file: expected an object with overlay and version, got []"),
        (damaged(version=2), "version: expected 1, got 2"),
        (damaged(other=1), "the file: expected an object with overlay and version, got {'version'"),
        (b'{"version": 1, "overlay": {}}', "overlay: expected a list"),
    ],
)
def test_damage_is_reported_with_its_place(content, problem):
    with pytest.raises(DamagedOverlay) as found:
        parse_overlay(content)
    assert problem in str(found.value)
    assert len(str(found.value)) < 400


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (damaged([entry(), 7]), "overlay[1]: an entry: expected an object with entity and limits, got 7"),
        (damaged([entry({})]), "overlay[0]: expected a user, a client-id or an ip, got nothing"),
        (damaged([entry({"usr": "a"})]), "overlay[0]: entity: expected user, client-id, ip, got 'usr'"),
        (damaged([entry({"user": 7})]), "overlay[0]: entity: expected text or null for each part, got 7"),
        (damaged([entry({"user": ""})]), "overlay[0]: expected a user or its default, got an empty name"),
        (damaged([entry({"user": "\ud800"})]), "overlay[0]: 'utf-8' codec can't encode character"),
        (damaged([entry({"user": "a", "ip": "::1"})]), "overlay[0]: expected an ip by itself"),
        (damaged([entry(), entry()]), "overlay[1]: user=alice: a second time"),
        (damaged([entry(key="fast")]), "overlay[0]: unknown quota 'fast'"),
        (damaged([entry(limit=True)]), "overlay[0]: producer_byte_rate: expected a number or null, got True"),
        (damaged([entry(limit="5")]), "overlay[0]: producer_byte_rate: expected a number or null, got '5'"),
        (damaged([entry(limit=-5)]), "overlay[0]: producer_byte_rate of user=alice: expected a whole number from 1"),
        (damaged([entry(over=0.5)]), "overlay[0]: producer_byte_rate of user=alice: expected a whole number from 1"),
        (damaged([entry(limit=10**400)]), "overlay[0]: producer_byte_rate: a number beyond a double"),
        (damaged([entry()]).replace(b" 5,", b" NaN,"), "expected a whole number from 1 to 2^63-1, got nan"),
        (damaged([entry()]).replace(b" 5,", b" 1e999,"), "expected a whole number from 1 to 2^63-1, got inf"),
        (damaged([{"entity": {"user": "a"}, "limits": {"producer_byte_rate": 5}}]), "expected an object with limit"),
        (damaged([entry() | {"scope": "cluster"}]), "overlay[0]: scope: expected an object with over and scope"),
        (
            damaged([entry() | {"scope": {"scope": "all", "over": "node"}}]),
            "overlay[0]: scope: expected node or cluster, got 'all'",
        ),
        (damaged([{"entity": ["user"], "limits": {}}]), "overlay[0]: entity, limits: expected an object for each"),
    ],
)
def test_what_is_wrong_takes_no_other_change_away(content, problem):
    bob = b', {"entity": {"user": "bob"}, "limits": {"consumer_byte_rate": {"limit": 7, "over": null}}}]}'
    overlay, problems = parse_overlay(content.removesuffix(b"]}") + bob)
    assert overlay[BOB] == Changed({FETCH: Change(7.0, None)})
    [(place, why)] = problems.items()
    assert problem in f"{place}: {why}"
    assert len(why) < 400


def test_a_wrong_change_keeps_its_last_good_one():
    scope = ScopeChange(Scope.CLUSTER, Scope.NODE)
    good = {ALICE: Changed({PRODUCE: Change(5.0, None), FETCH: Change(6.0, None)}, scope)}
    limits = {"producer_byte_rate": {"limit": "x", "over": None}, "request_percentage": {"limit": 9, "over": None}}
    content = damaged([{"entity": {"user": "alice"}, "limits": limits, "scope": "all"}])
    overlay, problems = parse_overlay(content, good)
    assert overlay == {ALICE: Changed({PRODUCE: Change(5.0, None), REQUEST: Change(9.0, None)}, scope)}
    assert problems == {
        "overlay[0]": "producer_byte_rate: expected a number or null, got 'x'; scope: expected an object with over and "
        "scope, got 'all'"
    }


@given(st.binary(max_size=60))
def test_any_bytes_are_an_overlay_or_damaged(content):
    try:
        parse_overlay(content)
    except DamagedOverlay:
        return
