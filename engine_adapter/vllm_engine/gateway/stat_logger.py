"""vLLM's Prometheus metrics in the gateway's registry, and the source of Specgate's step reports.

vLLM's logger unregisters every `vllm:` name of the global registry and adds its own there. This
subclass makes them in the registry that is passed in, so that each name exists once. Every engine
process has its own logger; the first logger makes the metrics, and the others continue them.
"""

from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from engine_adapter.registries.metric_families import family
from engine_adapter.seam.counts import StepReport
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.wire import KEY, decode_step


class VllmMetrics:
    """The `vllm:` metrics of one engine, across its processes.

    Args:
        registry: gets every `vllm:` metric.
        on_step: called with each step's report.
        index: the engine's, the value of the label `engine`.
    """

    def __init__(
        self, registry: CollectorRegistry, on_step: Callable[[StepReport], None], index: int = 0
    ) -> None:
        self._registry = registry
        self._on_step = on_step
        self._index = index
        self._gauges: dict[str, Gauge] = {}

    @cached_property
    def stat_logger(self) -> type:
        """The stat logger class for vLLM."""
        return _stat_logger(self._metric, self._on_step, self._index)

    def clear_gauges(self) -> None:
        """Sets every gauge of the engine to 0: the process that they describe is dead."""
        engine_label = str(self._index)
        for gauge in self._gauges.values():
            for metric in gauge.collect():
                for sample in metric.samples:
                    if sample.labels.get("engine", engine_label) == engine_label:
                        gauge.labels(**sample.labels).set(0)

    def _metric(self, kind: type, name: str, *args: Any, **kwargs: Any) -> Any:
        """The metric of that name, which all engines share."""
        metric = family(self._registry, kind, name, *args, **kwargs)
        if isinstance(metric, Gauge):
            self._gauges[name] = metric
        return metric


def _stat_logger(
    metric: Callable[..., Any], on_step: Callable[[StepReport], None], index: int
) -> type:
    """A subclass of vLLM's Prometheus logger that gets its metrics from `metric`.

    vLLM counts the engines of one client, and each engine here has a client: `index` is the
    engine's own.
    """
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

        def __init__(self, vllm_config: Any, engine_indexes: Any = None) -> None:
            super().__init__(vllm_config, [index])

        def record(
            self,
            scheduler_stats: Any,
            iteration_stats: Any,
            mm_cache_stats: Any = None,
            engine_idx: int = 0,
        ) -> None:
            """Takes Specgate's step report out of the statistics, then records as vLLM does."""
            stats = scheduler_stats and scheduler_stats.kv_connector_stats
            if stats and KEY in stats:
                scheduler_stats.kv_connector_stats = None
                on_step(decode_step(stats))
            super().record(scheduler_stats, iteration_stats, mm_cache_stats, index)

    return RegistryStatLogger
