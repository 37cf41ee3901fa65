"""On runner V2, too, verified tokens have the target's exact distribution under every rule.

See `verification/test_distribution`, whose controls make the mistakes that a rule could make.
"""

import pytest
import torch

from engine_adapter.vllm_engine.worker.verification.rejection import SpeculativeSampling
from tests.engine_adapter.vllm_engine.support import verified_pairs
from tests.engine_adapter.vllm_engine.support.exact import ALPHA, CONDITIONS, Sampling, p_value
from tests.engine_adapter.vllm_engine.support.v2_pairs import V2Verifier
from tests.engine_adapter.vllm_engine.support.verified_pairs import RULES, World, observed
from tests.engine_adapter.vllm_engine.worker.verification.test_distribution import (
    ALLOWED,
    FEW,
    MANY,
)

pytestmark = pytest.mark.needs_vllm


@pytest.fixture(autouse=True)
def same_draws() -> None:
    torch.manual_seed(7)


def worst(
    monkeypatch: pytest.MonkeyPatch, sampling: Sampling, samples: int, world: World | None = None
) -> float:
    """The least p-value over the rules, whose rows share the batch."""
    monkeypatch.setattr(verified_pairs, "Verifier", lambda _: V2Verifier(sampling))
    exact = verified_pairs.expected(sampling, world.allowed if world else None)
    counts = observed(RULES, sampling, samples, world)
    return min(p_value(counts[rule], exact) for rule in RULES)


@pytest.mark.parametrize("condition", CONDITIONS)
def test_two_verified_tokens_are_the_targets(
    monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    assert worst(monkeypatch, CONDITIONS[condition], FEW) > ALPHA


@pytest.mark.prove
@pytest.mark.parametrize("condition", CONDITIONS)
def test_two_verified_tokens_are_the_targets_at_length(
    monkeypatch: pytest.MonkeyPatch, condition: str
) -> None:
    assert worst(monkeypatch, CONDITIONS[condition], MANY) > ALPHA


WORLDS = {
    "a grammar": World(allowed=ALLOWED),
    "no draft is scheduled": World(drops=0),
    "a gate": World(ends=(1, 3)),
}


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_rows_whose_drafts_are_cut_change_nothing(
    monkeypatch: pytest.MonkeyPatch, world: World
) -> None:
    assert worst(monkeypatch, Sampling(), FEW, world) > ALPHA


def test_control_the_residual_is_the_targets_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SpeculativeSampling, "_residual", staticmethod(lambda p, weight, q: p))
    assert worst(monkeypatch, Sampling(), FEW) < ALPHA
