"""The logits of a block's places: plain ones, and those that depend on the draft before."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.vllm_engine.worker.drafting.place_logits import (
    CandidateLogits,
    MarkovLogits,
    PlaceLogits,
)

VOCAB, RANK, HIDDEN, PLACES, CANDIDATES = 11, 3, 4, 5, 4


def head(seed: int = 0) -> tuple[Any, torch.Tensor]:
    """A DFlash2 head with random codebooks, and the states of five places."""
    torch.manual_seed(seed)
    output = torch.randn(VOCAB, HIDDEN)

    def compute_candidates(states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        best = (states @ output.T).topk(CANDIDATES)
        return best.indices, best.values

    selector = SimpleNamespace(
        hidden_projection=torch.nn.Linear(HIDDEN, RANK, bias=False),
        predecessor_codebook=torch.randn(VOCAB, RANK),
        successor_codebook=torch.randn(VOCAB, RANK),
        top_k=CANDIDATES,
    )
    return SimpleNamespace(candidates=compute_candidates, selector=selector), torch.randn(
        PLACES, HIDDEN
    )


def candidate_logits(head: Any, states: torch.Tensor) -> CandidateLogits:
    """The logits of the states' places."""
    candidates, logits = head.candidates(states)
    return CandidateLogits(candidates, logits, states, head.selector, VOCAB)


def test_plain_logits_depend_on_no_draft() -> None:
    table = torch.randn(PLACES, VOCAB)
    logits, places = PlaceLogits(table), torch.tensor([4, 1])
    assert torch.equal(logits.after(places, torch.tensor([0, 3])), table[places])
    likeliest = logits.all_likeliest()
    assert likeliest is not None
    assert torch.equal(likeliest, table.argmax(dim=-1))


def test_what_is_changed_is_a_copy() -> None:
    table = torch.zeros(PLACES, VOCAB)

    def add_bias(logits: torch.Tensor, _: torch.Tensor) -> None:
        logits += 1

    for logits in (PlaceLogits(table), MarkovLogits(table, add_bias)):
        logits.after(torch.tensor([0]), torch.tensor([0])).fill_(9)
        assert not table.any()


def test_a_markov_head_adds_its_bias_after_the_token_before() -> None:
    table = torch.zeros(PLACES, VOCAB)

    def add_bias(logits: torch.Tensor, tokens: torch.Tensor) -> None:
        logits[torch.arange(len(tokens)), tokens] += 5

    logits, previous = MarkovLogits(table, add_bias), torch.tensor([3, 8])
    assert logits.all_likeliest() is None
    assert torch.equal(logits.likeliest(torch.tensor([0, 1]), previous), previous)


@torch.no_grad()
def test_candidates_are_scored_after_the_draft_before_them() -> None:
    """Against the definition, token by token."""
    model, states = head()
    selector = model.selector
    ids, unary = model.candidates(states)
    logits = candidate_logits(model, states)
    places, previous = torch.tensor([0, 2, 4]), torch.tensor([7, 7, 1])
    result = logits.after(places, previous)
    for row, (place, token) in enumerate(zip(places, previous, strict=True)):
        weights = selector.predecessor_codebook[token] * selector.hidden_projection(states[place])
        want = {
            int(candidate): float(
                unary[place, i] + weights @ selector.successor_codebook[candidate]
            )
            for i, candidate in enumerate(ids[place])
        }
        for candidate, score in want.items():
            assert float(result[row, candidate]) == pytest.approx(score, abs=1e-5)
        likeliest = max(want, key=lambda candidate: want[candidate])
        assert int(logits.likeliest(places, previous)[row]) == likeliest
        assert int(result[row].argmax()) == likeliest


@torch.no_grad()
def test_only_candidates_have_a_probability() -> None:
    """Where none of them is allowed, another token can still be drawn."""
    model, states = head(seed=1)
    candidates, _ = model.candidates(states)
    newest = torch.zeros(PLACES, dtype=torch.int32)
    logits = candidate_logits(model, states)
    assert logits.all_likeliest() is None
    table = logits.after(torch.arange(PLACES), newest)
    for temperature in (0.5, 1.0, 2.0):
        probabilities = (table / temperature).softmax(dim=-1)
        assert ((probabilities > 0).sum(dim=-1) == CANDIDATES).all()
        sums = probabilities.gather(1, candidates).sum(dim=-1)
        assert torch.allclose(sums, torch.ones(PLACES))
    probabilities = table.scatter(1, candidates, float("-inf")).softmax(dim=-1)
    assert torch.isfinite(probabilities).all()
    assert not probabilities.gather(1, candidates).any()


@pytest.mark.needs_vllm
@torch.no_grad()
def test_the_scores_are_those_of_vllm() -> None:
    """vLLM scores every pair of candidates; here those after its likeliest ones are compared."""
    from vllm.model_executor.models.qwen3_dflash2 import _score_edges

    model, states = head(seed=3)
    selector, newest = model.selector, torch.tensor([6])
    ids, unary = model.candidates(states)
    edges = _score_edges(
        selector.predecessor_codebook,
        selector.successor_codebook,
        ids[None],
        unary[None],
        selector.hidden_projection(states)[None],
        newest,
        CANDIDATES,
    )[0]  # [place, candidate before, candidate]
    logits, places = candidate_logits(model, states), torch.arange(PLACES)
    for before in range(CANDIDATES):
        previous = torch.cat([newest, ids[:-1, before]])
        result = logits.after(places, previous).gather(1, ids)
        assert torch.allclose(result, edges[places, before], atol=1e-5)
