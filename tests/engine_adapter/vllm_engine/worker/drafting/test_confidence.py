"""The confidence gate: where drafts end, and what is not run for rows that have ended.

The worlds are those of `test_paged_model`, `test_paged_head` and `test_paged_block_head`, with
gates: a toy model is sure of all tokens but the multiples of `UNSURE`.
"""

from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.proposers.batch import Drafts
from engine_adapter.seam.types import PLAIN, SpecMethod
from engine_adapter.vllm_engine.worker.drafting.confidence import ConfidenceGate
from tests.engine_adapter.vllm_engine.support.paged_cases import prompt

CPU = torch.device("cpu")
ROWS = np.arange(3)
V = 6


def gate(threshold: float = 0.5, count: int = 3, *, is_readable: bool = True) -> ConfidenceGate:
    return ConfidenceGate.new(threshold, count, CPU, is_readable=is_readable)


def logits_of(*confidences: float) -> torch.Tensor:
    """Logits whose highest probability is that of each row."""
    rest = (1 - torch.tensor(confidences, dtype=torch.float64)[:, None]) / (V - 1)
    p = rest.expand(-1, V).clone()
    p[:, 2] = torch.tensor(confidences, dtype=torch.float64)
    return (p.log() + 3.0).float()


def lengths(made: ConfidenceGate, drawn: int) -> list[int]:
    return [len(row) for row in made.cut(Drafts([[7] * drawn for _ in made.rows])).tokens]


# -- where drafts end ------------------------------------------------------------------------


def test_a_draft_ends_before_the_product_falls_below_the_threshold() -> None:
    made = gate()
    made.add(ROWS, logits_of(0.9, 0.7, 0.4))
    assert made.is_open(ROWS).tolist() == [True, True, False]  # type: ignore[union-attr]
    made.add(ROWS, logits_of(0.9, 0.7, 0.9))
    made.add(ROWS, logits_of(0.9, 0.99, 0.9))
    assert lengths(made, 3) == [3, 1, 0]


def test_lengths_are_those_of_a_plain_computation() -> None:
    random = np.random.default_rng(3)
    made, path = gate(0.3, 40), np.ones((6, 40))
    for depth in range(6):
        logits = torch.from_numpy(random.normal(0, 4, (40, V))).float()
        path[depth] = logits.softmax(-1).amax(-1).numpy()
        made.add(np.arange(40), logits)
    expected = (np.multiply.accumulate(path) >= 0.3).sum(axis=0)
    assert lengths(made, 6) == expected.tolist()
    assert set(expected.tolist()) >= {0, 1, 2, 6}


def test_a_row_that_was_left_out_stays_closed() -> None:
    made = gate()
    made.add(ROWS, logits_of(0.9, 0.3, 0.9))
    made.add(np.array([0, 2]), logits_of(0.9, 0.9))
    assert made.is_open(np.array([2, 1])).tolist() == [True, False]  # type: ignore[union-attr]
    assert lengths(made, 2) == [2, 0, 2]


def test_forbidden_tokens_count_as_impossible() -> None:
    logits = logits_of(0.2, 0.2, 0.2)
    logits[0, [0, 1, 3, 4, 5]] = float("-inf")
    before = logits.clone()
    made = gate()
    made.add(ROWS, logits)
    assert lengths(made, 1) == [1, 0, 0]
    assert torch.equal(logits, before)


def test_selected_rows_share_the_gate() -> None:
    made = gate()
    made.select(np.array([2, 0])).add(np.array([1]), logits_of(0.2))
    made.select(np.array([1])).add(np.array([0]), logits_of(0.8))
    made.add(np.array([2]), logits_of(0.9))
    assert lengths(made, 1) == [0, 1, 1]


def test_distributions_are_cut_with_their_tokens() -> None:
    made = gate()
    made.add(ROWS, logits_of(0.9, 0.3, 0.9))
    q = [torch.ones(1, V) / V, torch.ones(1, V) / V, None]
    cut = made.cut(Drafts([[4], [5], [6]], q, 11))
    assert cut.tokens == [[4], [], [6]]
    assert cut.probabilities is not None
    assert [None if one is None else len(one) for one in cut.probabilities] == [1, 0, None]
    assert cut.catchup_tokens == 11


def test_a_gate_on_a_device_is_not_asked_before_the_end() -> None:
    made = gate(is_readable=False)
    made.add(ROWS, logits_of(0.1, 0.9, 0.1))
    assert made.is_open(ROWS) is None
    assert lengths(made, 1) == [0, 1, 0]


# -- whole runs ------------------------------------------------------------------------------

GATED = {"min_confidence": 0.5}
DRAFTS = (
    {"name": "twin", "method": "draft_model", "model": "toy/1", **GATED},
    {"name": "free", "method": "draft_model", "model": "toy/1"},
    {"name": "ngram", "prompt_lookup_min": 1},
)
HEADS = (
    {"name": "twin", "method": "eagle", "model": "toy/5", **GATED},
    {"name": "stranger", "method": "eagle3", "model": "toy/6/0,4", **GATED},
    {
        "name": "block",
        "method": "dflash",
        "model": "toy/8/1,3",
        "num_speculative_tokens": 6,
        **GATED,
    },
    {"name": "ngram", "prompt_lookup_min": 1},
)
TWIN, NGRAM = SpecMethod("twin", 4), SpecMethod("ngram", 4)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Creates a world; importing it imports vLLM."""
    paged = import_module("tests.engine_adapter.vllm_engine.support.paged_world")
    return lambda proposers, **how: paged.World(monkeypatch, proposers=proposers, **how)


@pytest.mark.needs_vllm
@pytest.mark.parametrize("ranks", [1, 2], ids=["one rank", "two ranks"])
@pytest.mark.parametrize(
    ("proposers", "methods"),
    [
        (DRAFTS, [TWIN, SpecMethod("free", 4), NGRAM, PLAIN]),
        (HEADS, [TWIN, SpecMethod("stranger", 4), SpecMethod("block", 5), NGRAM, PLAIN]),
    ],
    ids=["draft models", "heads"],
)
def test_switches_preemption_and_prefix_hits_do_not_change_where_drafts_end(
    make: Any, proposers: Any, methods: list[SpecMethod], ranks: int
) -> None:
    """The world checks every draft, and every KV slot that is read for it."""
    world = make(proposers, ranks=ranks, num_blocks=36, chunk=9, budget=12)
    counts = world.run_random(methods, 5)
    assert counts["drafted"] > 200
    assert counts["accepted"] > 50
    assert counts["hits"] > 50
    assert counts["preempted"] > 5


@pytest.mark.needs_vllm
def test_a_row_that_has_ended_takes_part_in_no_further_pass(make: Any) -> None:
    world = make(DRAFTS)
    for i in range(6):
        world.add(f"r{i}", prompt(10, i), TWIN)
    world.step()
    toy, ended = world.toy("twin"), 0
    for _ in range(10):
        passes = toy.passes
        drafts = world.step().drafts
        # A pass reads each kept draft, and its output says whether there is another one.
        for name, row in drafts.items():
            committed = len(world.requests[name].tokens)
            read = [p for r, p, _ in toy.fed if r == name and p >= committed]
            assert len(read) == min(len(row), 3)
        assert toy.passes - passes == 1 + min(max(map(len, drafts.values())), 3)
        ended += sum(len(row) < 3 for row in drafts.values())
    assert ended > 20


@pytest.mark.needs_vllm
def test_other_ranks_make_the_same_passes_with_any_numbers(make: Any) -> None:
    world = make(DRAFTS, ranks=2)
    for i in range(3):
        world.add(f"r{i}", prompt(10, i), TWIN)
    world.step()
    toy = world.toy("twin")
    for _ in range(5):
        passes = toy.passes
        world.step()
        assert toy.passes - passes == 4


@pytest.mark.needs_vllm
def test_a_proposer_without_a_gate_drafts_its_whole_k(make: Any) -> None:
    world = make(DRAFTS)
    world.add("r", prompt(10), SpecMethod("free", 4))
    for _ in range(8):
        assert len(world.step().drafts["r"]) == 4
