"""The metrics of several replicas become one text that Prometheus reads."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric
from prometheus_client.parser import text_string_to_metric_families

from server.ray_serve.fleet_metrics import with_replicas


def metrics(value: float) -> list[Metric]:
    registry = CollectorRegistry()
    Gauge("running", "with {braces} in its help", registry=registry).set(value)
    Counter("vllm:tokens", "b", ["model"], registry=registry).labels('a "{b} c"').inc(value)
    Histogram("seconds", "c", buckets=(1, 2), registry=registry).observe(value)
    return list(registry.collect())


def test_every_series_has_its_replica_and_its_own_value() -> None:
    merged = with_replicas({"r1": metrics(1), "r2": metrics(2)}).decode()
    families = {family.name: family for family in text_string_to_metric_families(merged)}
    assert {name: family.type for name, family in families.items() if "created" not in name} == {
        "running": "gauge",
        "vllm:tokens": "counter",
        "seconds": "histogram",
    }
    for name, values in (
        ("running", (1, 2)),
        ("vllm:tokens_total", (1, 2)),
        ("seconds_sum", (1, 2)),
    ):
        samples = [s for family in families.values() for s in family.samples if s.name == name]
        assert [(s.labels["replica"], s.value) for s in samples] == [
            ("r1", values[0]),
            ("r2", values[1]),
        ]
    tokens = [s for s in families["vllm:tokens"].samples if s.name == "vllm:tokens_total"]
    assert {s.labels["model"] for s in tokens} == {'a "{b} c"'}


def test_a_metric_is_described_once_and_its_lines_stand_together() -> None:
    lines = with_replicas({"r1": metrics(1), "r2": metrics(2)}).decode().splitlines()
    heads = [line for line in lines if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    running = [i for i, line in enumerate(lines) if line.startswith("running")]
    assert running == [running[0], running[0] + 1]


def test_a_metric_that_one_replica_lacks_is_not_lost() -> None:
    merged = with_replicas({"r1": [], "r2": metrics(2)}).decode()
    assert 'running{replica="r2"} 2.0' in merged
