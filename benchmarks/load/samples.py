"""What is measured of one request, and of one pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.http_stream import Reply
from benchmarks.load.arrivals import Arrivals
from benchmarks.load.sides import describe
from benchmarks.timeline import parse_stream


@dataclass(frozen=True, slots=True)
class Condition:
    """What the sides are compared under.

    Attributes:
        workload: its name.
        temperature: of all requests; `None` if the workload sets it.
        arrivals: when the requests come.
    """

    workload: str
    temperature: float | None
    arrivals: Arrivals

    @property
    def name(self) -> str:
        """As in the tables."""
        heat = "" if self.temperature is None else f", temperature {self.temperature:g}"
        return f"{self.workload}{heat}, {self.arrivals.name}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One request. Times are in milliseconds after it was sent, unless they say otherwise.

    Attributes:
        index: position in the pass; requests of one index are equal on all sides.
        prompt, label: of the prompt.
        temperature: of the request.
        sent_s: seconds after the start of the pass.
        late_ms: how much later it was sent than planned; 0 in a closed loop.
        error: `None`, an HTTP status, `timeout`, `connection`, `stream` (the server reported an
            error in the stream) or `empty` (the answer had no tokens).
        detail: the error in words.
        tokens: output tokens, also of a request that failed later.
        ttft_ms: time to the first token.
        tpot_ms: mean time per token after the first.
        e2e_ms: time to the last token.
        tokens_per_step: mean over decode steps, by the server's own count; without one, tokens per
            event.
        times_ms, emitted: for each event, its time and the tokens up to and including it.
        drafts: Specgate's counts for each proposer: drafts, drafted and accepted tokens.
    """

    index: int
    prompt: str
    label: str
    temperature: float
    sent_s: float
    late_ms: float
    error: str | None
    detail: str = ""
    tokens: int = 0
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    e2e_ms: float | None = None
    tokens_per_step: float | None = None
    times_ms: Sequence[float] = ()
    emitted: Sequence[int] = ()
    drafts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def error_text(self) -> str:
        """The error and its detail; a detail of an HTTP status begins with it."""
        error = self.error or ""
        return self.detail if self.detail.startswith(error) else f"{error}: {self.detail}"

    @property
    def gaps_ms(self) -> list[float]:
        """The times between events: the inter-token latencies."""
        return [b - a for a, b in zip(self.times_ms, self.times_ms[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class Pass:
    """One side, once under one condition.

    Attributes:
        seconds: from the start to the end of the last request.
        is_complete: it was not interrupted.
        samples: in order of their end.
    """

    condition: Condition
    repetition: int
    side: str
    seconds: float
    is_complete: bool
    samples: Sequence[Sample] = field(repr=False)


def measured(reply: Reply, sent_at_s: float, **fields: Any) -> Sample:
    """The sample of a request.

    Args:
        reply: the response.
        sent: when the request was sent, on `time.perf_counter`.
        known: the fields of the sample that do not depend on the response.
    """
    answer = parse_stream(reply.events)
    error, detail = reply.problem, reply.detail
    if error is None and reply.status != 200:
        error, detail = str(reply.status), describe(reply)
    elif answer.error is not None:
        error, detail = "stream", answer.error
    elif error is None and not answer.times_s.size:
        error, detail = "empty", "the answer had no tokens"
    elif error is None and not answer.is_finished:
        error, detail = "connection", "the stream ended without its last event"
    if not answer.times_s.size:
        return Sample(**fields, error=error, detail=detail)
    times = np.round(1e3 * (answer.times_s - sent_at_s), 3)
    tokens, first_tokens = int(answer.tokens[-1]), int(answer.tokens[0])
    ttft, e2e = float(times[0]), float(times[-1])
    figures = answer.speculation or {}
    by_event = (tokens - first_tokens) / (times.size - 1) if times.size > 1 else None
    return Sample(
        **fields,
        error=error,
        detail=detail,
        tokens=tokens,
        ttft_ms=ttft,
        tpot_ms=(e2e - ttft) / (tokens - 1) if tokens > 1 else None,
        e2e_ms=e2e,
        tokens_per_step=figures.get("mean_tokens_per_step", by_event) if tokens > 1 else None,
        times_ms=times.tolist(),
        emitted=answer.tokens.tolist(),
        drafts=figures.get("by_proposer", {}),
    )
