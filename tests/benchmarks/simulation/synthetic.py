"""Made-up traces: every token of every proposer is accepted with a chance that a label gives.

The costs are those of the demo's wide twin on two CPU cores: a step costs the same up to four
tokens, then more with each.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.simulation.costs import Costs, DraftCost, TargetCost
from benchmarks.simulation.trace import Trace, TracedRequest
from engine_adapter.policies.contract import ProposerTraits, RequestClass

STRETCH = 8
"""Mean positions in a row at which a lookup finds something, or nothing."""

NGRAM = ProposerTraits("ngram", 5, lookup=True)
SUFFIX = ProposerTraits("suffix", 8, lookup=True)
DRAFT = ProposerTraits("draft", 4, keeps_kv=True)
MEDUSA = ProposerTraits("medusa", 4)
EAGLE = ProposerTraits("eagle3", 4, keeps_kv=True)
PROPOSERS = (NGRAM, SUFFIX, DRAFT, MEDUSA, EAGLE)

TARGET = TargetCost(
    ((1, 0.033), (4, 0.033), (8, 0.037), (16, 0.048), (32, 0.072), (64, 0.118), (128, 0.21)),
    context_token_s=2e-7,
    prompt_token_s=0.0008,
)
DRAFTS = {
    "ngram": DraftCost(2e-5, 1e-5),
    "suffix": DraftCost(2e-5, 2e-5),
    "draft": DraftCost(2e-3, 2e-4, 2.2e-3, 1e-4, 3e-5),
    "medusa": DraftCost(1e-3, 1e-4, 5e-5),
    "eagle3": DraftCost(1.5e-3, 2e-4, 1.6e-3, 1e-4, 2.5e-5),
}
COSTS = Costs(TARGET, DRAFTS)


@dataclass(frozen=True, slots=True)
class Quality:
    """One proposer on one label.

    Attributes:
        found: the share of positions at which it has a draft.
        accepted: the chance of each drafted token, if all before it are accepted.
    """

    found: float
    accepted: float


QUALITIES: Mapping[str, Mapping[str, Quality]] = {
    "quote": {
        "ngram": Quality(0.9, 0.86),
        "suffix": Quality(0.9, 0.88),
        "draft": Quality(1.0, 0.45),
        "medusa": Quality(1.0, 0.35),
        "eagle3": Quality(1.0, 0.75),
    },
    "free": {
        "ngram": Quality(0.25, 0.35),
        "suffix": Quality(0.35, 0.4),
        "draft": Quality(1.0, 0.62),
        "medusa": Quality(1.0, 0.45),
        "eagle3": Quality(1.0, 0.72),
    },
}
"""About what docs/performance.md shows."""


def synthetic_trace(
    qualities: Mapping[str, Mapping[str, Quality]] = QUALITIES,
    proposers: Sequence[ProposerTraits] = PROPOSERS,
    costs: Costs = COSTS,
    requests: int = 40,
    output_tokens: int = 86,
    request_class: RequestClass = RequestClass.GREEDY,
    seed: int = 0,
) -> Trace:
    """A trace with `requests` requests of each label."""
    random = np.random.default_rng(seed)
    made = tuple(
        _request(random, label, quality, proposers, output_tokens, request_class)
        for label, quality in qualities.items()
        for _ in range(requests)
    )
    return Trace("synthetic", tuple(proposers), costs, made)


def _request(
    random: np.random.Generator,
    label: str,
    quality: Mapping[str, Quality],
    proposers: Sequence[ProposerTraits],
    length: int,
    request_class: RequestClass,
) -> TracedRequest:
    drafted = np.zeros((length, len(proposers)), np.int8)
    accepted = np.zeros_like(drafted)
    for j, traits in enumerate(proposers):
        own, k = quality[traits.name], traits.num_speculative_tokens
        hits = random.random(length + k) < own.accepted
        drafted[:, j] = np.where(_found(random, length, own.found), k, 0)
        # How many hits follow one another from each position on, at most k.
        ahead = np.lib.stride_tricks.sliding_window_view(hits, k)[:length]
        runs = np.logical_and.accumulate(ahead, axis=1).sum(axis=1)
        accepted[:, j] = np.minimum(runs, drafted[:, j])
    return TracedRequest(label, request_class, int(random.integers(80, 320)), drafted, accepted)


def _found(random: np.random.Generator, length: int, share: float) -> np.ndarray:
    """Stretches of positions with and without a draft; bool [length]."""
    found = np.zeros(length, np.bool_)
    now = bool(random.random() < share)
    for at in range(length):
        found[at] = now
        leave = (1 - share if now else share) * 2 / STRETCH
        if share in (0.0, 1.0) or random.random() < leave:
            now = not now if share not in (0.0, 1.0) else now
    return found
