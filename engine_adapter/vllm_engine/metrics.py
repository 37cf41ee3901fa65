"""vLLM's Prometheus metrics in the gateway's registry, and the step reports behind ours.

vLLM's logger unregisters every `vllm:` name of the global registry and adds its own there. This
subclass makes them in the registry that is passed in, so that each name exists once.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from engine_adapter.interface import StepReport
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.stats import KEY, decode_step


def stat_logger(
    registry: CollectorRegistry, on_step: Callable[[StepReport, Mapping[str, int]], None]
) -> type:
    """A vLLM stat logger class.

    Args:
        registry: gets every `vllm:` metric.
        on_step: called with each step's report and the tokens that each proposer drafted.
    """
    classes = {
        "_gauge_cls": staticmethod(partial(Gauge, registry=registry)),
        "_counter_cls": staticmethod(partial(Counter, registry=registry)),
        "_histogram_cls": staticmethod(partial(Histogram, registry=registry)),
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
                on_step(*decode_step(stats))
            super().record(scheduler_stats, *args, **kwargs)

    return RegistryStatLogger
