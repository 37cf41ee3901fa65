"""Figures of one side under one condition."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from benchmarks.load.samples import Condition, Pass, Sample

PERCENTILES = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Milliseconds: mean and percentiles, with linear interpolation."""

    mean: float
    p50: float
    p95: float
    p99: float
    count: int


def distribution(values: Sequence[float]) -> Distribution | None:
    """The distribution of values; `None` if there are none."""
    if not values:
        return None
    p50, p95, p99 = (float(p) for p in np.percentile(values, PERCENTILES))
    return Distribution(float(np.mean(values)), p50, p95, p99, len(values))


@dataclass(frozen=True, slots=True)
class Latencies:
    """The latencies of requests that did not fail; see `Sample`."""

    ttft: Distribution | None
    tpot: Distribution | None
    itl: Distribution | None
    e2e: Distribution | None


@dataclass(frozen=True, slots=True)
class LabelFigures:
    """The figures of the requests with one label."""

    requests: int
    latencies: Latencies
    tokens_per_step: float | None


@dataclass(frozen=True, slots=True)
class SideFigures:
    """One side under one condition, over all its passes.

    Attributes:
        requests: sent and ended, also with an error.
        errors: error -> number of requests.
        first_error: the first of them, in words; `None` without errors.
        seconds: sum over the passes.
        tokens: output tokens, those of failed requests too.
        tokens_per_s, requests_per_s: per second of the passes; only requests without error count.
        tokens_per_step: of the answers without error, all decode tokens over all decode steps.
        good_share: share of all requests that meet every objective; `None` without objectives.
        good_per_s: such requests per second: the goodput.
        late_ms: how late the requests of an open loop were sent; the client is then overloaded.
        drafts: proposer -> drafts, drafted and accepted tokens.
    """

    condition: Condition
    side: str
    passes: int
    requests: int
    errors: Mapping[str, int]
    first_error: str | None
    seconds: float
    tokens: int
    tokens_per_s: float
    requests_per_s: float
    latencies: Latencies
    tokens_per_step: float | None
    good_share: float | None
    good_per_s: float | None
    late_ms: Distribution | None
    drafts: Mapping[str, Mapping[str, int]]
    by_label: Mapping[str, LabelFigures] = field(repr=False)


def side_figures(passes: Sequence[Pass], slo: Mapping[str, float]) -> SideFigures:
    """The figures of passes of one side under one condition.

    Args:
        passes: at least one.
        slo: the objectives: a latency of `SLO_NAMES` -> milliseconds.
    """
    samples = [sample for each in passes for sample in each.samples]
    succeeded = [sample for sample in samples if sample.error is None]
    seconds = sum(each.seconds for each in passes)
    good = sum(is_good(sample, slo) for sample in samples) if slo else None
    labels = dict.fromkeys(sample.label for sample in samples)
    tokens = sum(sample.tokens for sample in samples)
    return SideFigures(
        condition=passes[0].condition,
        side=passes[0].side,
        passes=len(passes),
        requests=len(samples),
        errors=dict(Counter(sample.error for sample in samples if sample.error is not None)),
        first_error=next((s.error_text for s in samples if s.error is not None), None),
        seconds=seconds,
        tokens=tokens,
        tokens_per_s=tokens / seconds if seconds else 0.0,
        requests_per_s=len(succeeded) / seconds if seconds else 0.0,
        latencies=latencies(succeeded),
        tokens_per_step=tokens_per_step(succeeded),
        good_share=None if good is None else good / len(samples),
        good_per_s=None if good is None or not seconds else good / seconds,
        late_ms=distribution([sample.late_ms for sample in samples]),
        drafts=_drafts(samples),
        by_label={label: _of_label(samples, label) for label in labels},
    )


def is_good(sample: Sample, slo: Mapping[str, float]) -> bool:
    """Whether the request met every objective. A failed one did not; one without a TPOT, did."""
    if sample.error is not None:
        return False
    values = {"ttft": sample.ttft_ms, "tpot": sample.tpot_ms, "e2e": sample.e2e_ms}
    return all((values[name] or 0.0) <= limit for name, limit in slo.items())


def latencies(samples: Sequence[Sample]) -> Latencies:
    """Of requests without error."""
    return Latencies(
        ttft=distribution([s.ttft_ms for s in samples if s.ttft_ms is not None]),
        tpot=distribution([s.tpot_ms for s in samples if s.tpot_ms is not None]),
        itl=distribution([gap for s in samples for gap in s.gaps_ms]),
        e2e=distribution([s.e2e_ms for s in samples if s.e2e_ms is not None]),
    )


def tokens_per_step(samples: Sequence[Sample]) -> float | None:
    """All decode tokens over all decode steps; the first token belongs to the prefill."""
    lengths = [(s.tokens - 1, s.tokens_per_step) for s in samples if s.tokens_per_step]
    steps = sum(tokens / per_step for tokens, per_step in lengths)
    return sum(tokens for tokens, _ in lengths) / steps if steps else None


def _of_label(samples: Sequence[Sample], label: str) -> LabelFigures:
    here = [sample for sample in samples if sample.label == label]
    succeeded = [sample for sample in here if sample.error is None]
    return LabelFigures(len(here), latencies(succeeded), tokens_per_step(succeeded))


def _drafts(samples: Sequence[Sample]) -> dict[str, dict[str, int]]:
    total: dict[str, Counter[str]] = {}
    for sample in samples:
        for proposer, counts in sample.drafts.items():
            total.setdefault(proposer, Counter()).update(counts)
    return {proposer: dict(counts) for proposer, counts in total.items()}
