import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from kafka_throttle.protocol.api_key import FETCH, PRODUCE
from kafka_throttle.proxy.gate.gate_metrics import AddressUse, ClusterGate, InstanceGate, ListenerGate
from kafka_throttle.proxy.observe.added_latency import AddedLatency
from kafka_throttle.proxy.observe.metrics import (
    CapTotals,
    Metrics,
    RelayTotals,
    SensorTotals,
    ShadowTotals,
    UsageTotals,
)
from kafka_throttle.proxy.observe.top_entities import EntitySource, EntityUse
from kafka_throttle.proxy.relay.actions import CloseReason
from kafka_throttle.proxy.side import Side
from kafka_throttle.proxy.usage.shipper import Shipped
from kafka_throttle.proxy.usage.spool import SpoolTotals

NODE = {"virtual_cluster": "main", "listener": "plain", "node_id": "3"}
RULE = {"virtual_cluster": "main", "node_id": "3", "quota_type": "produce"}


def add_entities(metrics, every):
    metrics.add_entities(EntitySource(every))


@pytest.fixture
def metrics():
    return Metrics(CollectorRegistry(), top_entities=2)


FLEET = (
    *("members", "cut_off", "claimed_keys", "claimed_limits", "age_seconds", "moves", "raises", "lowers", "conflicts"),
    *("excesses", "refused_documents", "writes", "written_bytes", "read_bytes"),
)
HISTORY = ("bytes", "seconds", "seconds_dropped", "up", "write_failures")
USAGE = (
    "records",
    "bytes",
    "files",
    "files_deleted",
    "records_waiting",
    "records_dropped",
    "write_failures",
    "clients",
    "clients_capacity",
    "client_overflows",
    "shipped_lines",
    "shipped_bytes",
    "shipped_files",
    "files_lost_unshipped",
    "lines_unshippable",
    "shipping_failures",
    "unshipped_files",
    "unshipped_bytes",
)


def test_what_was_recorded_is_shown(metrics):
    stream = SpoolTotals("usage", written=7, written_bytes=700, files=2, dropped={"no_room": 3}, waiting=4)
    metrics.add_usage(lambda: UsageTotals([stream], 5, {"main": (10, 100, 1)}))
    value = metrics.registry.get_sample_value
    assert value("kafka_throttle_usage_records_total", {"stream": "usage"}) == 7
    assert value("kafka_throttle_usage_bytes_total", {"stream": "usage"}) == 700
    assert value("kafka_throttle_usage_records_dropped_total", {"stream": "usage", "reason": "no_room"}) == 3
    assert value("kafka_throttle_usage_records_waiting", {"stream": "usage"}) == 4
    assert value("kafka_throttle_usage_write_failures_total") == 5
    assert value("kafka_throttle_usage_clients", {"virtual_cluster": "main"}) == 10
    assert value("kafka_throttle_usage_client_overflows_total", {"virtual_cluster": "main"}) == 1


def test_what_was_shipped_is_shown_where_anything_is(metrics):
    value = metrics.registry.get_sample_value
    assert value("kafka_throttle_usage_shipped_lines_total") is None
    metrics.add_shipping(lambda: Shipped(7, 700, 2, 3, 4, 5, 6, 600))
    names = (
        "shipped_lines_total",
        "shipped_bytes_total",
        "shipped_files_total",
        "files_lost_unshipped_total",
        "lines_unshippable_total",
        "shipping_failures_total",
        "unshipped_files",
        "unshipped_bytes",
    )
    assert [value(f"kafka_throttle_usage_{name}") for name in names] == [7, 700, 2, 3, 4, 5, 6, 600]


def test_the_added_latency_is_a_histogram_for_each_api_and_direction(metrics):
    latency = AddedLatency("main", "plain", {})
    for took_us in (80, 100, 101, 900_000):
        latency.note(Side.CLIENT, {PRODUCE: 2}, took_us)
    latency.note(Side.NODE, {FETCH: 1}, 1_500)
    metrics.add_latency(lambda: [latency])
    labels = {"virtual_cluster": "main", "listener": "plain", "direction": "request", "api": "Produce"}
    value = metrics.registry.get_sample_value
    buckets = [
        value("kafka_throttle_added_latency_seconds_bucket", {**labels, "le": bound})
        for bound in ("0.0001", "0.0002", "0.5", "+Inf")
    ]
    assert buckets == [4, 6, 6, 8]
    assert value("kafka_throttle_added_latency_seconds_count", labels) == 8
    assert value("kafka_throttle_added_latency_seconds_sum", labels) == pytest.approx(1.800562)
    of_fetch = {**labels, "direction": "response", "api": "Fetch"}
    assert value("kafka_throttle_added_latency_seconds_count", of_fetch) == 1


def totals(**counts):
    return RelayTotals("main", "plain", 3, **counts)


def use(client_id, rate, user="", throttled_ms=0, node_id=3, limit=1000.0, shadow=False, throttled=False):
    return EntityUse(
        "main", node_id, "produce", user, client_id, rate, limit, throttled_ms, shadow, throttled=throttled
    )


def test_what_relays_counted_is_read_at_scrape_time(metrics):
    row = totals(requests={"Produce": 5, "Fetch": 2}, throttled_ms={"produce": 1500}, throttles={"produce": 3})
    metrics.add_relays(lambda: [row])
    value = metrics.registry.get_sample_value
    assert value("kafka_throttle_requests_total", {**NODE, "api": "Produce"}) == 5
    assert value("kafka_throttle_throttled_seconds_total", {**NODE, "quota_type": "produce"}) == 1.5
    assert value("kafka_throttle_throttles_total", {**NODE, "quota_type": "produce"}) == 3
    row.connections_open = 7
    row.connections_opened = 9
    row.request_bytes, row.response_bytes, row.responses = 100, 200, 6
    row.node_throttles = 2
    row.withheld_bytes = 8
    row.mutations_refused = 3
    row.authentications = {"success": 4, "failure": 5}
    assert value("kafka_throttle_authentications_total", {**NODE, "result": "failure"}) == 5
    row.exempt_us = 1_500_000.0
    assert value("kafka_throttle_exempt_request_seconds_total", NODE) == 1.5
    assert value("kafka_throttle_connections", NODE) == 7
    assert value("kafka_throttle_connections_opened_total", NODE) == 9
    assert value("kafka_throttle_request_bytes_total", NODE) == 100
    assert value("kafka_throttle_response_bytes_total", NODE) == 200
    assert value("kafka_throttle_responses_total", NODE) == 6
    assert value("kafka_throttle_node_throttles_total", NODE) == 2
    assert value("kafka_throttle_withheld_bytes_total", NODE) == 8
    assert value("kafka_throttle_mutations_refused_total", NODE) == 3


def test_rows_with_equal_labels_are_added_up(metrics):
    metrics.add_relays(lambda: [totals(request_bytes=1), totals(request_bytes=2)])
    metrics.add_relays(lambda: [totals(request_bytes=4)])
    assert metrics.registry.get_sample_value("kafka_throttle_request_bytes_total", NODE) == 7


def test_sensor_tables_are_shown_per_virtual_cluster(metrics):
    metrics.add_sensors(lambda: SensorTotals("main", used=3, capacity=10, overflows=1, capped=5))
    metrics.add_sensors(lambda: SensorTotals("other", used=4, capacity=20, overflows=0, capped=0))
    value = metrics.registry.get_sample_value
    assert value("kafka_throttle_sensors", {"virtual_cluster": "main"}) == 3
    assert value("kafka_throttle_sensors_capacity", {"virtual_cluster": "other"}) == 20
    assert value("kafka_throttle_sensor_overflows_total", {"virtual_cluster": "main"}) == 1
    assert value("kafka_throttle_capped_total", {"virtual_cluster": "main"}) == 5


def test_only_the_entities_that_use_most_have_series_of_their_own(metrics):
    rows = [use("a", 10.0), use("b", 300.0, throttled_ms=2500), use("c", 20.0), use("d", 5.0)]
    add_entities(metrics, lambda: rows)
    value = metrics.registry.get_sample_value
    b = {**RULE, "user": "", "client_id": "b"}
    assert value("kafka_throttle_entity_rate", b) == 300
    assert value("kafka_throttle_entity_limit", b) == 1000
    assert value("kafka_throttle_entity_throttle_seconds_total", b) == 2.5
    assert value("kafka_throttle_entity_rate", {**b, "client_id": "c"}) == 20
    assert value("kafka_throttle_entity_rate", {**b, "client_id": "a"}) is None
    assert value("kafka_throttle_other_entities", RULE) == 2
    assert value("kafka_throttle_other_entities_rate", RULE) == 15


def test_an_entity_that_is_throttled_has_series_however_little_it_uses(metrics):
    rows = [use(f"c{i}", 100.0 + i) for i in range(26)] + [use("victim", 1.0, throttled_ms=300, limit=1.0)]
    add_entities(metrics, lambda: rows)
    value = metrics.registry.get_sample_value
    victim = {**RULE, "user": "", "client_id": "victim"}
    assert value("kafka_throttle_entity_throttle_seconds_total", victim) == 0.3
    assert (value("kafka_throttle_entity_rate", victim), value("kafka_throttle_entity_limit", victim)) == (1, 1)
    assert value("kafka_throttle_other_entities", RULE) == 24
    assert value("kafka_throttle_other_entities_throttle_seconds", RULE) == 0


def test_an_entity_that_is_throttled_now_comes_before_those_that_were_for_longer(metrics):
    rows = [use(f"c{i}", 100.0, throttled_ms=1000 + i) for i in range(2000)]
    rows.insert(7, use("victim", 1.0, throttled_ms=3, throttled=True))
    add_entities(metrics, lambda: rows)
    value = metrics.registry.get_sample_value
    victim = {**RULE, "user": "", "client_id": "victim"}
    assert value("kafka_throttle_entity_throttle_seconds_total", victim) == 0.003
    assert value("kafka_throttle_throttled_entities", RULE) == 1


def test_what_has_no_series_is_in_the_sum_of_the_throttle_time_of_others(metrics):
    add_entities(metrics, lambda: [use(f"c{i}", 1.0, throttled_ms=1000 * i) for i in range(2000)])
    value = metrics.registry.get_sample_value
    assert value("kafka_throttle_other_entities", RULE) == 1998
    assert value("kafka_throttle_other_entities_throttle_seconds", RULE) == sum(range(1998))


def test_an_entity_without_a_quota_has_no_series_of_its_limit(metrics):
    add_entities(metrics, lambda: [use("a", 10.0, limit=None)])
    labels = {**RULE, "user": "", "client_id": "a"}
    assert metrics.registry.get_sample_value("kafka_throttle_entity_rate", labels) == 10
    assert metrics.registry.get_sample_value("kafka_throttle_entity_limit", labels) is None


def test_caps_have_metrics_of_their_bytes_and_waits(metrics):
    metrics.add_caps(lambda: [CapTotals("main", "", "egress", 1000, 5000, 7, 2500, 3)])
    value, labels = (
        metrics.registry.get_sample_value,
        {"virtual_cluster": "main", "listener": "", "direction": "egress"},
    )
    names = ("bytes_per_second", "waiting", "bytes_total", "waits_total", "waited_seconds_total")
    assert [value(f"kafka_throttle_cap_{name}", labels) for name in names] == [1000, 3, 5000, 7, 2.5]


def test_shadow_quotas_have_families_of_their_own(metrics):
    add_entities(metrics, lambda: [use("a", 10.0), use("a", 20.0, limit=5.0, throttled_ms=3000, shadow=True)])
    metrics.add_shadows(lambda: [ShadowTotals("main", 3, "produce", throttles=4, throttled_ms=9500)])
    metrics.add_sensors(lambda: SensorTotals("main", 1, 10, 0, 0, shadow_used=1, shadow_overflows=2))
    value = metrics.registry.get_sample_value
    a = {**RULE, "user": "", "client_id": "a"}
    assert (value("kafka_throttle_entity_rate", a), value("kafka_throttle_shadow_entity_rate", a)) == (10, 20)
    assert value("kafka_throttle_shadow_entity_limit", a) == 5
    assert value("kafka_throttle_shadow_entity_throttle_seconds_total", a) == 3
    assert value("kafka_throttle_other_entities", RULE) == value("kafka_throttle_shadow_other_entities", RULE) == 0
    assert value("kafka_throttle_shadow_throttles_total", RULE) == 4
    assert value("kafka_throttle_shadow_throttled_seconds_total", RULE) == 9.5
    assert value("kafka_throttle_throttles_total", {**NODE, "quota_type": "produce"}) is None
    assert value("kafka_throttle_shadow_sensors", {"virtual_cluster": "main"}) == 1
    assert value("kafka_throttle_shadow_sensor_overflows_total", {"virtual_cluster": "main"}) == 2


def test_token_buckets_are_shown_by_what_is_left_in_them(metrics):
    rows = [
        EntityUse("main", None, "controller_mutation", "u", f"c{i}", 10.0 * i, 4.0, 500, tokens=20.0 - 10 * i)
        for i in range(4)
    ]
    add_entities(metrics, lambda: rows)
    value = metrics.registry.get_sample_value
    rule = {"virtual_cluster": "main", "node_id": "all", "quota_type": "controller_mutation"}
    c3 = {**rule, "user": "u", "client_id": "c3"}
    assert value("kafka_throttle_entity_tokens", c3) == -10
    assert value("kafka_throttle_entity_limit", c3) == 4
    assert value("kafka_throttle_entity_throttle_seconds_total", c3) == 0.5
    assert value("kafka_throttle_entity_rate", c3) is None
    assert value("kafka_throttle_entity_tokens", {**c3, "client_id": "c1"}) is None
    assert value("kafka_throttle_other_entities", rule) == 2
    assert value("kafka_throttle_other_entities_rate", rule) is None


def test_the_bound_holds_for_each_node_and_can_be_moved(metrics):
    add_entities(metrics, lambda: [use(f"c{i}", float(i), node_id=i % 2) for i in range(100)])
    assert generate_latest(metrics.registry).count(b"kafka_throttle_entity_rate{") == 4
    metrics.top_entities = 0
    assert generate_latest(metrics.registry).count(b"kafka_throttle_entity_rate{") == 0
    total = metrics.registry.get_sample_value("kafka_throttle_other_entities_rate", {**RULE, "node_id": "0"})
    assert total == sum(range(0, 100, 2))


def test_hostile_names_break_no_scrape(metrics):
    rows = [use('"}\n\x00\ud800', 1.0), use("x" * 500 + "a", 9.0), use("x" * 500 + "b", 8.0)]
    metrics.top_entities = 10
    add_entities(metrics, lambda: rows)
    text = generate_latest(metrics.registry).decode()
    [family] = [f for f in text_string_to_metric_families(text) if f.name == "kafka_throttle_entity_rate"]
    assert [(sample.labels["client_id"], sample.value) for sample in family.samples] == [
        ("x" * 127 + "…", 9.0),
        (r'"}\n\x00\ud800', 1.0),
    ]
    assert metrics.registry.get_sample_value("kafka_throttle_other_entities", RULE) == 1


OF_THE_GATE = """
    client_sockets client_sockets_limit connection_accept_limit connection_accept_rate
    connection_accept_throttle_seconds
    connection_accept_throttles connections_limit held_connections held_connections_limit
    instance_connection_accept_limit instance_connection_accept_rate instance_connections instance_connections_limit
    ip_connection_accept_limit ip_connection_accept_rate ip_connection_accept_throttle_seconds
    ip_connection_accept_throttles ip_connections_refused ip_sensor_overflows ip_sensors ip_sensors_capacity other_ips
    other_ips_connection_accept_rate
""".split()  # noqa: SIM905


def test_every_metric_has_our_prefix_and_every_family_is_there_from_the_start(metrics):
    names = {family.name for family in metrics.registry.collect()}
    ours = {name for name in names if name.startswith("kafka_throttle_")}
    assert all(name.startswith(("process_", "python_gc_")) for name in names - ours)
    assert {
        "kafka_throttle_added_latency_seconds",
        "kafka_throttle_authentications",
        "kafka_throttle_build",
        *(f"kafka_throttle_{name}" for name in OF_THE_GATE),
        "kafka_throttle_capped",
        "kafka_throttle_cap_bytes",
        "kafka_throttle_cap_bytes_per_second",
        "kafka_throttle_background_failures",
        "kafka_throttle_cap_waited_seconds",
        "kafka_throttle_cap_waiting",
        "kafka_throttle_cap_waits",
        "kafka_throttle_certificate_expiry_timestamp_seconds",
        "kafka_throttle_certificate_renewal_due_timestamp_seconds",
        "kafka_throttle_certificate_reloads",
        "kafka_throttle_cluster_nodes",
        "kafka_throttle_cluster_up",
        "kafka_throttle_config_last_reload_success_timestamp_seconds",
        "kafka_throttle_config_last_reload_successful",
        "kafka_throttle_config_reloads",
        "kafka_throttle_connections",
        "kafka_throttle_connections_closed",
        "kafka_throttle_connections_muted",
        "kafka_throttle_connections_opened",
        "kafka_throttle_entity_limit",
        "kafka_throttle_entity_rate",
        "kafka_throttle_entity_throttle_seconds",
        "kafka_throttle_entity_tokens",
        "kafka_throttle_event_loop_lag_seconds",
        "kafka_throttle_http_refused",
        "kafka_throttle_log_lines_dropped",
        "kafka_throttle_metadata_refresh_failures",
        "kafka_throttle_exempt_request_seconds",
        "kafka_throttle_mutations_refused",
        "kafka_throttle_node_throttles",
        "kafka_throttle_other_entities",
        "kafka_throttle_other_entities_rate",
        "kafka_throttle_other_entities_throttle_seconds",
        "kafka_throttle_quota_problems",
        "kafka_throttle_quota_source_age_seconds",
        "kafka_throttle_quota_source_up",
        "kafka_throttle_quotas_known",
        "kafka_throttle_handover_failures",
        "kafka_throttle_ready",
        "kafka_throttle_sensors_taken_over",
        "kafka_throttle_request_bytes",
        "kafka_throttle_requests",
        "kafka_throttle_response_bytes",
        "kafka_throttle_responses",
        "kafka_throttle_sensor_overflows",
        "kafka_throttle_worker_restarts",
        "kafka_throttle_worker_timeouts",
        "kafka_throttle_workers",
        "kafka_throttle_sensors",
        "kafka_throttle_sensors_capacity",
        "kafka_throttle_shadow_entity_limit",
        "kafka_throttle_shadow_entity_rate",
        "kafka_throttle_shadow_entity_throttle_seconds",
        "kafka_throttle_shadow_entity_tokens",
        "kafka_throttle_shadow_other_entities",
        "kafka_throttle_shadow_other_entities_rate",
        "kafka_throttle_shadow_other_entities_throttle_seconds",
        "kafka_throttle_shadow_sensor_overflows",
        "kafka_throttle_shadow_sensors",
        "kafka_throttle_shadow_throttled_seconds",
        "kafka_throttle_shadow_throttles",
        "kafka_throttle_throttled_entities",
        "kafka_throttle_throttled_seconds",
        "kafka_throttle_throttles",
        "kafka_throttle_withheld_bytes",
        "kafka_throttle_upstream_connect_failures",
        "kafka_throttle_nodes_left_out",
        "kafka_throttle_upstream_connects_paced",
        *(f"kafka_throttle_fleet_{name}" for name in FLEET),
        *(f"kafka_throttle_history_{name}" for name in HISTORY),
        *(f"kafka_throttle_usage_{name}" for name in USAGE),
    } == ours


def test_rare_events_are_counted_by_their_labels(metrics):
    metrics.connections_closed("main", "plain")[CloseReason.CLIENT_CLOSED] = 1
    metrics.upstream_connect_failures.labels("main", "3").inc()
    value = metrics.registry.get_sample_value
    labels = {"virtual_cluster": "main", "listener": "plain", "reason": "client_closed"}
    assert value("kafka_throttle_connections_closed_total", labels) == 1
    failures = value("kafka_throttle_upstream_connect_failures_total", {"virtual_cluster": "main", "node_id": "3"})
    assert failures == 1
    assert value("kafka_throttle_config_reloads_total", {"result": "rejected"}) == 0


def test_two_processes_worth_of_metrics_do_not_meet():
    first, second = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())
    first.config_reloads.labels("applied").inc()
    assert second.registry.get_sample_value("kafka_throttle_config_reloads_total", {"result": "applied"}) == 0


def test_very_many_entities_are_read_in_steps_with_the_same_result():
    rows = [use(f"c{i}", rate=float(i * 7919 % 5003), throttled_ms=i % 3) for i in range(5000)]
    at_once, in_steps = (Metrics(CollectorRegistry(), top_entities=7) for _ in range(2))
    for metrics in (at_once, in_steps):
        add_entities(metrics, lambda: [*rows, None])
    assert sum(1 for _ in in_steps.gather()) == 10
    reported, expected = (
        {
            (sample.name, *sample.labels.values()): sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
            if "entit" in sample.name
        }
        for metrics in (in_steps, at_once)
    )
    assert reported == expected
    names = {labels[-1] for name, *labels in reported if name == "kafka_throttle_entity_rate"}
    by_use = sorted(rows, key=lambda row: -row.rate)[:7]
    by_throttle_time = sorted(rows, key=lambda row: (-row.throttled_ms, -row.rate))[:7]
    assert names == {row.client_id for row in by_use + by_throttle_time}


def test_the_gate_has_metrics_of_its_limits_and_of_the_addresses_that_come_fastest(metrics):
    metrics.top_entities = 2
    instance = InstanceGate(3.0, None, 7, 9, 1, 2_000, 8, 10_000)
    listeners = [ListenerGate("main", "plain", 2.5, 4.0, None, 3, 1_500, 2, 700)]
    uses = [AddressUse("main", f"10.0.0.{i}", float(i), 5.0, i) for i in range(1, 2_001)]
    metrics.add_gate(
        lambda: instance, lambda: listeners, lambda: [ClusterGate("main", 1, 2_000, 65_536, 4)], lambda: uses
    )

    def value(name, **labels):
        return metrics.registry.get_sample_value(f"kafka_throttle_{name}", labels)

    plain = {"virtual_cluster": "main", "listener": "plain"}
    assert (value("instance_connection_accept_rate"), value("instance_connection_accept_limit")) == (3.0, None)
    assert (value("instance_connections_limit"), value("held_connections_limit")) == (9, 2_000)
    assert (value("client_sockets"), value("client_sockets_limit")) == (8, 10_000)
    assert (value("connection_accept_rate", **plain), value("connection_accept_limit", **plain)) == (2.5, 4.0)
    assert value("connection_accept_throttle_seconds_total", **plain) == 1.5
    assert value("ip_connection_accept_throttle_seconds_total", **plain) == 0.7
    assert value("held_connections", virtual_cluster="main") == 1
    assert value("ip_sensor_overflows_total", virtual_cluster="main") == 4
    fastest = {"virtual_cluster": "main", "ip": "10.0.0.2000"}
    assert (value("ip_connection_accept_rate", **fastest), value("ip_connection_accept_limit", **fastest)) == (2_000, 5)
    assert value("ip_connection_accept_rate", virtual_cluster="main", ip="10.0.0.1998") is None
    assert value("other_ips", virtual_cluster="main") == 1_998
    assert value("other_ips_connection_accept_rate", virtual_cluster="main") == sum(range(1, 1_999))
