"""Makes metrics on one registry, so that a metric is one line where it is declared."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram


class MetricMaker:
    """Makes metrics on one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """A counter; `_total` is appended to its name."""
        return Counter(name, text, labels, registry=self._registry)

    def histogram(
        self, name: str, text: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        """A histogram with the upper limits `buckets`."""
        return Histogram(name, text, labels, buckets=buckets, registry=self._registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """A gauge."""
        return Gauge(name, text, labels, registry=self._registry)
