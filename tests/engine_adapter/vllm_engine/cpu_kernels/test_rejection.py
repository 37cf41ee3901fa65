"""The twins that verify drafts, beside the kernels in Triton's interpreter."""

import math
from inspect import signature
from typing import Any

import numpy as np
import pytest
import torch

from tests.engine_adapter.vllm_engine.support.interpreted import clones, interpreted
from tests.engine_adapter.vllm_engine.support.kernel_pairs import (
    check_kernel,
    check_launch,
    same,
    with_twins,
)
from tests.engine_adapter.vllm_engine.support.v2_steps import random_step

pytestmark = pytest.mark.needs_vllm

SAMPLER, UTILITIES = "spec_decode.rejection_sampler", "spec_decode.rejection_sampler_utils"
REQUESTS, MOST = 6, 4
SEEDS = (*range(3), pytest.param(range(100, 250), marks=pytest.mark.prove))
WIDTHS = (50, 8192, 8195)
"""Of one block, of a full one, and of one and a part."""

COUNTS = {
    "none": [0, 0, 0],
    "mixed": [2, 0, MOST, 1],
    "most": [MOST, MOST],
    "one row": [3],
}
"""Drafts of each row."""


class Verification:
    """The arguments of `rejection_sample` for rows with random drafts; names are vLLM's.

    A draft is likely under the target, or not. Among the requests one is greedy.
    """

    def __init__(self, seed: int, counts: list[int], width: int = 50) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        lengths = torch.tensor(counts) + 1
        self.cu_num_logits = torch.cat([torch.zeros(1), lengths.cumsum(0)]).int()
        total = int(lengths.sum())
        self.idx_mapping = torch.randperm(REQUESTS, generator=self.generator)[: len(counts)]
        self.expanded_idx_mapping = self.idx_mapping.repeat_interleave(lengths)
        firsts = self.cu_num_logits[:-1].repeat_interleave(lengths)
        self.expanded_local_pos = torch.arange(total, dtype=torch.int32) - firsts
        self.target_logits = self.normal(total, width)
        self.target_logits[:, width // 2 :: 3] = -math.inf  # as top_k leaves it
        self.draft_logits = self.normal(REQUESTS, MOST, width + 3)
        likely = self.target_logits.argmax(1).roll(1)
        chance = torch.rand(total, generator=self.generator) < 0.7
        self.draft_sampled = torch.where(chance, likely, self.integers(0, width, total)).int()
        self.temperature = torch.rand(REQUESTS, generator=self.generator) + 0.2
        self.temperature[self.idx_mapping[seed % len(counts)]] = 0
        lowest, highest = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
        self.seeds = self.integers(lowest, highest, REQUESTS)
        self.pos = self.integers(0, 1 << 40, total)

    def normal(self, *shape: int) -> torch.Tensor:
        return 2 * torch.randn(shape, generator=self.generator)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.generator)

    def sample(self, module: Any, drafts: torch.Tensor | None, **options: Any) -> Any:
        """vLLM's `rejection_sample` of a module."""
        arguments = (
            *(self.target_logits, drafts, self.draft_sampled, self.cu_num_logits, self.pos),
            *(self.idx_mapping, self.expanded_idx_mapping, self.expanded_local_pos),
            *(self.temperature, self.seeds, MOST),
        )
        return module.rejection_sample(*clones(arguments), **options)

    def check(
        self, drafts: torch.Tensor | None, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Verifies both ways; returns the sampled tokens and their numbers."""
        # Two infinities are subtracted, and the result is not used.
        with np.errstate(invalid="ignore", divide="ignore"):
            their_tokens, their_counts = self.sample(interpreted(UTILITIES), drafts, **options)
        tokens, counts = self.sample(with_twins(UTILITIES), drafts, **options)
        same(counts, their_counts)
        # What is behind a row's tokens is left as it was.
        valid = torch.arange(MOST + 1) < counts[:, None]
        same(tokens.where(valid, 0), their_tokens.where(valid, 0))
        return tokens, counts


def each(seeds: int | range) -> list[int]:
    return list(seeds) if isinstance(seeds, range) else [seeds]


@pytest.mark.parametrize("by_block", [False, True], ids=["one by one", "by block"])
@pytest.mark.parametrize("has_logits", [False, True], ids=["tokens", "logits"])
@pytest.mark.parametrize("counts", COUNTS.values(), ids=list(COUNTS))
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_the_same_tokens_are_sampled(
    seeds: int | range, counts: list[int], has_logits: bool, by_block: bool
) -> None:
    for seed in each(seeds):
        step = Verification(seed, counts)
        drafts = step.draft_logits if has_logits else None
        step.check(drafts, use_block_verification=by_block, use_fp64=seed % 2 == 1)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_drafts_logits_may_be_narrow_and_vocabularies_have_several_blocks(
    dtype: torch.dtype, width: int
) -> None:
    for by_block in (False, True):
        step = Verification(5, [1, MOST, 0], width)
        step.check(step.draft_logits.to(dtype), use_block_verification=by_block)


@pytest.mark.parametrize("greedy", [False, True], ids=["sampled", "greedy"])
@pytest.mark.parametrize("has_logits", [False, True], ids=["tokens", "logits"])
def test_all_drafts_can_be_accepted_and_rejected(has_logits: bool, greedy: bool) -> None:
    step = Verification(8, [MOST, MOST - 1])
    step.temperature.fill_(0 if greedy else 0.4)
    best = step.target_logits.argmax(1)
    step.target_logits[torch.arange(len(best)), best] = 60.0
    step.draft_logits.fill_(0)
    drafts = step.draft_logits if has_logits else None
    step.draft_sampled = best.roll(1).int()
    tokens, counts = step.check(drafts)
    assert counts.tolist() == [MOST + 1, MOST]
    assert tokens[0].tolist() == best[: MOST + 1].tolist()
    step.draft_sampled = ((best.roll(1) + 1) % 25).int()
    tokens, counts = step.check(drafts)
    assert counts.tolist() == [1, 1]
    assert tokens[:, 0].tolist() == [best[0], best[MOST + 1]]


@pytest.mark.parametrize("by_block", [False, True], ids=["one by one", "by block"])
@pytest.mark.parametrize("has_logits", [False, True], ids=["tokens", "logits"])
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_a_place_without_a_draft_ends_the_accepted_ones(
    seeds: int | range, has_logits: bool, by_block: bool
) -> None:
    for seed in each(seeds):
        step = Verification(seed, [MOST, 2, MOST])
        step.draft_sampled = step.target_logits.argmax(1).roll(1).int()
        step.draft_sampled[[3, 6, 9]] = -1  # the third of a row, the first and the second
        drafts = step.draft_logits if has_logits else None
        _, counts = step.check(drafts, use_block_verification=by_block)
        assert (counts <= torch.tensor([3, 1, 2])).all()


def test_pretended_acceptance_follows_its_rates() -> None:
    rates = torch.tensor([1.0, 0.6, 0.3, 0.0])
    for seed in range(8):
        step = Verification(seed, [MOST, 1, MOST, MOST])
        step.draft_sampled[0] = -1
        _, counts = step.check(step.draft_logits, synthetic_conditional_rates=rates)
        assert counts.min() >= 2
        assert counts.max() <= MOST


def test_a_row_of_which_a_grammar_allows_one_token() -> None:
    step = Verification(2, [2, 2, 2])
    step.target_logits.fill_(-math.inf)
    step.target_logits[:, 7] = 1.0
    step.draft_sampled.fill_(7)
    step.draft_sampled[2] = 9
    for drafts in (None, step.draft_logits):
        tokens, counts = step.check(drafts)
        assert counts.tolist() == [2, 3, 3]
        assert set(tokens[0, :2].tolist() + tokens[1:, :3].flatten().tolist()) == {7}


def test_stats_of_rows_that_verify_are_the_kernels() -> None:
    for seed in range(3):
        step = Verification(seed, [2, 0, MOST, 1], 40)
        rows, blocks = len(step.pos), 3
        made = [torch.zeros(rows, blocks, dtype=torch.int64)]
        made += [torch.zeros(rows, blocks) for _ in range(4)]
        results = [value for each in made for value in (each, blocks)]
        last = signature(with_twins(UTILITIES).rejection_sample)
        ours, theirs = check_kernel(
            *(UTILITIES, "_compute_local_logits_stats_kernel", (rows, blocks)),
            *(*results, step.target_logits, 40, step.draft_logits, MOST * 43, 43),
            *(step.expanded_idx_mapping, step.expanded_local_pos, step.temperature, 40),
            rows if "fly_window_size" in last.parameters else MOST,
            BLOCK_SIZE=16,
            HAS_DRAFT_LOGITS=True,
        )
        verifying = step.expanded_local_pos.roll(-1) > 0
        verifying[-1] = False
        for actual, expected in zip(ours[:10:2], theirs[:10:2], strict=True):
            same(actual[verifying], expected[verifying], rtol=1e-5, atol=1e-5)


def test_each_logit_gets_the_token_and_position_before_it() -> None:
    for seed in range(4):
        step = random_step(seed)
        counts = step.cu_num_logits.diff()
        requests = step.idx_mapping.repeat_interleave(counts)
        places = torch.arange(step.logits).int() - step.cu_num_logits[:-1].repeat_interleave(counts)
        ends = step.query_start_loc[1:].repeat_interleave(counts)
        tokens = torch.randint(0, 50, (step.tokens,), dtype=torch.int32)
        positions = torch.randint(0, 30, (step.tokens,))
        check_launch(
            *(SAMPLER, "gather_draft_sampled", tokens, positions),
            (ends - counts.repeat_interleave(counts) + places).long(),
            *(requests, places, step.prefill_len),
        )


def test_sampled_tokens_stand_beside_their_logits() -> None:
    step = Verification(0, [2, 0, MOST])
    sampled = torch.randint(0, 50, (3, MOST + 1))
    ours, theirs = check_kernel(
        *(SAMPLER, "_flatten_sampled_kernel", (3,), torch.zeros(len(step.pos)).long(), sampled),
        *(MOST + 1, torch.tensor([2, 1, MOST + 1]).int(), step.cu_num_logits),
    )
    same(ours, theirs)


def test_what_needs_a_gpu_is_refused() -> None:
    step = Verification(1, [1])
    watermarks = {
        "contexts": torch.zeros(2, 1).int(),
        "watermarking": torch.ones(REQUESTS).bool(),
        "watermark_key": 3,
    }
    with pytest.raises(ValueError, match="watermarks with speculation need a GPU"):
        step.sample(with_twins(UTILITIES), None, **watermarks)
    if "fly_window_size" in signature(with_twins(UTILITIES).rejection_sample).parameters:
        with pytest.raises(ValueError, match="'fly' needs a GPU"):
            step.sample(with_twins(UTILITIES), None, fly_window_size=2)
