"""Samples and passes with made-up figures."""

from collections.abc import Sequence
from typing import Any

from benchmarks.load.arrivals import Arrivals, ClosedLoop
from benchmarks.load.samples import Condition, Pass, Sample


def condition(arrivals: Arrivals | None = None, workload: str = "rag") -> Condition:
    """A condition."""
    return Condition(workload, None, arrivals or ClosedLoop(2))


def sample(index: int, e2e_ms: float = 100.0, tokens: int = 11, **fields: Any) -> Sample:
    """An answer: the first token after 10 ms, then even steps of one token."""
    gap = (e2e_ms - 10.0) / max(tokens - 1, 1)
    known = {
        "prompt": f"p{index}",
        "label": "quote",
        "temperature": 0.0,
        "sent_s": 0.0,
        "late_ms": 0.0,
        "error": None,
        "tokens": tokens,
        "ttft_ms": 10.0,
        "tpot_ms": gap if tokens > 1 else None,
        "e2e_ms": e2e_ms,
        "tokens_per_step": 1.0,
        "times_ms": [10.0 + gap * i for i in range(tokens)],
        "emitted": list(range(1, tokens + 1)),
    }
    return Sample(index=index, **{**known, **fields})


def failed(index: int, error: str) -> Sample:
    """A request that failed before its first token."""
    return Sample(index, f"p{index}", "quote", 0.0, 0.0, 0.0, error, "why")


def made_pass(
    side: str,
    samples: Sequence[Sample],
    repetition: int = 0,
    seconds: float = 1.0,
    is_complete: bool = True,
    arrivals: Arrivals | None = None,
) -> Pass:
    """A pass."""
    return Pass(condition(arrivals), repetition, side, seconds, is_complete, samples)
