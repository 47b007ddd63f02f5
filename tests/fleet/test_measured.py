"""A run that was measured becomes a plan: the same clients, and the same things done at the same seconds."""

import json

from tests.fleet.__main__ import main
from tests.fleet.measured import plan_of
from tests.fleet.plan import GREEDY, Fault
from tests.live_fleet.scenarios import Event, LoadClient, Scenario

SCENARIO = Scenario(
    "one",
    "three instances, this and that",
    3,
    30,
    (
        Event(2, "open", (1, 3)),
        Event(3, "demand", client="slow"),
        Event(4, "kill", (2,)),
        Event(6, "start", (2,)),
        Event(7, "cut", (3,)),
        Event(9, "join", (3,)),
    ),
    (1,),
    (LoadClient("slow", "librdkafka", "produce", 100_000, 2), LoadClient("reader", "kafka-python", "fetch")),
)


def as_run(scenario):
    """As `tests.live_fleet` writes it, with clients that have got nothing."""
    kinds = {
        kind: {client.name: [0] * scenario.seconds for client in scenario.clients if client.kind == kind}
        for kind in scenario.kinds
    }
    return {**scenario.as_json(), "limit": 1_000_000, "sides": {"fleet": kinds}}


def test_clients_and_events_are_those_of_the_run():
    plan = plan_of(json.loads(json.dumps(as_run(SCENARIO))))
    assert (plan.instances, plan.seconds) == (3, 40)
    assert [entity.quota_type for entity in plan.entities] == ["producer_byte_rate", "consumer_byte_rate"]
    slow, reader = plan.loads
    assert (slow.entity, slow.instance, slow.rate, slow.is_balanced, slow.from_ms) == (0, 1, 0.1, False, 10_000)
    assert (reader.entity, reader.rate, reader.is_balanced) == (1, GREEDY, True)
    assert plan.faults == (
        Fault(0, "open", places=(0,)),
        Fault(12_000, "open", places=(0, 2)),
        Fault(13_000, "demand", load=0, rate=GREEDY),
        Fault(14_000, "kill", 1),
        Fault(16_000, "start", 1),
        Fault(17_000, "cut", 2, 10**9),
        Fault(19_000, "mend", 2),
    )


def test_both_are_printed_beside_each_other_with_the_difference(tmp_path, capsys):
    file = tmp_path / "runs.json"
    file.write_text(json.dumps({"format": 1, "scenarios": {"one": as_run(SCENARIO)}}))
    assert main(["--measured", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4
    assert lines[2].startswith("| three instances, this and that | produce | 0.000, ")
    assert lines[3].startswith("| three instances, this and that | fetch | 0.000, ")
