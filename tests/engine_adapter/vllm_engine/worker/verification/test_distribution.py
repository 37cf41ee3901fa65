"""Two verified tokens have the target's exact joint distribution under every rule.

The tests call the verifier directly: a vocabulary of four tokens, so 16 pairs. The expected
distribution is computed from the logits (`exact`). For each mistake that a verifier could make, a
control test makes it and must see another distribution.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification.rejection import SpeculativeSampling
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.support.exact import ALPHA, CONDITIONS, Sampling, p_value
from tests.engine_adapter.vllm_engine.support.verified_pairs import (
    RULES,
    V,
    World,
    expected,
    observed,
)

pytestmark = pytest.mark.needs_vllm

SAMPLES = 75_000
MANY = 300_000
FEW = 25_000
"""Enough to detect a mistake."""

BATCHES: dict[str, Sequence[str]] = {rule: [rule] for rule in RULES} | {"mixed": RULES}
each_batch = pytest.mark.parametrize("rules", proved_beyond(RULES, BATCHES))

QUICK = ("temperature 0.7", "min-p", "repetition penalty")
PAIRS = [(rules, condition) for rules in ("one-hot", "mixed") for condition in CONDITIONS]

ALLOWED = np.array([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1], [1, 0, 0, 1]], bool)
"""A grammar: the tokens that may follow each token."""


@pytest.fixture(autouse=True)
def same_draws() -> None:
    torch.manual_seed(7)


def worst(
    rules: Sequence[str], sampling: Sampling, samples: int = SAMPLES, world: World | None = None
) -> float:
    """The least p-value over the rules."""
    exact = expected(sampling, world.allowed if world else None)
    counts = observed(rules, sampling, samples, world)
    return min(p_value(counts[rule], exact) for rule in rules)


@pytest.mark.parametrize(
    ("rules", "condition"),
    proved_beyond([pair for pair in PAIRS if pair[0] != "mixed" or pair[1] in QUICK], PAIRS),
)
def test_two_verified_tokens_are_the_targets(rules: str, condition: str) -> None:
    assert worst(BATCHES[rules], CONDITIONS[condition]) > ALPHA


@pytest.mark.prove
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("rules", BATCHES)
def test_two_verified_tokens_are_the_targets_at_length(rules: str, condition: str) -> None:
    assert worst(BATCHES[rules], CONDITIONS[condition], MANY) > ALPHA


@each_batch
def test_a_grammar_that_truncates_drafts_changes_nothing(rules: str) -> None:
    assert worst(BATCHES[rules], Sampling(), world=World(allowed=ALLOWED)) > ALPHA


def test_steps_that_are_sampled_in_parts_have_the_same_distribution(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from engine_adapter.vllm_engine.worker.verification import rule_sampler

    monkeypatch.setattr(rule_sampler, "MAX_BYTES", 4 * V * 20_000)
    assert worst(BATCHES["mixed"], Sampling(temperature=0.7)) > ALPHA


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_row_may_end_by_its_draft_if_that_draft_is_verified(rule: str) -> None:
    assert worst([rule], Sampling(), world=World(drops=0)) > ALPHA


@pytest.mark.parametrize("ends", [(0,), (1, 3)], ids=str)
@each_batch
def test_a_row_may_end_before_a_draft_that_is_not_drawn(rules: str, ends: Sequence[int]) -> None:
    """As with a confidence gate: the drafts before decide whether there is another."""
    assert worst(BATCHES[rules], Sampling(), world=World(ends=ends)) > ALPHA


# -- controls: mistakes that must be detected --------------------------------------------------


@pytest.mark.parametrize("rule", ["token", "block"])
def test_control_q_is_not_the_distribution_of_the_drafts(rule: str) -> None:
    uniform = [torch.full((V,) * n, 1 / V) for n in (1, 2)]
    assert worst([rule], Sampling(), FEW, World(stated=uniform)) < ALPHA


def test_control_the_residual_contains_the_rejected_one_hot_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One-hot drafts, given to the token rule as samples of one-hot distributions."""
    one_hot = torch.eye(V)
    world = World(q=(one_hot[1], one_hot[[1, 2, 3, 0]]))
    assert worst(["token"], Sampling(), SAMPLES, world) > ALPHA
    monkeypatch.setattr(SpeculativeSampling, "_residual", staticmethod(lambda p, weight, q: p))
    assert worst(["token"], Sampling(), FEW, world) < ALPHA


@pytest.mark.parametrize("rule", RULES)
def test_control_each_row_has_its_neighbours_drafts(rule: str) -> None:
    assert worst([rule], Sampling(), FEW, World(shifts_rows=True)) < ALPHA


@pytest.mark.parametrize("condition", ["min-p", "logit_bias"])
@pytest.mark.parametrize("rule", RULES)
def test_control_options_are_skipped_after_the_first_draft(
    monkeypatch: pytest.MonkeyPatch, rule: str, condition: str
) -> None:
    apply = compat.V2Sampler.apply_sampling_params

    def skipping(sampler: Any, logits: torch.Tensor, *args: Any, **how: Any) -> torch.Tensor:
        places = args[5]
        limited = apply(sampler, logits, *args, **how)
        return torch.where(places[:, None] > 0, logits, limited)

    monkeypatch.setattr(compat.V2Sampler, "apply_sampling_params", skipping)
    assert worst([rule], CONDITIONS[condition], FEW) < ALPHA


@pytest.mark.parametrize("rule", RULES)
def test_control_a_penalty_does_not_count_the_drafts_before(
    monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    apply = compat.V2Sampler.apply_sampling_params

    def forgetting(sampler: Any, logits: torch.Tensor, *args: Any, **how: Any) -> torch.Tensor:
        return apply(sampler, logits, *args[:5], torch.zeros_like(args[5]), *args[6:], **how)

    sampling = Sampling(repetition_penalty=4.0)
    assert worst([rule], sampling, FEW) > ALPHA
    monkeypatch.setattr(compat.V2Sampler, "apply_sampling_params", forgetting)
    assert worst([rule], sampling, FEW) < ALPHA


@pytest.mark.parametrize("rule", ["token", "block"])
def test_control_a_row_ends_by_a_draft_that_is_not_verified(rule: str) -> None:
    unverified = World(drops=0, verifies_dropped=False)
    assert worst([rule], Sampling(), FEW, unverified) < ALPHA


@pytest.mark.parametrize("rule", ["token", "block"])
def test_control_a_draft_that_a_grammar_truncates_is_not_verified(rule: str) -> None:
    unverified = World(allowed=ALLOWED, verifies_dropped=False)
    assert worst([rule], Sampling(), FEW, unverified) < ALPHA
