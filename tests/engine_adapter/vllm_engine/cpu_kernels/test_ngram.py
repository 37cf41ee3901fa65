"""The twins of vLLM's n-gram proposer, beside the kernels in Triton's interpreter."""

import pytest
import torch

from tests.engine_adapter.vllm_engine.support.kernel_pairs import check_kernel, same

pytestmark = pytest.mark.needs_vllm

MODULE = "spec_decode.ngram.speculator"
REQUESTS, TEXT, BLOCK, DRAFTS = 6, 40, 16, 5
BLOCKS = -(-TEXT // BLOCK)
SEEDS = (*range(3), pytest.param(range(100, 300), marks=pytest.mark.prove))


@pytest.mark.parametrize("sizes", [(1, 1), (2, 3), (3, 5)], ids=str)
@pytest.mark.parametrize("seeds", SEEDS, ids=str)
def test_the_same_tokens_are_drafted(seeds: int | range, sizes: tuple[int, int]) -> None:
    for seed in seeds if isinstance(seeds, range) else [seeds]:
        generator = torch.Generator().manual_seed(seed)
        tokens = torch.randint(0, 3, (REQUESTS, TEXT), generator=generator).int()
        lengths = torch.randint(1, TEXT + 1, (REQUESTS,), generator=generator).int()
        lengths[seed % REQUESTS] = TEXT
        rows = torch.randperm(REQUESTS, generator=generator)[: 1 + seed % REQUESTS]
        sampled = torch.randint(0, 3, (len(rows),), generator=generator).int()
        scores = torch.full((REQUESTS, BLOCKS), 77)
        shortest, longest = sizes
        ours, theirs = check_kernel(
            *(MODULE, "_ngram_scan_kernel", (len(rows), BLOCKS)),
            *(tokens, TEXT, rows, lengths, sampled, scores, BLOCKS, TEXT),
            *(shortest, longest, 1 << (longest - 1).bit_length(), BLOCK),
        )
        same(ours, theirs)
        last = torch.arange(100, 100 + REQUESTS)
        ours, theirs = check_kernel(
            *(MODULE, "_ngram_finalize_kernel", (len(rows),)),
            *(tokens, TEXT, rows, lengths, sampled, last, theirs[5], BLOCKS),
            *(torch.full((REQUESTS, DRAFTS), 77), TEXT, BLOCKS, DRAFTS, 8, 4),
        )
        same(ours, theirs)
