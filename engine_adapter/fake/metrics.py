"""The `vllm:` metrics of a fake engine, with vLLM's names, labels and buckets.

Acceptance rate: `rate(vllm:spec_decode_num_accepted_tokens_total[5m])
/ rate(vllm:spec_decode_num_draft_tokens_total[5m])`.
"""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from engine_adapter.fake.sequence import FakeSequence
from engine_adapter.registries.metric_families import family
from engine_adapter.seam.counts import ProposerCounts
from engine_adapter.seam.types import NONE

_LABELS = ("model_name", "engine")
_SHORT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10)
_TOKEN_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 10)
_LONG_S = (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960)
_REASONS = ("stop", "length", "abort", "error")


class FakeMetrics:
    """One engine's series in one registry."""

    def __init__(
        self, registry: CollectorRegistry, model_name: str, max_draft: int, engine: int = 0
    ) -> None:
        """Registers every name; positions are in [0, max_draft). `engine` is the label's value."""
        self._registry = registry
        self._values = (model_name, str(engine))
        self._running = self._gauge("num_requests_running", "Requests in the batch.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait.")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "KV usage; 1 is 100 percent.")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens read.")
        self._generation = self._counter("generation_tokens", "Tokens generated.")
        self._queries = self._counter("prefix_cache_queries", "Prompt tokens looked up.")
        self._hits = self._counter("prefix_cache_hits", "Prompt tokens found.")
        self._preemptions = self._counter("num_preemptions", "Preemptions; none ever.")
        self._drafts = self._counter("spec_decode_num_drafts", "Drafts verified.")
        self._drafted = self._counter("spec_decode_num_draft_tokens", "Draft tokens verified.")
        self._accepted = self._counter("spec_decode_num_accepted_tokens", "Draft tokens accepted.")
        per_position = self._labelled(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens accepted by position.",
            "position",
        )
        self._per_position = [per_position.labels(*self._values, str(i)) for i in range(max_draft)]
        success = self._labelled("request_success", "Requests that ended.", "finished_reason")
        self._success = {reason: success.labels(*self._values, reason) for reason in _REASONS}
        self._register_times()

    def _register_times(self) -> None:
        self._ttft = self._histogram("time_to_first_token_seconds", _SHORT_S)
        self._itl = self._histogram("inter_token_latency_seconds", _TOKEN_S)
        self._tpot = self._histogram("request_time_per_output_token_seconds", _TOKEN_S)
        self._e2e = self._histogram("e2e_request_latency_seconds", _LONG_S)
        self._queue = self._histogram("request_queue_time_seconds", _LONG_S)
        self._inference = self._histogram("request_inference_time_seconds", _LONG_S)
        self._prefill = self._histogram("request_prefill_time_seconds", _LONG_S)
        self._decode = self._histogram("request_decode_time_seconds", _LONG_S)

    def set_load(self, running: int, waiting: int, kv_usage: float) -> None:
        """Sets the gauges of the engine's load."""
        self._running.set(running)
        self._waiting.set(waiting)
        self._kv_usage.set(kv_usage)

    def on_admission(self, sequence: FakeSequence) -> None:
        """Counts a prompt that was read."""
        size = len(sequence.request.prompt_token_ids)
        self._prompt.inc(size)
        self._queries.inc(size)
        self._hits.inc(sequence.num_cached_tokens)

    def on_tokens(self, emitted: int, interval_s: float, *, is_first: bool) -> None:
        """Counts a row's tokens; `interval_s` is the time since the last ones or the arrival."""
        self._generation.inc(emitted)
        (self._ttft if is_first else self._itl).observe(interval_s)

    def on_step(self, verified: Mapping[str, ProposerCounts]) -> None:
        """Counts a step's drafts."""
        for name, counts in verified.items():
            if name == NONE:
                continue
            self._drafts.inc(counts.drafts)
            self._drafted.inc(counts.drafted)
            self._accepted.inc(counts.accepted)
            for i, accepted in enumerate(counts.accepted_per_position):
                self._per_position[i].inc(accepted)

    def on_end(self, sequence: FakeSequence, reason: str, now_s: float) -> None:
        """Counts a request that ended; counts its times only if it has a finish reason."""
        self._success[reason].inc()
        if sequence.finish_reason is None:
            return
        times = sequence.times
        decode_s = times.last_token_s - times.first_token_s
        self._e2e.observe(now_s - times.arrived_s)
        self._queue.observe(times.admitted_s - times.arrived_s)
        self._inference.observe(times.last_token_s - times.admitted_s)
        self._prefill.observe(times.first_token_s - times.admitted_s)
        self._decode.observe(decode_s)
        if sequence.num_output_tokens > 1:
            self._tpot.observe(decode_s / (sequence.num_output_tokens - 1))

    def _gauge(self, name: str, text: str) -> Gauge:
        gauge: Gauge = family(self._registry, Gauge, f"vllm:{name}", text, _LABELS)
        return gauge.labels(*self._values)

    def _counter(self, name: str, text: str) -> Counter:
        counter: Counter = family(self._registry, Counter, f"vllm:{name}", text, _LABELS)
        return counter.labels(*self._values)

    def _labelled(self, name: str, text: str, label: str) -> Counter:
        labels = (*_LABELS, label)
        counter: Counter = family(self._registry, Counter, f"vllm:{name}", text, labels)
        return counter

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        text = f"Histogram of {name.replace('_', ' ')}."
        histogram: Histogram = family(
            self._registry, Histogram, f"vllm:{name}", text, _LABELS, buckets=buckets
        )
        return histogram.labels(*self._values)
