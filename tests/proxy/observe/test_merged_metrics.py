"""The metrics of several workers as those of one proxy."""

from prometheus_client import CollectorRegistry, generate_latest

from kafka_throttle.proxy.observe.merged_metrics import Family, MergedMetrics, exported
from kafka_throttle.proxy.observe.metrics import Metrics, RelayTotals


def relays(requests, connections=1):
    metrics = Metrics(CollectorRegistry())
    metrics.add_relays(
        lambda: [RelayTotals("main", "plain", 1, connections_open=connections, requests={"Produce": requests})]
    )
    metrics.event_loop_lag.set(requests / 1000)
    return metrics


def merged_of(**processes):
    merged = MergedMetrics()
    for name, metrics in processes.items():
        merged.take(name.removeprefix("w"), exported(metrics.registry))
    return merged


def value(merged, name, **labels):
    text = generate_latest(merged).decode()
    wanted = [f'{key}="{one}"' for key, one in labels.items()]
    found = [
        float(line.rsplit(" ", 1)[1])
        for line in text.splitlines()
        if line.startswith((f"{name}{{", f"{name} ")) and all(label in line for label in wanted)
    ]
    return found[0] if len(found) == 1 else found or None


def test_counters_and_gauges_are_added_up():
    merged = merged_of(w0=relays(10, 2), w1=relays(5, 1))
    assert value(merged, "kafka_throttle_requests_total", api="Produce") == 15
    assert value(merged, "kafka_throttle_connections", node_id="1") == 3


def test_the_lag_of_the_event_loop_is_that_of_each_worker():
    merged = merged_of(w0=relays(10), w1=relays(5))
    assert value(merged, "kafka_throttle_event_loop_lag_seconds", worker="0") == 0.01
    assert value(merged, "kafka_throttle_event_loop_lag_seconds", worker="1") == 0.005


def test_what_only_the_supervisor_knows_is_not_that_of_workers():
    supervisor = Metrics(CollectorRegistry())
    supervisor.config_reloads.labels("applied").inc(2)
    worker = relays(1)
    worker.config_reloads.labels("applied").inc(7)
    merged = merged_of(w=supervisor, w0=worker)
    assert value(merged, "kafka_throttle_config_reloads_total", result="applied") == 2


def test_a_counter_does_not_fall_when_a_worker_ends():
    merged = merged_of(w0=relays(10, 2), w1=relays(5, 1))
    merged.end("0")
    assert value(merged, "kafka_throttle_requests_total", api="Produce") == 15
    assert value(merged, "kafka_throttle_connections", node_id="1") == 1, "its connections have ended"
    merged.take("0", exported(relays(3).registry))
    assert value(merged, "kafka_throttle_requests_total", api="Produce") == 18
    merged.end("0")
    merged.end("1")
    assert value(merged, "kafka_throttle_connections", node_id="1") is None


def test_of_the_same_thing_at_each_process_the_least_or_the_highest_counts():
    up, nodes = "kafka_throttle_cluster_up", "kafka_throttle_cluster_nodes"
    merged = MergedMetrics()
    for worker, (is_up, count) in {"0": (1.0, 3.0), "1": (0.0, 2.0)}.items():
        families = [Family(name, "", "gauge", {(name, ()): number}) for name, number in ((up, is_up), (nodes, count))]
        merged.take(worker, families)
    assert (value(merged, up), value(merged, nodes)) == (0, 3)


def test_the_buckets_of_a_histogram_are_added_up_and_stay_in_order():
    merged = MergedMetrics()
    for worker in ("0", "1"):
        samples = {
            ("lag_bucket", (("le", bound),)): count for bound, count in (("0.1", 1.0), ("10.0", 2.0), ("+Inf", 4.0))
        }
        merged.take(worker, [Family("lag", "", "histogram", samples)])
    [family] = merged.collect()
    assert [(sample.labels["le"], sample.value) for sample in family.samples] == [("0.1", 2), ("10.0", 4), ("+Inf", 8)]
