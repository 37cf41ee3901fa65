"""vLLM's Prometheus metrics in the gateway's registry, and the source of Specgate's step reports.

vLLM's logger unregisters every `vllm:` name of the global registry and adds its own there. This
subclass makes them in the registry that is passed in, so that each name exists once. Every engine
process has its own logger; the first logger makes the metrics, and the later ones continue them.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from engine_adapter.counts import StepReport
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.wire import KEY, decode_step


class VllmMetrics:
    """The `vllm:` metrics of one engine, across its processes.

    Args:
        registry: gets every `vllm:` metric.
        on_step: called with each step's report.
    """

    def __init__(self, registry: CollectorRegistry, on_step: Callable[[StepReport], None]) -> None:
        self._registry = registry
        self._on_step = on_step
        self._metrics: dict[str, Any] = {}

    @cached_property
    def stat_logger(self) -> type:
        """The stat logger class for vLLM."""
        return _stat_logger(self._metric, self._on_step)

    def clear_gauges(self) -> None:
        """Sets every gauge to 0: the process that they describe is dead."""
        for gauge in self._metrics.values():
            if isinstance(gauge, Gauge):
                for family in gauge.collect():
                    for sample in family.samples:
                        gauge.labels(**sample.labels).set(0)

    def _metric(self, kind: type, name: str, *args: Any, **kwargs: Any) -> Any:
        """The metric of that name, made on first use."""
        if name not in self._metrics:
            self._metrics[name] = kind(name, *args, registry=self._registry, **kwargs)
        return self._metrics[name]


def _stat_logger(metric: Callable[..., Any], on_step: Callable[[StepReport], None]) -> type:
    """A subclass of vLLM's Prometheus logger that gets its metrics from `metric`."""
    classes = {
        "_gauge_cls": staticmethod(partial(metric, Gauge)),
        "_counter_cls": staticmethod(partial(metric, Counter)),
        "_histogram_cls": staticmethod(partial(metric, Histogram)),
    }

    def with_metrics(base: type) -> type:
        return type(base.__name__, (base,), {k: v for k, v in classes.items() if hasattr(base, k)})

    class RegistryStatLogger(with_metrics(compat.PrometheusStatLogger)):  # type: ignore[misc]
        """vLLM's Prometheus logger, on the gateway's registry."""

        _spec_decoding_cls = with_metrics(compat.SpecDecodingProm)
        _kv_connector_cls = with_metrics(compat.KVConnectorProm)
        _ec_connector_cls = with_metrics(compat.ECConnectorProm)
        _perf_metrics_cls = with_metrics(compat.PerfMetricsProm)

        def record(self, scheduler_stats: Any, *args: Any, **kwargs: Any) -> None:
            """Takes Specgate's step report out of the statistics, then records as vLLM does."""
            stats = scheduler_stats and scheduler_stats.kv_connector_stats
            if stats and KEY in stats:
                scheduler_stats.kv_connector_stats = None
                on_step(decode_step(stats))
            super().record(scheduler_stats, *args, **kwargs)

    return RegistryStatLogger
