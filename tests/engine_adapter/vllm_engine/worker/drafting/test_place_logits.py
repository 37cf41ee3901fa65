"""The logits of a block's places: plain ones, and those that depend on the draft before."""

from functools import partial
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.functional import silu

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.drafting.place_logits import (
    BiasedLogits,
    CandidateLogits,
    PlaceLogits,
    RefinerLatents,
    SelectorLatents,
    product_bias,
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
    latents = SelectorLatents(head.selector, states)
    return CandidateLogits(candidates, logits, latents, head.selector.successor_codebook)


def test_plain_logits_depend_on_no_draft() -> None:
    table = torch.randn(PLACES, VOCAB)
    logits, places = PlaceLogits(table), torch.tensor([4, 1])
    assert torch.equal(logits.after(places, torch.tensor([0, 3])), table[places])
    likeliest = logits.all_likeliest()
    assert likeliest is not None
    assert torch.equal(likeliest, table.argmax(dim=-1))


def test_what_is_changed_is_a_copy() -> None:
    table = torch.zeros(PLACES, VOCAB)

    def add_bias(logits: torch.Tensor, _: torch.Tensor, __: torch.Tensor) -> None:
        logits += 1

    for logits in (PlaceLogits(table), BiasedLogits(table, add_bias)):
        logits.after(torch.tensor([0]), torch.tensor([0])).fill_(9)
        assert not table.any()


def test_a_bias_depends_on_the_token_before_and_on_the_place() -> None:
    def add_bias(logits: torch.Tensor, places: torch.Tensor, tokens: torch.Tensor) -> None:
        logits[torch.arange(len(tokens)), tokens] += 5
        logits[torch.arange(len(tokens)), places] += 9 * (places == 1)

    logits, previous = BiasedLogits(torch.zeros(PLACES, VOCAB), add_bias), torch.tensor([3, 8])
    assert logits.all_likeliest() is None
    assert torch.equal(logits.likeliest(torch.tensor([0, 2]), previous), previous)
    assert torch.equal(logits.likeliest(torch.tensor([0, 1]), previous), torch.tensor([3, 1]))


def test_the_bias_of_all_tokens_is_the_product_of_latents_and_their_rows() -> None:
    readout, latents = torch.randn(VOCAB, RANK), torch.randn(PLACES, RANK)
    table, places = torch.randn(PLACES, VOCAB), torch.tensor([3, 0])
    add = product_bias(lambda places, _: latents[places], readout)
    result = BiasedLogits(table, add).after(places, torch.tensor([1, 1]))
    assert torch.allclose(result, table[places] + latents[places] @ readout.T, atol=1e-6)


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


# -- the refiner of an XPress head -------------------------------------------------------------

BLOCKS, BLOCK, INNER = 3, PLACES, 7


class Refiner(torch.nn.Module):
    """The modules of vLLM's, which 0.33 has; random."""

    def __init__(self) -> None:
        super().__init__()
        linear = partial(torch.nn.Linear, bias=False)
        self.rank = RANK
        self.w1 = torch.nn.Embedding(VOCAB, RANK)
        self.down_h, self.down_g = linear(HIDDEN, RANK), linear(HIDDEN, RANK)
        self.in_proj = linear(3 * RANK, RANK)
        self.mix_L = torch.nn.Parameter(torch.eye(BLOCK) + torch.randn(RANK, BLOCK, BLOCK).tril())
        self.mlp_gate, self.mlp_up = linear(RANK, INNER), linear(RANK, INNER)
        self.mlp_down, self.w2 = linear(INNER, RANK), linear(RANK, VOCAB)

    def hidden_cache(self, states: torch.Tensor) -> torch.Tensor:
        mean = states.mean(dim=1, keepdim=True).expand_as(states)
        return torch.cat([self.down_h(states), self.down_g(mean)], dim=-1)

    def passed(self, states: torch.Tensor, previous: torch.Tensor) -> torch.Tensor:
        """The latents of all places, [N, B, R], after the tokens [N, B] before them; one pass."""
        x = self.in_proj(torch.cat([self.hidden_cache(states), self.w1(previous)], dim=-1))
        size = states.shape[1]
        x = torch.einsum("rij,njr->nir", self.mix_L[:, :size, :size], x)
        latents: torch.Tensor = x + self.mlp_down(silu(self.mlp_gate(x)) * self.mlp_up(x))
        return latents


@pytest.mark.parametrize("size", [BLOCK, BLOCK - 2])
@torch.no_grad()
def test_drafts_place_by_place_are_those_on_which_passes_over_the_block_settle(size: int) -> None:
    """A published head drafts by such passes; after B of them, nothing changes any more.

    The second block has fewer drafts, and a block may have fewer places than the mixer.
    """
    torch.manual_seed(5)
    refiner, states = Refiner(), torch.randn(BLOCKS, size, HIDDEN)
    base, newest = torch.randn(BLOCKS, size, VOCAB), torch.tensor([1, 6, 9], dtype=torch.int32)
    block = torch.cat([newest[:, None].long(), base[:, 1:].argmax(dim=-1)], dim=1)
    first_pass, settled = block, False
    for _ in range(size):
        previous = torch.cat([block[:, :1], block[:, :-1]], dim=1)
        refined = base + refiner.w2(refiner.passed(states, previous))
        after = torch.cat([block[:, :1], refined[:, 1:].argmax(dim=-1)], dim=1)
        settled, block = torch.equal(after, block), after
    assert settled
    assert not torch.equal(block, first_pass)

    k = [size - 1, 1, size - 1]
    places = torch.tensor(
        [i * size + 1 + depth for i, most in enumerate(k) for depth in range(most)]
    )
    latents = RefinerLatents(refiner, states, newest, places)
    logits = BiasedLogits(base.flatten(0, 1)[places], product_bias(latents, refiner.w2.weight))
    first = [0, k[0], k[0] + k[1]]
    previous_drafts = newest.clone().long()
    for depth in range(size - 1):
        rows = [i for i in range(BLOCKS) if k[i] > depth]
        index = torch.tensor([first[i] + depth for i in rows])
        drafts = logits.likeliest(index, previous_drafts[rows])
        assert torch.equal(drafts, block[rows, depth + 1])
        previous_drafts[rows] = drafts


@pytest.mark.needs_vllm
@pytest.mark.skipif(compat.is_before("0.33"), reason="vLLM 0.32 has no XPress heads")
@torch.no_grad()
def test_the_refiner_is_that_of_vllm() -> None:
    """One pass of vLLM's module gives what the module of these tests does."""
    heads = import_module("vllm.model_executor.models.qwen3_xpress")
    torch.manual_seed(6)
    refiner = Refiner()
    theirs = heads.XPressRefinerHead(VOCAB, HIDDEN, BLOCK, rank=RANK, mlp_hidden=INNER)
    theirs.load_state_dict(refiner.state_dict())
    states, previous = torch.randn(BLOCKS, BLOCK, HIDDEN), torch.randint(VOCAB, (BLOCKS, BLOCK))
    want = theirs.refine_bias(previous, theirs.hidden_cache(states))
    assert torch.allclose(refiner.w2(refiner.passed(states, previous)), want, atol=1e-5)
