"""Two verified tokens have the target's exact joint distribution, under every rule; and no others.

Straight against the verifier: 16 cells of four tokens, the second depending on the first. The
expectation comes from the logits alone (`exact`). Each mistake that a verifier can make has a
control that must fail.
"""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification import logits_processors
from engine_adapter.vllm_engine.worker.verification.rejection import SpeculativeSampling
from tests.engine_adapter.vllm_engine.support import verified_pairs
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
"""Enough for what is wrong."""

BATCHES: dict[str, Sequence[str]] = {rule: [rule] for rule in RULES} | {"mixed": RULES}

ALLOWED = np.array([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 1], [1, 0, 0, 1]], bool)
"""A grammar: what may follow each token."""


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


@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("rules", ["one-hot", "mixed"])
def test_two_verified_tokens_are_the_targets(rules: str, condition: str) -> None:
    assert worst(BATCHES[rules], CONDITIONS[condition]) > ALPHA


@pytest.mark.prove
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("rules", BATCHES)
def test_two_verified_tokens_are_the_targets_at_length(rules: str, condition: str) -> None:
    assert worst(BATCHES[rules], CONDITIONS[condition], MANY) > ALPHA


@pytest.mark.parametrize("rules", BATCHES)
def test_a_grammar_that_cuts_drafts_changes_nothing(rules: str) -> None:
    assert worst(BATCHES[rules], Sampling(), world=World(allowed=ALLOWED)) > ALPHA


@pytest.mark.parametrize("rule", ["token", "block"])
def test_a_proposer_may_leave_a_row_by_its_draft_if_that_is_judged(rule: str) -> None:
    assert worst([rule], Sampling(), world=World(drops=0)) > ALPHA


def test_sampled_drafts_match_exactly_where_processed_logprobs_are_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from vllm.v1.sample.sampler import Sampler

    monkeypatch.setattr(verified_pairs, "_sampler", lambda: Sampler("processed_logprobs"))
    monkeypatch.setattr(SpeculativeSampling, "apply", None)
    assert worst(["token"], Sampling()) > ALPHA


# -- controls: what must fail ------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["token", "block"])
def test_control_q_that_is_not_what_was_sampled_from(rule: str) -> None:
    uniform = [torch.full((V,) * n, 1 / V) for n in (1, 2)]
    assert worst([rule], Sampling(), FEW, World(told_of=uniform)) < ALPHA


def test_control_a_residual_that_keeps_the_dropped_one_hot_draft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One-hot drafts, given as samples of one-hot distributions, by the token rule."""
    one_hot = torch.eye(V)
    world = World(drawn_from=(one_hot[1], one_hot[[1, 2, 3, 0]]))
    assert worst(["token"], Sampling(), SAMPLES, world) > ALPHA
    monkeypatch.setattr(SpeculativeSampling, "_excess", staticmethod(lambda p, weight, q: p))
    assert worst(["token"], Sampling(), FEW, world) < ALPHA


@pytest.mark.parametrize("rule", RULES)
def test_control_rows_off_by_one(rule: str) -> None:
    assert worst([rule], Sampling(), FEW, World(shifts_rows=True)) < ALPHA


@pytest.mark.parametrize("condition", ["min-p", "logit_bias"])
@pytest.mark.parametrize("rule", RULES)
def test_control_processors_skipped_on_verified_tokens(
    monkeypatch: pytest.MonkeyPatch, rule: str, condition: str
) -> None:
    """What vLLM itself does with speculation."""
    monkeypatch.setattr(logits_processors, "spread", lambda *_: compat.LogitsProcessors())
    assert worst([rule], CONDITIONS[condition], FEW) < ALPHA


@pytest.mark.parametrize("rule", ["token", "block"])
def test_control_a_length_chosen_from_the_sampled_token(rule: str) -> None:
    unjudged = World(drops=0, judges_dropped=False)
    assert worst([rule], Sampling(), FEW, unjudged) < ALPHA


@pytest.mark.parametrize("rule", ["token", "block"])
def test_control_a_grammar_that_cuts_and_the_cut_draft_is_not_judged(rule: str) -> None:
    unjudged = World(allowed=ALLOWED, judges_dropped=False)
    assert worst([rule], Sampling(), FEW, unjudged) < ALPHA
