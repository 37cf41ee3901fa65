"""Every side compared with the base: ratios within repetitions, and within requests."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.estimate import Ratio, mean_ratio, paired_ratio
from benchmarks.load.figures import is_good
from benchmarks.load.samples import Condition, Pass, Sample

LATENCIES: Mapping[str, Callable[[Sample], float | None]] = {
    "ttft": lambda sample: sample.ttft_ms,
    "tpot": lambda sample: sample.tpot_ms,
    "e2e": lambda sample: sample.e2e_ms,
}


@dataclass(frozen=True, slots=True)
class Pairs:
    """A side over its base under one condition. Where latencies are concerned, below 1 is faster.

    Attributes:
        tokens_per_s: median over repetitions of the ratio of output tokens per second.
        good_per_s: the same of the goodput; `None` without objectives or if the base had none.
        ttft, tpot, e2e: ratio of the means, over the requests that ended without error on both
            sides; `None` if there were none.
        e2e_by_label: the last for each label.
    """

    condition: Condition
    side: str
    base: str
    tokens_per_s: Ratio | None
    good_per_s: Ratio | None
    ttft: Ratio | None
    tpot: Ratio | None
    e2e: Ratio | None
    e2e_by_label: Mapping[str, Ratio | None]


def pairs(passes: Sequence[Pass], base: Sequence[Pass], slo: Mapping[str, float]) -> Pairs:
    """Compares the passes of two sides under one condition.

    Interrupted passes, and repetitions that only one side has, are left out. `passes` must not be
    empty.
    """
    theirs = {each.repetition: each for each in base if each.is_complete}
    pass_pairs = [
        (each, theirs[each.repetition])
        for each in passes
        if each.is_complete and each.repetition in theirs
    ]
    labels = dict.fromkeys(s.label for each, _ in pass_pairs for s in each.samples)
    return Pairs(
        condition=passes[0].condition,
        side=passes[0].side,
        base=base[0].side if base else "",
        tokens_per_s=_by_repetition(pass_pairs, lambda s: s.tokens),
        good_per_s=_by_repetition(pass_pairs, lambda s: is_good(s, slo)) if slo else None,
        ttft=_by_request(pass_pairs, LATENCIES["ttft"]),
        tpot=_by_request(pass_pairs, LATENCIES["tpot"]),
        e2e=_by_request(pass_pairs, LATENCIES["e2e"]),
        e2e_by_label={
            label: _by_request(pass_pairs, LATENCIES["e2e"], label) for label in sorted(labels)
        },
    )


def overall(ratios: Sequence[Pairs]) -> float | None:
    """The geometric mean over conditions of the ratio of tokens per second."""
    values = [each.tokens_per_s.ratio for each in ratios if each.tokens_per_s is not None]
    if not values or min(values) <= 0:
        return None
    return math.exp(sum(map(math.log, values)) / len(values))


def _by_repetition(
    pass_pairs: Sequence[tuple[Pass, Pass]], amount: Callable[[Sample], float]
) -> Ratio | None:
    rates = [
        [sum(map(amount, each.samples)) / each.seconds for each in pair]
        for pair in pass_pairs
        if all(each.seconds for each in pair)
    ]
    if not rates or not all(base for _, base in rates):
        return None
    ratio = paired_ratio([rate for rate, _ in rates], [base for _, base in rates])
    return Ratio(ratio.median, ratio.low, ratio.high, ratio.count)


def _by_request(
    pass_pairs: Sequence[tuple[Pass, Pass]],
    latency: Callable[[Sample], float | None],
    label: str | None = None,
) -> Ratio | None:
    clusters = []
    for each, base in pass_pairs:
        of_base = {s.index: latency(s) for s in base.samples if s.error is None}
        cluster = [
            (value, other)
            for s in each.samples
            if s.error is None and label in (None, s.label)
            if (value := latency(s)) is not None
            if (other := of_base.get(s.index)) is not None
        ]
        if cluster:
            clusters.append(cluster)
    has_base = any(other for cluster in clusters for _, other in cluster)
    return mean_ratio(clusters) if has_base else None
