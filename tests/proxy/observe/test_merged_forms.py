"""The responses of several workers as that of one proxy."""

from kafka_throttle.proxy.observe.merged_forms import merged_caps, merged_costs, merged_explanation, merged_throttled


def cap(limit, waits):
    return {
        "virtual_cluster": "main",
        "listener": "plain",
        "direction": "ingress",
        "limit": limit,
        "read_bytes": 10,
        "waits": waits,
        "waited_ms": 5,
        "waiting": 1,
    }


def line(user="alice", rate=50.0, limit=100, left_ms=10, since="2026-01-01T00:00:02.000Z", **more):
    form = {
        "virtual_cluster": "main",
        "user": user,
        "client_id": "etl",
        "ip": "10.0.0.1",
        "node_id": 1,
        "quota_type": "produce",
        "unit": "bytes/s",
        "rule": None,
        "limit": limit,
        "share": 0.5,
        "rate": rate,
        "bucket": None,
        "left_ms": left_ms,
        "since": since,
        "throttles": 2,
        "throttled_ms": 7,
        "connections": 1,
    }
    return form | more


def throttled(*lines, total=None):
    total = len(lines) if total is None else total
    return {
        "sort": "left",
        "clients": total,
        "total": total,
        "more": total - len(lines),
        "throttled": list(lines),
        "quotas_unknown": [],
        "connections": 3,
        "entities": 2,
        "other_instances": False,
    }


def explained(*uses, notes=(), throttles=()):
    quota = {
        "quota": "producer_byte_rate",
        "unit": "bytes/s",
        "enforced": True,
        "rule": {"entity": {"user": "alice"}, "level": 3, "limit": 1000, "layer": "proxy.yaml"},
        "overridden": [],
        "measured_as": {"user": "alice", "client_id": ""},
        "shared_by": "",
        "notes": list(notes),
        "use": list(uses),
        "throttles": list(throttles),
    }
    return {"virtual_cluster": "main", "quotas": [quota], "node_throttles": [], "caps": [], "throttled": False}


def use(node_id, rate, limit, debt_ms=0):
    counts = {"throttles": 1, "throttled_ms": 10, "capped": 0, "shared_by": None}
    share = {"share": limit / 1000, "why": "so", "claim": 0.4, "demand": 0.5, "others_claim": 0.1, "others": []}
    return {"node_id": node_id, "limit": limit, "rate": rate, "debt_ms": debt_ms, "share": share, **counts}


def of_workers(pages):
    return merged_explanation({str(number): page for number, page in enumerate(pages)})


def test_parts_of_a_cap_are_the_whole_cap():
    page = merged_caps([{"virtual_cluster": "main", "caps": [cap(limit, 3)]} for limit in (334, 333, 333)])
    assert page["caps"] == [cap(1000, 9) | {"read_bytes": 30, "waited_ms": 15, "waiting": 3}]


def test_a_cost_is_that_of_the_worker_that_has_learned_most():
    def costs(base_us, samples, floor_us):
        cost = {"base_us": base_us, "per_kib_us": 0.1, "origin": "learned", "samples": samples}
        nodes = [{"node_id": 1, "floor_us": floor_us, "apis": {"Produce": cost}}]
        return {"virtual_cluster": "main", "nodes": nodes}

    [node] = merged_costs([costs(50.0, 10, 4.0), costs(40.0, 900, 5.0)])["nodes"]
    assert (node["apis"]["Produce"]["base_us"], node["floor_us"]) == (40.0, 4.0)


def test_a_client_that_is_throttled_at_two_workers_has_one_line_with_its_use_at_both():
    earlier = "2026-01-01T00:00:01.000Z"
    page = merged_throttled([throttled(line()), throttled(line(left_ms=90, since=earlier))], "left", 10)
    [merged] = page["throttled"]
    assert (merged["rate"], merged["limit"], merged["left_ms"], merged["since"]) == (100, 100, 90, earlier)
    assert merged["share"] == 1.0
    assert (merged["throttles"], merged["throttled_ms"], merged["connections"]) == (4, 14, 2)
    assert (page["clients"], page["total"], page["more"]) == (1, 1, 0)


def test_the_first_lines_of_all_workers_are_shown_and_the_others_counted():
    pages = [throttled(line("a", left_ms=5), line("b", left_ms=20), total=7), throttled(line("c", left_ms=10))]
    page = merged_throttled(pages, "left", 2)
    assert [one["user"] for one in page["throttled"]] == ["b", "c"]
    assert (page["total"], page["more"]) == (8, 6)


def test_use_of_a_quota_is_added_up_for_each_node():
    pages = [explained(use(1, 300, 500, 4), use(2, 10, 500)), explained(use(1, 200, 480, 9))]
    [quota] = of_workers(pages)["quotas"]
    assert [(one["node_id"], one["rate"], one["limit"], one["debt_ms"]) for one in quota["use"]] == [
        (1, 500, 980, 9),
        (2, 10, 500, 0),
    ]
    share = quota["use"][0]["share"]
    assert (share["share"], share["claim"], share["why"]) == (0.98, 0.8, "worker 0 50.0%: so; worker 1 48.0%: so")


def test_the_latest_throttles_are_those_of_all_workers():
    pages = [explained(throttles=[{"at": at} for at in many]) for many in (["3", "1"], ["4", "2"])]
    [quota] = of_workers(pages)["quotas"]
    assert [throttle["at"] for throttle in quota["throttles"]] == ["4", "3", "2", "1"]


def test_what_only_one_worker_notes_is_noted_with_its_name():
    pages = [explained(notes=["common", "open connections: 3"]), explained(notes=["common", "open connections: 4"])]
    [quota] = of_workers(pages)["quotas"]
    assert quota["notes"] == ["common", "worker 0: open connections: 3", "worker 1: open connections: 4"]
