"""The metrics of the queue, of the engine's slots, and of requests that a limit ends.

Requests that a limit refused or ended, by reason (the error's code):
    sum by (reason) (rate(specgate_limited_requests_total[5m]))
The queue now, and how long requests wait in it:
    specgate_queued_requests
    specgate_queued_prompt_tokens
    histogram_quantile(0.99, sum by (le) (rate(specgate_queue_seconds_bucket[5m])))
The share of the engine's slots that requests hold:
    specgate_slots_in_use / specgate_slots
The share of the memory for compiled formats that is in use, and how many there are:
    specgate_compiled_grammar_bytes / specgate_compiled_grammar_max_bytes
    specgate_compiled_grammars
"""

from typing import Protocol

from engine_adapter.seam.counts import CompiledGrammars
from server.control.admission.limit_errors import LIMIT_CODES
from server.telemetry.metric_maker import MetricMaker

_BUCKETS = (
    0.001, 0.01, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
)  # fmt: skip


class WatchedSlots(Protocol):
    """The engine's slots."""

    total: int

    @property
    def in_use(self) -> int:
        """The slots that requests hold."""
        ...


class WatchedQueue(Protocol):
    """What the gauges read when they are scraped."""

    @property
    def slots(self) -> WatchedSlots:
        """The engine's slots."""
        ...

    @property
    def max_grammar_bytes(self) -> int:
        """The most bytes of compiled grammars of one engine."""
        ...

    @property
    def num_queued(self) -> int:
        """The requests of which no sequence has begun."""
        ...

    @property
    def queued_prompt_tokens(self) -> int:
        """The prompt tokens of these requests."""
        ...


class AdmissionMetrics:
    """The metrics of admission. Every series exists from the beginning."""

    def __init__(self, make: MetricMaker) -> None:
        self._queued = make.gauge(
            "specgate_queued_requests", "Requests of which no sequence has begun"
        )
        self._queued_tokens = make.gauge(
            "specgate_queued_prompt_tokens", "Prompt tokens of these requests"
        )
        self._slots = make.gauge("specgate_slots", "Slots of the engine")
        self._in_use = make.gauge("specgate_slots_in_use", "Slots that requests hold")
        self._seconds = make.histogram(
            "specgate_queue_seconds", "Time that a request waited for its first slot", _BUCKETS
        )
        self._limited = make.counter(
            "specgate_limited_requests", "Requests that a limit refused or ended", "reason"
        )
        self._grammars = make.gauge(
            "specgate_compiled_grammars", "Compiled formats that the engine has in memory"
        )
        self._grammar_bytes = make.gauge(
            "specgate_compiled_grammar_bytes", "Bytes that these formats take"
        )
        self._max_grammar_bytes = make.gauge(
            "specgate_compiled_grammar_max_bytes", "Most bytes that formats of one engine may take"
        )
        for codes in LIMIT_CODES.values():
            for code in codes:
                self._limited.labels(code)

    def watch(self, queue: WatchedQueue) -> None:
        """Makes the gauges show this queue and its slots, read at each scrape."""
        self._queued.set_function(lambda: queue.num_queued)
        self._queued_tokens.set_function(lambda: queue.queued_prompt_tokens)
        self._slots.set_function(lambda: queue.slots.total)
        self._in_use.set_function(lambda: queue.slots.in_use)

        self._max_grammar_bytes.set(queue.max_grammar_bytes)

    def show_grammars(self, grammars: CompiledGrammars) -> None:
        """Shows what the engine has compiled."""
        self._grammars.set(grammars.number)
        self._grammar_bytes.set(grammars.bytes)

    def count_limited(self, code: str) -> None:
        """Counts a request that a limit refused or ended."""
        self._limited.labels(code).inc()

    def observe_wait(self, seconds: float) -> None:
        """Records the time that a request waited for its first slot, or until it gave up."""
        self._seconds.observe(seconds)
