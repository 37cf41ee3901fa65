"""The figures of a response: OpenAI's `usage`, and the statistics of speculative decoding.

The names of the statistics are vLLM's, with Specgate's `mean_tokens_per_step`, `proposer` and
`by_proposer`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from engine_adapter.seam.counts import ProposerCounts, SpecStats
from server.http.headers import ACCEPTED_DRAFT_TOKENS, DRAFT_TOKENS
from server.openai.choices import ChoiceState
from server.openai.request import AdmittedRequest


def usage(request: AdmittedRequest, choices: Sequence[ChoiceState]) -> dict[str, Any]:
    """OpenAI's `usage`. Each prompt counts once, also with several choices.

    Its details have the drafted tokens and those of them that were accepted, because many clients
    drop `metrics`; with a prediction OpenAI's own counts of them, too; with a reasoning parser, how
    many tokens are reasoning.
    """
    completion = sum(choice.num_tokens for choice in choices)
    cached = num_cached_tokens(request, choices)
    figures: dict[str, Any] = {
        "prompt_tokens": request.num_prompt_tokens,
        "completion_tokens": completion,
        "total_tokens": request.num_prompt_tokens + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    stats = total_spec(choices)
    drafts = sum(stats.by_proposer.values(), ProposerCounts())
    details = {"num_draft_tokens": drafts.drafted, "num_accepted_draft_tokens": drafts.accepted}
    if (reasoning := request.prepared.shape.num_reasoning_tokens) is not None:
        details["reasoning_tokens"] = reasoning
    if request.prepared.answer.method.has_prediction:
        counts = stats.by_proposer.get(request.selection.name, ProposerCounts())
        details |= {
            "accepted_prediction_tokens": counts.accepted,
            "rejected_prediction_tokens": counts.drafted - counts.accepted,
        }
    figures["completion_tokens_details"] = details
    return figures


def draft_headers(choices: Sequence[ChoiceState]) -> dict[str, str]:
    """The drafted and the accepted tokens of a whole answer, as headers."""
    drafts = sum(total_spec(choices).by_proposer.values(), ProposerCounts())
    return {DRAFT_TOKENS: str(drafts.drafted), ACCEPTED_DRAFT_TOKENS: str(drafts.accepted)}


def num_cached_tokens(request: AdmittedRequest, choices: Sequence[ChoiceState]) -> int:
    """Prompt tokens that the prefix cache had. Each prompt counts once."""
    return sum(choice.num_cached_tokens for choice in choices[:: request.prepared.answer.n])


def total_spec(choices: Sequence[ChoiceState]) -> SpecStats:
    """The statistics of all choices together."""
    return sum((choice.spec for choice in choices), SpecStats())


def response_metrics(request: AdmittedRequest, choices: Sequence[ChoiceState]) -> dict[str, Any]:
    """The response's `metrics`: all choices together."""
    selection = request.selection
    figures = speculative_decoding(total_spec(choices), selection.name, selection.k)
    return {"speculative_decoding": figures}


def choice_statistics(request: AdmittedRequest, choice: ChoiceState) -> dict[str, Any]:
    """`choices[i].speculative_decoding`."""
    return speculative_decoding(choice.spec, request.selection.name, request.selection.k)


def speculative_decoding(stats: SpecStats, proposer: str, k: int) -> dict[str, Any]:
    """The object `speculative_decoding` of a response or of one of its choices.

    `proposer` and `k` are those selected at admission. If nothing was decoded or drafted, the
    means are 1.0 (one token per step) and the rate is 0.0.
    """
    sums = sum(stats.by_proposer.values(), ProposerCounts())
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
    """Entry j counts the steps that accepted exactly j drafts; it has at least k + 1 entries.

    Steps that accepted position j - 1 but not position j accepted j drafts: the differences of
    `drafts, accepted_per_position..., 0`.
    """
    at_least = [counts.drafts, *counts.accepted_per_position]
    at_least += [0] * (k + 2 - len(at_least))
    if at_least[-1]:
        at_least.append(0)
    return [here - next_ for here, next_ in pairwise(at_least)]


def _ratio(numerator: int, denominator: int, otherwise: float) -> float:
    return numerator / denominator if denominator else otherwise
