"""The metrics of HTTP requests: Specgate's own, and the names that other dashboards expect.

vLLM's server counts its requests with prometheus-fastapi-instrumentator, so vLLM's dashboards ask
for that library's metrics. They are made here with its names, labels and buckets. The library
itself would cost a second middleware and a second search for the route, and its label `method` has
any text that a client sends.

Share of HTTP requests that failed, by route:
    sum by (route) (rate(specgate_http_requests_total{status=~"5.."}[5m]))
      / sum by (route) (rate(specgate_http_requests_total[5m]))
Slow responses by route (a stream counts until its last byte):
    histogram_quantile(0.95, sum by (route, le) (rate(specgate_http_request_seconds_bucket[5m])))
The same for other dashboards, without probes:
    sum by (status) (rate(http_requests_total[5m]))
    sum by (handler) (rate(http_request_duration_seconds_sum[5m]))
      / sum by (handler) (rate(http_request_duration_seconds_count[5m]))
    histogram_quantile(0.95, sum by (le) (rate(http_request_duration_highr_seconds_bucket[5m])))
"""

from collections.abc import Sequence
from functools import cache

from prometheus_client import Counter, Histogram

from server.telemetry.metric_maker import MetricMaker

PROBES = frozenset({"/health", "/ping", "/ready", "/metrics"})
"""Routes that are polled every few seconds; they are logged at level debug."""

GENERATING = (
    *("/v1/chat/completions", "/v1/completions", "/v1/messages"),
    *("/v1/responses", "/v1/responses/compact", "/v1/chat/completions/batch"),
    *("/invocations", "/inference/v1/generate"),
)
"""Routes whose POSTs have the engine generate. Their server errors are counted from 0: Prometheus'
`increase` misses the first value of a series, so an alert would miss the first error."""

UNMATCHED = "unmatched"
"""The route of requests that match no route; a path as sent is never a label."""

_BUCKETS = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip

# The library's: many buckets without labels, and few for each handler.
_FINE_BUCKETS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0,
    7.5, 10.0, 30.0, 60.0,
)  # fmt: skip
_COARSE_BUCKETS = (0.1, 0.5, 1.0)


class HttpMetrics:
    """Counts HTTP exchanges under both families of names."""

    def __init__(self, make: MetricMaker) -> None:
        self._requests = make.counter(
            "specgate_http_requests", "HTTP requests", "route", "method", "status"
        )
        self._seconds = make.histogram(
            "specgate_http_request_seconds", "Time to the last byte", _BUCKETS, "route"
        )
        self._common_requests = make.counter(
            "http_requests", "API requests by class of status", "method", "status", "handler"
        )
        self._common_seconds = make.histogram(
            "http_request_duration_seconds",
            "Time to the last byte of an API request",
            _COARSE_BUCKETS,
            "method",
            "handler",
        )
        self._common_fine_seconds = make.histogram(
            "http_request_duration_highr_seconds",
            "Time to the last byte of an API request, in many buckets",
            _FINE_BUCKETS,
        )
        self._series = cache(self._find_series)
        for route in GENERATING:
            for status in ("500", "503"):
                self._requests.labels(route, "POST", status)
            self._common_requests.labels("POST", "5xx", route)

    def observe(self, route: str, method: str, status: int, seconds: float) -> None:
        """Counts an exchange.

        Args:
            route: the route's template or `UNMATCHED`, never the path as sent.
            method: one of HTTP's methods or a constant, never what the client sent.
            status: the status code of the response.
            seconds: from the request's first byte to the response's last.
        """
        requests, histograms = self._series(route, method, status)
        for counter in requests:
            counter.inc()
        for histogram in histograms:
            histogram.observe(seconds)

    def _find_series(
        self, route: str, method: str, status: int
    ) -> tuple[Sequence[Counter], Sequence[Histogram]]:
        """The counters and histograms of an exchange; finding them takes longer than counting."""
        requests = self._requests.labels(route, method, str(status))
        seconds = self._seconds.labels(route)
        # vLLM leaves its probes out, so that its panels of traffic show API requests only.
        if route in PROBES:
            return (requests,), (seconds,)
        handler = "none" if route == UNMATCHED else route
        common_requests = self._common_requests.labels(method, f"{status // 100}xx", handler)
        common_seconds = self._common_seconds.labels(method, handler)
        return (requests, common_requests), (seconds, common_seconds, self._common_fine_seconds)
