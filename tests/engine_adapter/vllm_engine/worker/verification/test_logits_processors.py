"""vLLM's logits processors at every position of a verification step."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification import logits_processors
from engine_adapter.vllm_engine.worker.verification.layout import VerifyLayout

pytestmark = pytest.mark.needs_vllm

CPU = torch.device("cpu")
V = 12
COUNTS = [2, 0, 3]
ROW = [0, 0, 0, 1, 2, 2, 2, 2]


def processors(rows: list[dict[str, Any]], outputs: list[list[int]] | None = None) -> Any:
    """vLLM's processors for a batch whose rows have these sampling parameters."""
    from vllm import SamplingParams
    from vllm.v1.sample.logits_processor import BatchUpdate

    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=8))
    built = logits_processors.build(config, CPU)
    params = [SamplingParams(**row) for row in rows]
    made = outputs or [[] for _ in rows]
    added = [(i, p, [1], made[i]) for i, p in enumerate(params)]
    for processor in built.all:
        processor.update_state(BatchUpdate(len(rows), removed=[], added=added, moved=[]))
    return built


def applied(built: Any, logits: torch.Tensor) -> torch.Tensor:
    """The logits after all processors."""
    for processor in (*built.non_argmax_invariant, *built.argmax_invariant):
        logits = processor.apply(logits)
    return logits


OPTIONS: list[dict[str, Any]] = [
    {"min_p": 0.3},
    {"logit_bias": {3: 5.0, 7: -100.0}},
    {"min_p": 0.6, "logit_bias": {1: 2.0}},
    {},
]


@pytest.mark.parametrize("first", range(len(OPTIONS)))
def test_a_position_is_processed_like_its_row(first: int) -> None:
    rows = [OPTIONS[(first + i) % len(OPTIONS)] for i in range(3)]
    logits = torch.randn(len(ROW), V, generator=torch.Generator().manual_seed(first))
    expanded = logits_processors.expand(processors(rows), VerifyLayout(COUNTS, CPU))
    got = applied(expanded, logits.clone())
    for position, row in enumerate(ROW):
        single = applied(processors([rows[row]]), logits[position : position + 1].clone())
        assert torch.equal(got[position], single[0])
    assert not torch.equal(got, logits)


def test_the_rows_own_processors_do_not_change() -> None:
    built = processors([{"min_p": 0.5, "logit_bias": {0: 1.0}}, {}, {}])
    logits = torch.randn(3, V)
    before = applied(built, logits.clone())
    logits_processors.expand(built, VerifyLayout(COUNTS, CPU))
    assert torch.equal(applied(built, logits.clone()), before)


def test_processors_that_no_row_uses_are_left_out() -> None:
    expanded = logits_processors.expand(processors([{}, {}, {}]), VerifyLayout(COUNTS, CPU))
    assert list(expanded.all) == []


def test_min_tokens_forbids_stops_only_before_it_is_reached() -> None:
    """vLLM forbids them after the last draft too, even if the minimum is reached there."""
    built = processors([{"min_tokens": 3, "stop_token_ids": [9]}, {}], [[4], []])
    expanded = logits_processors.expand(built, VerifyLayout([3, 1], CPU))
    logits = applied(expanded, torch.zeros(6, V))
    assert logits[:, 9].isneginf().tolist() == [True, True, False, False, False, False]
    assert not logits[:, :9].any()


def test_min_tokens_allows_a_stop_if_the_grammar_allows_nothing_else() -> None:
    form = compat.StructuredOutputsParams(regex="a")
    rows = [{"min_tokens": 3, "stop_token_ids": [9], "structured_outputs": form}]
    expanded = logits_processors.expand(processors(rows), VerifyLayout([1], CPU))
    logits = torch.zeros(2, V)
    logits[1, torch.arange(V) != 9] = float("-inf")
    assert applied(expanded, logits)[:, 9].tolist() == [float("-inf"), 0.0]


def test_min_tokens_that_is_reached_forbids_nothing() -> None:
    built = processors([{"min_tokens": 2, "stop_token_ids": [9]}], [[4]])
    built.non_argmax_invariant[0].min_toks[0][1].append(5)
    assert list(logits_processors.expand(built, VerifyLayout([1], CPU)).all) == []
