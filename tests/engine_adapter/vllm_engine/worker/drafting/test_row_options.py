"""Options at drafts: the logits of a draft are those that verification will see."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.vllm_engine.worker.drafting.row_options import RowOptions
from tests.engine_adapter.vllm_engine.support.v2_states import rows_of, sampler_of, verified

pytestmark = pytest.mark.needs_vllm

V = 12
TOKENS = [([0, 6], [1, 2, 2]), ([6, 7], [3]), ([8], [4, 5])]
"""The prompts and the outputs of three requests."""

OPTIONS: dict[str, Sequence[Mapping[str, Any]]] = {
    "bias": [{"logit_bias": {3: 5.0, 7: -100.0}}, {}, {"logit_bias": {1: 2.0}}],
    "min_tokens": [{"min_tokens": 5, "stop_token_ids": [9]}, {}, {}],
    "min_p": [{"temperature": 1.0, "min_p": 0.4}, {"temperature": 1.0, "min_p": 0.1}, {}],
    "penalties": [
        {"repetition_penalty": 1.5, "frequency_penalty": 0.4, "presence_penalty": 0.2},
        {},
        {"repetition_penalty": 0.7, "frequency_penalty": -0.3, "presence_penalty": 1.0},
    ],
    "allowed": [{"allowed_token_ids": [1, 2, 3, 8]}, {}, {"allowed_token_ids": [0, 5]}],
    "bad_words": [
        {"_bad_words_token_ids": [[2], [1, 4], [3, 8, 10]]},
        {},
        {"_bad_words_token_ids": [[5, 6]]},
    ],
    "everything": [
        {"logit_bias": {3: 2.0}, "temperature": 1.0, "min_p": 0.1, "presence_penalty": 0.5},
        {"min_tokens": 3, "stop_token_ids": [9], "_bad_words_token_ids": [[3, 3]]},
        {"frequency_penalty": 0.5, "allowed_token_ids": [*range(2, 12)]},
    ],
}


def options_of(sampler: Any, names: Sequence[int], *, samples: bool = True) -> RowOptions:
    lengths = np.array([sum(map(len, TOKENS[name])) for name in names])
    return RowOptions(sampler, rows_of(sampler, names), lengths, samples=samples)


def made(options: Sequence[Mapping[str, Any]]) -> Any:
    return sampler_of(V, [(*TOKENS[i], each) for i, each in enumerate(options)])


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("names", [[0, 1, 2], [2, 0], [0]], ids=str)
def test_a_drafts_logits_are_those_of_its_verification(
    options: Sequence[Mapping[str, Any]], names: list[int]
) -> None:
    sampler, depths = made(options), 4
    logits = torch.randn(3, depths, V, generator=torch.Generator().manual_seed(2)) * 3
    limits, every = options_of(sampler, names), np.arange(len(names))
    assert not limits.are_idle
    drafts: dict[int, list[int]] = {name: [] for name in names}
    drafted = []
    for depth in range(depths):
        limited, after = limits.apply(logits[names, depth].clone(), every, depth)
        for processor in after:
            limited = processor.apply(limited)
        drafted.append(limited)
        limits.record(every, limited.argmax(-1))
        for name, token in zip(names, limited.argmax(-1).tolist(), strict=True):
            drafts[name].append(token)
    read = [[TOKENS[name][1][-1], *drafts[name][:-1]] for name in names]
    seen = verified(sampler, names, read, logits[names].reshape(-1, V)).view(-1, depths, V)
    for depth in range(depths):
        assert torch.equal(drafted[depth], seen[:, depth])


def test_only_some_rows_may_be_drafted_at_a_depth() -> None:
    limits, every = options_of(made(OPTIONS["everything"]), [2, 0, 1]), np.arange(3)
    logits = torch.randn(3, V)
    limits.record(every, torch.tensor([4, 1, 3]))
    whole, _ = limits.apply(logits.clone(), every, 1)
    part, _ = limits.apply(logits[[1, 0]], np.array([1, 0]), 1)
    assert torch.equal(part, whole[[1, 0]])


def test_chosen_rows_begin_again() -> None:
    limits, every = options_of(made(OPTIONS["penalties"]), [0, 1, 2]), np.arange(3)
    limits.record(every, torch.tensor([4, 1, 3]))
    logits = torch.randn(2, V)
    chosen, _ = limits.select(np.array([2, 0])).apply(logits.clone(), np.arange(2), 0)
    fresh, _ = options_of(made(OPTIONS["penalties"]), [2, 0]).apply(logits, np.arange(2), 0)
    assert torch.equal(chosen, fresh)


def test_requests_without_options_are_idle_beside_others() -> None:
    sampler = made(OPTIONS["everything"])
    assert all(not options_of(sampler, [name]).are_idle for name in range(3))
    sampler = made([{}, OPTIONS["penalties"][0], OPTIONS["min_p"][0]])
    assert options_of(sampler, [0]).are_idle
    assert options_of(sampler, [0, 1]).read_drafts
    assert not options_of(sampler, [2]).are_idle
    assert options_of(sampler, [2], samples=False).are_idle
    assert not options_of(made(OPTIONS["bias"]), [0]).read_drafts
