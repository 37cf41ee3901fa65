"""Gauges of several engines in one registry."""

from prometheus_client import CollectorRegistry, Gauge

from engine_adapter.vllm_engine.gateway.stat_logger import VllmMetrics


def test_a_dead_engine_clears_its_own_gauges() -> None:
    registry = CollectorRegistry()
    engines = [VllmMetrics(registry, lambda _: None, index) for index in range(2)]
    for index, metrics in enumerate(engines):
        running = metrics._metric(Gauge, "vllm:running", "text", labelnames=["engine"])
        running.labels(engine=str(index)).set(5 + index)
        metrics._metric(Gauge, "vllm:adapters", "text", labelnames=["name"]).labels("a").set(1)
    engines[0].clear_gauges()
    values = [registry.get_sample_value("vllm:running", {"engine": str(i)}) for i in range(2)]
    assert values == [0, 6]
    assert registry.get_sample_value("vllm:adapters", {"name": "a"}) == 0, "it names no engine"
