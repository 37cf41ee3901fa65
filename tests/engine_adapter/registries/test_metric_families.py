"""Engines of one server share each metric; servers share none."""

from prometheus_client import CollectorRegistry, Counter

from engine_adapter.registries.metric_families import family


def test_a_name_exists_once_in_a_registry() -> None:
    registry, other = CollectorRegistry(), CollectorRegistry()
    first = family(registry, Counter, "a", "text", ["x"])
    assert family(registry, Counter, "a", "text", ["x"]) is first
    assert family(other, Counter, "a", "text", ["x"]) is not first
    first.labels("1").inc()
    assert registry.get_sample_value("a_total", {"x": "1"}) == 1
    assert other.get_sample_value("a_total", {"x": "1"}) is None
