"""HTTP requests under Specgate's names and under those of prometheus-fastapi-instrumentator."""

from prometheus_client import CollectorRegistry
from prometheus_fastapi_instrumentator.metrics import default as instrumentator_metrics

from server.telemetry.http_metrics import GENERATING, PROBES, UNMATCHED, HttpMetrics
from server.telemetry.metric_maker import MetricMaker

LEFT_OUT = {"http_request_size_bytes", "http_response_size_bytes"}
"""The library's metrics that no dashboard of vLLM's asks for."""


def shapes(registry: CollectorRegistry) -> dict[str, tuple[str, list[str], list[float]]]:
    """Family -> type, labels, upper limits of its buckets."""
    found = {}
    for collector in registry._collector_to_names:
        (family,) = collector.describe()  # type: ignore[attr-defined]
        labels = sorted(collector._labelnames)  # type: ignore[attr-defined]
        found[family.name] = (family.type, labels, list(getattr(collector, "_upper_bounds", [])))
    return found


def test_the_common_metrics_have_the_librarys_names_labels_and_buckets() -> None:
    ours, librarys = CollectorRegistry(), CollectorRegistry()
    HttpMetrics(MetricMaker(ours))
    assert instrumentator_metrics(registry=librarys) is not None
    wanted = {name: shape for name, shape in shapes(librarys).items() if name not in LEFT_OUT}
    common = {name: shape for name, shape in shapes(ours).items() if name.startswith("http_")}
    assert common == wanted
    assert len(common) == 3


def test_an_exchange_is_counted_in_both_families() -> None:
    registry = CollectorRegistry()
    metrics = HttpMetrics(MetricMaker(registry))
    metrics.observe("/v1/completions", "POST", 200, 0.3)
    metrics.observe("/v1/completions", "POST", 503, 0.01)
    metrics.observe(UNMATCHED, "GET", 404, 0.01)

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    route = {"route": "/v1/completions"}
    assert value("specgate_http_requests_total", **route, method="POST", status="200") == 1
    assert value("specgate_http_request_seconds_sum", **route) == 0.31
    handler = {"handler": "/v1/completions", "method": "POST"}
    assert value("http_requests_total", **handler, status="2xx") == 1
    assert value("http_requests_total", **handler, status="5xx") == 1
    assert value("http_requests_total", handler="none", method="GET", status="4xx") == 1
    assert value("http_request_duration_seconds_bucket", **handler, le="0.5") == 2
    assert value("http_request_duration_highr_seconds_count") == 3


def test_server_errors_of_generating_routes_are_counted_from_zero() -> None:
    registry = CollectorRegistry()
    HttpMetrics(MetricMaker(registry))
    for route in GENERATING:
        for status in ("500", "503"):
            labels = {"route": route, "method": "POST", "status": status}
            assert registry.get_sample_value("specgate_http_requests_total", labels) == 0
        common = {"handler": route, "method": "POST", "status": "5xx"}
        assert registry.get_sample_value("http_requests_total", common) == 0


def test_probes_are_not_counted_as_api_requests() -> None:
    registry = CollectorRegistry()
    metrics = HttpMetrics(MetricMaker(registry))
    for probe in PROBES:
        metrics.observe(probe, "GET", 200, 0.001)
    assert registry.get_sample_value("http_request_duration_highr_seconds_count") == 0
    labels = {"route": "/ready", "method": "GET", "status": "200"}
    assert registry.get_sample_value("specgate_http_requests_total", labels) == 1
