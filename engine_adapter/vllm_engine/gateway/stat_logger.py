"""vLLM's Prometheus metrics in the gateway's registry, and the step reports behind ours.

vLLM's logger unregisters every `vllm:` name of the global registry and adds its own there. This
subclass makes them in the registry that is passed in, so that each name exists once. Every engine
process has a logger of its own; the metrics are made by the first one and go on with the next.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from engine_adapter.counts import StepReport
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.wire import KEY, decode_step


class VllmMetrics:
    """The `vllm:` metrics of one engine, whatever process it runs in.

    Args:
        registry: gets every `vllm:` metric.
        on_step: called with each step's report.
    """

    def __init__(
        self,
        registry: CollectorRegistry,
        on_step: Callable[[StepReport], None],
    ) -> None:
        self._registry = registry
        self._on_step = on_step
        self._made: dict[str, Any] = {}
        self._stat_logger: type | None = None

    @property
    def stat_logger(self) -> type:
        """The stat logger class for vLLM."""
        if self._stat_logger is None:
            self._stat_logger = _stat_logger(self._make, self._on_step)
        return self._stat_logger

    def clear_gauges(self) -> None:
        """Sets every gauge to 0: what they tell of is gone with its process."""
        for gauge in self._made.values():
            if isinstance(gauge, Gauge):
                for family in gauge.collect():
                    for sample in family.samples:
                        gauge.labels(**sample.labels).set(0)

    def _make(self, kind: type, name: str, *args: Any, **kwargs: Any) -> Any:
        """The metric of that name, made on first use."""
        if name not in self._made:
            self._made[name] = kind(name, *args, registry=self._registry, **kwargs)
        return self._made[name]


def _stat_logger(make: Callable[..., Any], on_step: Callable[[StepReport], None]) -> type:
    """vLLM's Prometheus logger, with metrics from `make`."""
    classes = {
        "_gauge_cls": staticmethod(partial(make, Gauge)),
        "_counter_cls": staticmethod(partial(make, Counter)),
        "_histogram_cls": staticmethod(partial(make, Histogram)),
    }

    def ours(base: type) -> type:
        return type(base.__name__, (base,), {k: v for k, v in classes.items() if hasattr(base, k)})

    class RegistryStatLogger(ours(compat.PrometheusStatLogger)):  # type: ignore[misc]
        """vLLM's Prometheus logger, on the gateway's registry."""

        _spec_decoding_cls = ours(compat.SpecDecodingProm)
        _kv_connector_cls = ours(compat.KVConnectorProm)
        _ec_connector_cls = ours(compat.ECConnectorProm)
        _perf_metrics_cls = ours(compat.PerfMetricsProm)

        def record(self, scheduler_stats: Any, *args: Any, **kwargs: Any) -> None:
            """vLLM's, after taking out what is Specgate's."""
            stats = scheduler_stats and scheduler_stats.kv_connector_stats
            if stats and KEY in stats:
                scheduler_stats.kv_connector_stats = None
                on_step(decode_step(stats))
            super().record(scheduler_stats, *args, **kwargs)

    return RegistryStatLogger
