"""The twins of the kernels that change logits, beside the kernels in Triton's interpreter."""

from typing import Any

import pytest
import torch

from tests.engine_adapter.vllm_engine.support.kernel_pairs import (
    check_kernel,
    check_launch,
    same,
    with_twins,
)
from tests.engine_adapter.vllm_engine.support.v2_steps import (
    REQUESTS,
    VOCABULARY,
    RandomStep,
    random_step,
)

pytestmark = pytest.mark.needs_vllm

SEEDS = (*range(2), pytest.param(range(100, 300), marks=pytest.mark.prove))
LOGARITHMS = {"rtol": 1e-6, "atol": 2e-6}
"""Sums of exponentials in another order, and logarithms, of float32."""


class Rows:
    """The rows of logits of a step: those of the sampler's arguments that all kernels share."""

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.step: RandomStep = random_step(seed)
        self.logits = 2 * torch.randn(self.step.logits, VOCABULARY, generator=self.generator)
        counts = self.step.cu_num_logits.diff()
        self.requests = torch.repeat_interleave(self.step.idx_mapping, counts)
        firsts = torch.repeat_interleave(self.step.cu_num_logits[:-1], counts)
        self.places = torch.arange(self.step.logits, dtype=torch.int32) - firsts
        self.token_ids = self.integers(0, VOCABULARY, self.step.logits)

    def integers(self, low: int, high: int, *shape: int) -> torch.Tensor:
        return torch.randint(low, high, shape, generator=self.generator, dtype=torch.int32)

    def shares(self, *choices: float) -> torch.Tensor:
        """For each request one of the choices."""
        return torch.tensor(choices)[self.integers(0, len(choices), REQUESTS).long()]


@pytest.fixture(params=SEEDS, ids=str)
def made(request: pytest.FixtureRequest) -> list[Rows]:
    seeds = request.param if isinstance(request.param, range) else [request.param]
    return [Rows(seed) for seed in seeds]


def test_temperature(made: list[Rows]) -> None:
    for rows in made:
        temperature = rows.shares(0.0, 1.0, 0.3, 1.7)
        check_launch("sample.gumbel", "apply_temperature", rows.logits, rows.requests, temperature)


def test_min_p(made: list[Rows]) -> None:
    for rows in made:
        min_p = rows.shares(0.0, 0.05, 0.5, 1.0)
        check_launch("sample.min_p", "apply_min_p", rows.logits, rows.requests, min_p)


def test_penalties(made: list[Rows]) -> None:
    for rows in made:
        words = -(-VOCABULARY // 32)
        mask = rows.integers(-(2**31), 2**31 - 1, REQUESTS, words)
        counts = rows.integers(0, 3, REQUESTS, VOCABULARY)
        rows.logits[0, 3] = float("-inf")
        check_launch(
            "sample.penalties",
            "apply_penalties",
            *(rows.logits, rows.requests, rows.token_ids, rows.places),
            *(rows.shares(1.0, 1.0, 1.3), rows.shares(0.0, 0.0, 0.7), rows.shares(0.0, 0.0, -0.4)),
            *(mask, counts),
        )


def test_bincount(made: list[Rows]) -> None:
    for rows in made:
        step = rows.step
        check_launch(
            "sample.penalties",
            "bincount",
            *(step.idx_mapping, step.all_token_ids, step.prompt_len, step.prefill_len),
            rows.integers(0, 9, REQUESTS, -(-VOCABULARY // 32)),
            rows.integers(0, 9, REQUESTS, VOCABULARY),
            int(step.prefill_len.max()),
        )


@pytest.mark.parametrize("grammar", [False, True], ids=["plain", "grammar"])
def test_logit_bias(made: list[Rows], grammar: bool) -> None:
    for rows in made:
        width = 4
        tokens = [
            torch.stack(
                [torch.randperm(VOCABULARY, generator=rows.generator)[:width]] * REQUESTS
            ).int()
            for _ in range(3)
        ]
        if grammar:  # only tokens that end the text are allowed
            rows.logits.fill_(float("-inf"))
            rows.logits[:, tokens[2][0, 0]] = 1.5
        check_launch(
            "sample.logit_bias",
            "apply_logit_bias",
            *(rows.logits, rows.requests, rows.integers(0, 30, rows.step.logits).long()),
            *(rows.integers(0, width, REQUESTS) * int(not grammar), tokens[0]),
            *(rows.integers(0, width + 1, REQUESTS), tokens[1]),
            torch.randn(REQUESTS, width, generator=rows.generator),
            *(rows.integers(0, 30, REQUESTS), rows.integers(0, width + 1, REQUESTS)),
            *(rows.integers(0, 2, REQUESTS), tokens[2], grammar),
        )


def test_bad_words(made: list[Rows]) -> None:
    for rows in made:
        step, few = rows.step, 3  # of few tokens, so that words are met
        lengths = rows.integers(1, 4, REQUESTS, 4)
        offsets = torch.cat([torch.zeros(REQUESTS, 1), lengths.cumsum(1)], 1).int()
        ours = check_launch(
            "sample.bad_words",
            "apply_bad_words",
            *(rows.logits, rows.requests, rows.integers(0, few, REQUESTS, 16), offsets),
            *(rows.integers(0, 5, REQUESTS), step.all_token_ids % few, step.prompt_len),
            *(step.total_len, rows.token_ids % few, rows.places, 4),
        )
        assert ours is None


def test_the_end_of_reasoning_is_forced(made: list[Rows]) -> None:
    for rows in made:
        step, few = rows.step, 3  # of few tokens, so that marks are met
        start, end = rows.integers(0, few, int(rows.integers(1, 3, 1))), rows.integers(0, few, 1)
        forced = torch.cat([rows.integers(0, few, int(rows.integers(0, 4, 1))), end])
        budgets = rows.integers(-1, 3, REQUESTS)
        caches = [torch.full((REQUESTS,), value, dtype=torch.int32) for value in (-1, -1, 0)]
        for length in (step.total_len // 2, step.total_len):  # found at once, or further on
            arguments = (
                *(rows.logits, step.idx_mapping, rows.requests, budgets),
                *(step.all_token_ids % few, length, rows.token_ids % few, rows.places),
                *(*caches, start, end, forced),
            )
            check_launch("sample.thinking_budget", "apply_thinking_budget", *arguments)
            with_twins("sample.thinking_budget").apply_thinking_budget(*arguments)  # for its caches


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_grammar_bitmask(made: list[Rows], dtype: torch.dtype) -> None:
    for rows in made:
        stride, step = 4, rows.step
        places = torch.tensor(
            [row * stride + i for row in range(0, step.rows, 2) for i in range(stride)]
        ).int()
        masks = rows.integers(-(2**31), 2**31 - 1, len(places), -(-VOCABULARY // 32))
        ours, theirs = check_kernel(
            "structured_outputs",
            "_apply_grammar_bitmask_kernel",
            (len(places), 1),
            *(rows.logits.to(dtype), VOCABULARY, places, step.cu_num_logits),
            *(masks, masks.shape[1], VOCABULARY),
            MASK_STRIDE=stride,
            BLOCK_SIZE=64,
        )
        same(ours, theirs)
        assert ours[0].isinf().any()


@pytest.mark.parametrize("named", [False, True], ids=["likeliest", "named"])
@pytest.mark.parametrize("likeliest", [0, 3])
def test_logprobs_and_ranks(made: list[Rows], likeliest: int, named: bool) -> None:
    for rows in made:
        rows.logits[0, 1] = float("-inf")
        rows.token_ids[0] = 0  # such a token is never sampled; the kernel ranks it by its padding
        state: Any = None
        if named:
            state = with_twins("sample.logprob").LogprobTokenIdsState(REQUESTS, "cpu")
            state.num_token_ids.np[:] = rows.integers(0, 3, REQUESTS)
            state.token_ids.gpu[:, :2] = rows.integers(0, VOCABULARY, REQUESTS, 2)
            state.num_token_ids.copy_to_uva()
        result = check_launch(
            "sample.logprob",
            "compute_topk_scores",
            *(rows.logits, likeliest, rows.token_ids.long(), None, state),
            *(rows.requests, 2 if named else 0),
            **LOGARITHMS,
        )
        assert result.selected_token_ranks.min() >= 1


def test_bfloat16_has_the_logprobs_and_ranks_of_its_values_in_float32() -> None:
    """The interpreter compares bfloat16 as integers, so it is no oracle here."""
    rows, module = Rows(1), with_twins("sample.logprob")
    narrow = rows.logits.bfloat16()
    results = [
        module.compute_topk_scores(logits, 0, rows.token_ids.long())
        for logits in (narrow, narrow.float())
    ]
    assert results[0].logprobs.equal(results[1].logprobs)
    assert results[0].selected_token_ranks.equal(results[1].selected_token_ranks)
