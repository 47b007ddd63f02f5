"""The two tables of a relay: what is done with a request, and the states of a response; and how large its parts are.

`python tests/relay/test_states.py` writes the table of states into docs/reference/architecture.md.
"""

import ast
import re
import sys
from pathlib import Path

if not __package__:  # started as a script: what is imported below counts from the project's directory
    sys.path[0] = str(Path(__file__).resolve().parents[2])

import pytest

from kafka_throttle.protocol.api_key import API_VERSIONS, FETCH, METADATA, PRODUCE, SASL_AUTHENTICATE, SASL_HANDSHAKE
from kafka_throttle.protocol.primitives import int16, int32
from kafka_throttle.proxy.relay.plans import PLANS, SASL_TOKEN, UNKNOWN_API_VERSIONS, plan_key
from kafka_throttle.proxy.relay.relay_counters import RelayCounters
from kafka_throttle.proxy.relay.request_direction import Disposition, classify
from kafka_throttle.proxy.relay.response_direction import FOLLOWS, ResponseDirection, ResponseState
from kafka_throttle.proxy.relay.sasl_state import Login, SaslState
from kafka_throttle.proxy.relay.throttle_state import ASKING, FETCHING, NO_ROOM, THROTTLED, UNCONNECTED
from tests.relay.test_large_responses import HEADS, cut, listing, relayed
from tests.simulation.generate import world_of
from tests.simulation.world import run_world
from tests.support.places import ROOT

PAGE = ROOT / "docs" / "reference" / "architecture.md"
WORLDS_WITH_ALL_BUT_GATHERING = (16, 19, 44, 107)
MOST_ATTRIBUTES = 16
BEGIN, END = "<!-- response states -->\n", "<!-- end of response states -->"


def plan(api_key, version=0):
    return PLANS[plan_key(api_key, version)]


SASL = (plan(SASL_HANDSHAKE), plan(SASL_AUTHENTICATE), SASL_TOKEN)
ORDINARY = (plan(PRODUCE, 3), plan(FETCH, 4), plan(METADATA))
VERSIONS = plan(API_VERSIONS)
ALL = (*SASL, *ORDINARY, VERSIONS, UNKNOWN_API_VERSIONS)
REASONS = (THROTTLED, ASKING, FETCHING, NO_ROOM, THROTTLED | FETCHING)

ROWS = (
    # APIs, reasons to wait, whether a decision is here, logins: what is done
    (ALL, (UNCONNECTED, UNCONNECTED | THROTTLED), (False, True), Login, Disposition.CONNECT),
    ((*ORDINARY, VERSIONS, UNKNOWN_API_VERSIONS), REASONS, (False, True), Login, Disposition.WAIT),
    (ALL, (0,), (True,), Login, Disposition.CARRY_OUT),
    (SASL, REASONS, (True,), Login, Disposition.CARRY_OUT),
    (SASL, (0, *REASONS), (False,), Login, Disposition.AUTHENTICATE),
    ((*ORDINARY, VERSIONS, UNKNOWN_API_VERSIONS), (0,), (False,), (Login.MAY_BE_OVER,), Disposition.PROVE),
    (ORDINARY, (0,), (False,), (Login.UNPROVEN,), Disposition.REFUSE),
    ((UNKNOWN_API_VERSIONS,), (0,), (False,), (Login.NONE, Login.UNPROVEN), Disposition.RESPOND),
    ((VERSIONS,), (0,), (False,), (Login.UNPROVEN,), Disposition.UNCHARGED),
    ((*ORDINARY, VERSIONS), (0,), (False,), (Login.NONE,), Disposition.FORWARD),
)


def cases():
    for plans, reasons, decided, logins, disposition in ROWS:
        for one in plans:
            for reason in reasons:
                for is_decided in decided:
                    for login in logins:
                        yield (one, reason, is_decided, login), disposition


def test_what_is_done_with_a_request():
    wrong = [(case, found) for case, right in cases() if (found := classify(*case)) is not right]
    assert not wrong


def test_every_case_has_one_row():
    seen = [(one.name, one.api_version, *facts) for (one, *facts), _ in cases()]
    every = [
        (one.name, one.api_version, reason, is_decided, login)
        for one in ALL
        for reason in (0, *REASONS, UNCONNECTED, UNCONNECTED | THROTTLED)
        for is_decided in (False, True)
        for login in Login
    ]
    assert len(seen) == len(set(seen))
    assert set(seen) == set(every)


def test_what_passes_a_throttle_by_its_first_bytes_passes_it_by_its_plan_too():
    sasl = SaslState(RelayCounters(), authenticates=True)
    by_bytes = {key for key, plan in PLANS.items() if sasl.passes_throttle(int32(8) + int16(plan.api_key), 0)}
    by_plan = {
        key for key, plan in PLANS.items() if classify(plan, THROTTLED, False, Login.UNPROVEN) is not Disposition.WAIT
    }
    assert by_bytes == by_plan


# -------------------------------------------------------------------------- states


def described():
    """What the enumeration says about each state."""
    tree = ast.parse((ROOT / "proxy" / "relay" / "response_direction.py").read_text())
    [state] = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == ResponseState.__name__)
    text = " ".join((ast.get_docstring(state) or "").split())
    return dict(re.findall(r"- (\w+): (.+?)(?= - [A-Z]+: |$)", text))


def states_table():
    lines = ["| state | what happens to the response | next |", "|---|---|---|"]
    for state in ResponseState:
        following = ", ".join(f"`{one.name}`" for one in ResponseState if one in FOLLOWS[state])
        lines.append(f"| `{state.name}` | {described()[state.name]} | {following} |")
    return "\n".join(lines) + "\n"


def with_table(text):
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return before + BEGIN + states_table() + END + after


def test_the_page_has_the_table_of_the_code():
    text = PAGE.read_text()
    assert with_table(text) == text, "python tests/relay/test_states.py"


@pytest.mark.pure
def test_every_transition_of_the_table_happens_and_no_other(make_relay, monkeypatch):
    seen = set()
    become = ResponseDirection._become

    def noted(self, state):
        seen.add((self.state, state))
        become(self, state)

    monkeypatch.setattr(ResponseDirection, "_become", noted)
    for seed in WORLDS_WITH_ALL_BUT_GATHERING:
        assert not run_world(world_of(seed)).failure
    plan = HEADS["Metadata v9"]
    relayed(make_relay, plan, cut(listing(plan, 6_000, rest=b"the rest of it"), 60_001), throttled=False)
    assert seen == {(state, following) for state in ResponseState for following in FOLLOWS[state]}


# --------------------------------------------------------------------------- sizes


def attributes():
    """By class of the relay, how many attributes it has, its own and those that it inherits."""
    classes = {
        node.name: node
        for file in sorted((ROOT / "proxy" / "relay").glob("*.py"))
        for node in ast.parse(file.read_text()).body
        if isinstance(node, ast.ClassDef)
    }

    def own(node):
        for part in node.body:
            if isinstance(part, ast.Assign) and ast.unparse(part.targets[0]) == "__slots__":
                return len(ast.literal_eval(part.value))
        return sum(isinstance(part, ast.AnnAssign) for part in node.body)

    def all_of(node):
        return own(node) + sum(all_of(classes[base.id]) for base in node.bases if getattr(base, "id", "") in classes)

    return {name: all_of(node) for name, node in classes.items()}


@pytest.mark.parametrize(("name", "count"), attributes().items())
def test_no_class_has_too_many_attributes(name, count):
    assert count <= MOST_ATTRIBUTES


if __name__ == "__main__":
    PAGE.write_text(with_table(PAGE.read_text()))
