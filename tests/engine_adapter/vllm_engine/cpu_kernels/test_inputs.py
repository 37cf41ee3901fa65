"""The twins of V2's kernels of input preparation, beside the kernels in Triton's interpreter."""

from inspect import signature

import pytest
import torch

from tests.engine_adapter.vllm_engine.support.kernel_pairs import (
    check_kernel,
    check_launch,
    same,
    with_twins,
)
from tests.engine_adapter.vllm_engine.support.v2_steps import (
    DRAFTS,
    REQUESTS,
    VOCABULARY,
    WIDTH,
    RandomStep,
    random_step,
)

pytestmark = pytest.mark.needs_vllm

SEEDS = (*range(2), pytest.param(range(100, 400), marks=pytest.mark.prove))


@pytest.fixture(params=SEEDS, ids=str)
def steps(request: pytest.FixtureRequest) -> list[RandomStep]:
    seeds = request.param if isinstance(request.param, range) else [request.param]
    return [random_step(seed) for seed in seeds]


def garbage(*shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    """What a buffer still holds: a kernel may overwrite no more than its part."""
    return torch.arange(77, 77 + torch.Size(shape).numel(), dtype=dtype).reshape(shape)


@pytest.mark.parametrize("lookahead", [1, 3])
def test_prompts_tokens_are_copied(steps: list[RandomStep], lookahead: int) -> None:
    for step in steps:
        check_launch(
            "input_batch",
            "prepare_prefill_inputs",
            *(garbage(step.tokens + 2), garbage(lookahead, REQUESTS)),
            *(step.idx_mapping, step.query_start_loc, step.all_token_ids),
            *(step.prefill_len, step.num_computed_tokens),
        )


def test_tokens_get_positions_and_rows_lengths(steps: list[RandomStep]) -> None:
    for step in steps:
        check_launch(
            "input_batch",
            "prepare_pos_seq_lens",
            *(step.idx_mapping, step.query_start_loc, step.num_computed_tokens),
            *(garbage(step.tokens + 2, dtype=torch.int64), garbage(REQUESTS + 2)),
        )


@pytest.mark.parametrize("num_dims", [3, 4])
def test_tokens_get_positions_in_several_dimensions(steps: list[RandomStep], num_dims: int) -> None:
    for step in steps:
        positions = garbage(num_dims, step.tokens + 1, dtype=torch.int64)
        ours, theirs = check_kernel(
            "mm.rope",
            "_prepare_rope_positions_kernel",
            (step.rows,),
            *(positions, positions.stride(0)),
            *(garbage(REQUESTS * num_dims, WIDTH), num_dims * WIDTH, WIDTH),
            *(torch.arange(REQUESTS, dtype=torch.int32) - 3, step.idx_mapping),
            *(step.query_start_loc, step.prefill_len, step.num_computed_tokens),
            BLOCK_SIZE=16,
            NUM_DIMS=num_dims,
        )
        same(ours[0], theirs[0])
        assert not torch.equal(ours[0], positions)


@pytest.mark.parametrize("sampled", [(REQUESTS,), (REQUESTS, 1)], ids=["flat", "column"])
def test_sampled_tokens_and_drafts_join_the_input(
    steps: list[RandomStep], sampled: tuple[int, ...]
) -> None:
    for step in steps:
        check_launch(
            "input_batch",
            "combine_sampled_and_draft_tokens",
            *(garbage(step.tokens + 2), step.idx_mapping, garbage(*sampled, dtype=torch.int64)),
            *(step.query_start_loc, step.seq_lens, step.prefill_len, step.draft_tokens),
            *(step.cu_num_logits, step.logits),
        )


def test_a_step_of_drafts_alone_has_no_sampled_token() -> None:
    """With `num_new_sampled_tokens` 0 every logit is that of a draft."""
    step = random_step(3)
    check_launch(
        "input_batch",
        "combine_sampled_and_draft_tokens",
        *(garbage(step.tokens + 2), step.idx_mapping, garbage(REQUESTS, dtype=torch.int64)),
        *(step.query_start_loc, step.seq_lens, step.prefill_len),
        *(torch.cat([step.draft_tokens] * 2, 1), step.cu_num_logits, step.logits, 0),
    )


def test_rejected_drafts_are_counted(steps: list[RandomStep]) -> None:
    for step in steps:
        logits = step.cu_num_logits.diff()
        sampled = torch.where(torch.arange(step.rows) % 2 == 0, logits, 1).int()
        check_launch(
            "input_batch",
            "get_num_sampled_and_rejected",
            *(sampled, step.seq_lens, step.cu_num_logits, step.idx_mapping, step.prefill_len),
        )


@pytest.mark.parametrize("counts", [True, False], ids=["counts", "no counts"])
@pytest.mark.parametrize("tokens", [True, False], ids=["tokens", "no tokens"])
def test_results_are_noted(steps: list[RandomStep], counts: bool, tokens: bool) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(1)
        sampled = torch.randint(0, VOCABULARY, (step.rows, DRAFTS + 1), generator=generator)
        number = torch.arange(step.rows, dtype=torch.int32) % (DRAFTS + 2)
        bins = garbage(REQUESTS, VOCABULARY) if counts else None
        idx_mapping = step.idx_mapping.clone()
        idx_mapping[::3] = -1  # a row to pass over
        check_launch(
            "input_batch",
            "post_update",
            *(idx_mapping, step.num_computed_tokens, garbage(REQUESTS, 1, dtype=torch.int64)),
            *(bins, sampled, number, (number + 1) % 3, step.query_start_loc if tokens else None),
            *(step.all_token_ids, step.total_len),
        )


def test_the_next_steps_drafts_are_noted(steps: list[RandomStep]) -> None:
    if "draft_tokens" not in signature(with_twins("input_batch").post_update).parameters:
        pytest.skip("since vLLM 0.33")
    for step in steps:
        idx_mapping = step.idx_mapping.clone()
        idx_mapping[::3] = -1
        number = torch.arange(step.rows, dtype=torch.int32) % (DRAFTS + 2)
        check_launch(
            "input_batch",
            "post_update",
            *(idx_mapping, step.num_computed_tokens, garbage(REQUESTS, 1, dtype=torch.int64)),
            *(None, garbage(step.rows, DRAFTS + 1) % VOCABULARY, number, number % 3),
            *(step.query_start_loc, step.all_token_ids, step.total_len),
            *(garbage(step.rows, DRAFTS, dtype=torch.int64) % VOCABULARY, step.draft_tokens),
        )


def test_recurrent_layers_learn_the_accepted_tokens(steps: list[RandomStep]) -> None:
    for step in steps:
        idx_mapping = step.idx_mapping.clone()
        idx_mapping[1::3] = -1
        number = torch.arange(step.rows, dtype=torch.int32) % (DRAFTS + 2)
        for name, arguments in (
            ("_scatter_num_accepted_kernel", (idx_mapping, number, garbage(REQUESTS))),
            ("_fill_num_accepted_kernel", (idx_mapping, garbage(REQUESTS), 3)),
        ):
            same(*check_kernel("model_states.mamba_hybrid", name, (step.rows,), *arguments))


def test_tokens_without_samples_count_as_computed(steps: list[RandomStep]) -> None:
    for step in steps:
        arguments = (step.idx_mapping, step.num_computed_tokens, step.query_start_loc)
        check_launch("input_batch", "post_update_num_computed_tokens", *arguments)


def test_each_logit_gets_its_request_and_place(steps: list[RandomStep]) -> None:
    for step in steps:
        arguments = (step.idx_mapping, step.logits, step.cu_num_logits, DRAFTS + 1)
        check_launch("input_batch", "expand_idx_mapping", *arguments)


def test_prompts_next_tokens_are_found(steps: list[RandomStep]) -> None:
    for step in steps:
        check_launch(
            "sample.prompt_logprob",
            "get_prompt_logprobs_token_ids",
            *(step.tokens, step.query_start_loc, step.idx_mapping),
            *(step.num_computed_tokens, step.all_token_ids),
        )
