"""What speculation did for a request, as the response tells it. The arithmetic, and nothing else.

Field names are vLLM's, with Specgate's `mean_tokens_per_step`, `proposer` and `by_proposer`.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise, zip_longest
from typing import Any

from engine_adapter.counts import ProposerCounts, SpecStats


def total(parts: Iterable[SpecStats]) -> SpecStats:
    """The sum of several sequences' statistics."""
    steps = tokens = 0
    by_proposer: dict[str, ProposerCounts] = {}
    for part in parts:
        steps += part.decode_steps
        tokens += part.decode_tokens
        for name, counts in part.by_proposer.items():
            by_proposer[name] = _plus(by_proposer.get(name, ProposerCounts()), counts)
    return SpecStats(steps, tokens, by_proposer)


def speculative_decoding(stats: SpecStats, proposer: str, k: int) -> dict[str, Any]:
    """The object `speculative_decoding` of a response or of one of its choices.

    `proposer` and `k` are the choice at admission. Where nothing was decoded or drafted, the
    means are 1.0, one token a step, and the rate is 0.0.
    """
    sums = _sum(stats.by_proposer.values())
    return {
        "mean_acceptance_length": 1 + _ratio(sums.accepted, sums.drafts, 0.0),
        "mean_tokens_per_step": _ratio(stats.decode_tokens, stats.decode_steps, 1.0),
        "draft_acceptance_rate": _ratio(sums.accepted, sums.drafted, 0.0),
        "acceptance_histogram": acceptance_histogram(sums, k),
        "num_spec_steps": sums.drafts,
        "num_draft_tokens": sums.drafted,
        "num_accepted_draft_tokens": sums.accepted,
        "num_spec_tokens": k,
        "proposer": proposer,
        "by_proposer": {
            name: {"drafts": c.drafts, "drafted": c.drafted, "accepted": c.accepted}
            for name, c in stats.by_proposer.items()
        },
    }


def acceptance_histogram(counts: ProposerCounts, k: int) -> list[int]:
    """Entry j counts the steps that accepted exactly j drafts; it has k + 1 entries at least.

    Steps that kept position j - 1 but not position j kept j drafts: the differences of
    `drafts, accepted_per_position..., 0`.
    """
    at_least = [counts.drafts, *counts.accepted_per_position]
    at_least += [0] * (k + 2 - len(at_least))
    if at_least[-1]:
        at_least.append(0)
    return [here - next_ for here, next_ in pairwise(at_least)]


def _sum(parts: Iterable[ProposerCounts]) -> ProposerCounts:
    result = ProposerCounts()
    for part in parts:
        result = _plus(result, part)
    return result


def _plus(a: ProposerCounts, b: ProposerCounts) -> ProposerCounts:
    return ProposerCounts(
        drafts=a.drafts + b.drafts,
        drafted=a.drafted + b.drafted,
        accepted=a.accepted + b.accepted,
        accepted_per_position=_plus_each(a.accepted_per_position, b.accepted_per_position),
        emitted=a.emitted + b.emitted,
    )


def _plus_each(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    return tuple(x + y for x, y in zip_longest(a, b, fillvalue=0))


def _ratio(numerator: int, denominator: int, otherwise: float) -> float:
    return numerator / denominator if denominator else otherwise
