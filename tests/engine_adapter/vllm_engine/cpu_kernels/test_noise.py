"""The twin that samples draws the kernel's noise: the same seed and position, the same token."""

from typing import Any

import pytest
import torch

from tests.engine_adapter.vllm_engine.support.kernel_pairs import check_kernel, check_launch, same

pytestmark = pytest.mark.needs_vllm

REQUESTS, ROWS = 6, 5
SEEDS = (1, pytest.param(range(100, 160), marks=pytest.mark.prove))
LOGARITHMS = {"rtol": 1e-6, "atol": 1e-6}
"""Two logarithms, each with an error of one or two units in the last place of a float32."""


def rows(seed: int, vocabulary: int) -> dict[str, Any]:
    """Logits of rows, with their requests' seeds and temperatures; one is greedy, one padding."""
    generator = torch.Generator().manual_seed(seed)
    temperature = torch.rand(REQUESTS, generator=generator) + 0.1
    temperature[[1, 4]] = torch.tensor([0.0, 1.0])
    requests = torch.randint(0, REQUESTS, (ROWS,), generator=generator)
    requests[0], requests[-1] = 1, -1
    lowest, highest = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    logits = 3 * torch.randn(ROWS, vocabulary, generator=generator)
    logits[1, vocabulary // 3 :] = float("-inf")  # as top_k leaves it
    return {
        "logits": logits,
        "requests": requests,
        "temperature": temperature,
        "seeds": torch.randint(lowest, highest, (REQUESTS,), generator=generator),
        "positions": torch.randint(0, 1 << 40, (ROWS,), generator=generator),
    }


def each(seeds: int | range) -> list[int]:
    return list(seeds) if isinstance(seeds, range) else [seeds]


@pytest.mark.parametrize("drafting", [False, True], ids=["target", "draft"])
@pytest.mark.parametrize("divide", [False, True], ids=["as is", "by temperature"])
@pytest.mark.parametrize("wide", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_the_same_token_is_sampled(
    seeds: int | range, wide: bool, divide: bool, drafting: bool
) -> None:
    for seed in each(seeds):
        made = rows(seed, 2500 if seed % 2 else 700)
        cache = torch.zeros(REQUESTS, 3, made["logits"].shape[1]) if drafting else None
        check_launch(
            "sample.gumbel",
            "gumbel_sample",
            *(made["logits"], made["requests"], made["temperature"], made["seeds"]),
            *(made["positions"], divide, drafting, cache, torch.tensor(2), wide),
        )


def test_a_draft_of_each_row_is_kept_in_its_own_column() -> None:
    made = rows(7, 300)
    check_launch(
        "sample.gumbel",
        "gumbel_sample",
        *(made["logits"], made["requests"], made["temperature"], made["seeds"]),
        *(made["positions"], True, True, torch.zeros(REQUESTS, 4, 320)),
        *(torch.tensor([0, 3, 1, 2, 0]), False, made["logits"] + 1),
    )


@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_logit_and_noise_are_those_of_the_kernel(seeds: int | range) -> None:
    """Logits far below the others do not hide the noise: each block has its own best token."""
    for seed in each(seeds):
        made = rows(seed, 2100)
        blocks = 3
        ours, theirs = check_kernel(
            "sample.gumbel",
            "_gumbel_sample_kernel",
            (ROWS, blocks),
            *(torch.zeros(ROWS, blocks, dtype=torch.int64), blocks),
            *(torch.zeros(ROWS, blocks), blocks, None, 0, 0, None, None, 0),
            *(made["logits"], 2100, made["requests"], made["seeds"], made["positions"]),
            *(made["temperature"], 2100),
            BLOCK_SIZE=1024,
            IS_DRAFTING=False,
            APPLY_TEMPERATURE=True,
            USE_FP64=False,
            PER_TOKEN_COL=False,
        )
        same(ours, theirs, **LOGARITHMS)


def test_bfloat16_logits_are_read_as_float32() -> None:
    made = rows(2, 700)
    check_launch(
        "sample.gumbel",
        "gumbel_sample",
        *(made["logits"].bfloat16(), made["requests"], made["temperature"], made["seeds"]),
        *(made["positions"], True, False),
    )
