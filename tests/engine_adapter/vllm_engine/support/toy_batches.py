"""The batch of vLLM's runner after a step, with junk where reading is an error."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.engine_adapter.vllm_engine.support.toy_models import VOCAB
from tests.engine_adapter.vllm_engine.support.toy_scheduler import Request


class ToyBatches:
    """Makes the batch of each step; its rows are in any order.

    Args:
        num_blocks: blocks of each KV cache group.
        block_sizes: tokens per block, for each group.
        kernel_sizes: tokens per kernel block, for each group; each divides the group's block size.
        max_model_len: tokens of the longest sequence.
        seed: of the order and the junk.
    """

    def __init__(
        self,
        num_blocks: int,
        block_sizes: Sequence[int],
        kernel_sizes: Sequence[int],
        max_model_len: int,
        seed: int,
    ) -> None:
        self._num_blocks, self._max_model_len = num_blocks, max_model_len
        self._block_sizes, self._kernel_sizes = block_sizes, kernel_sizes
        self._rng = np.random.default_rng(seed)

    def make(self, requests: Mapping[str, Request], before: Mapping[str, int]) -> SimpleNamespace:
        """The batch after a step.

        Args:
            requests: every request, by its id.
            before: of the requests in the step, how many tokens each had computed before it.
        """
        names = list(before)
        self._rng.shuffle(names)
        every = [requests[name] for name in names]
        tokens = self._rng.integers(0, VOCAB, (len(names), self._max_model_len)).astype(np.int32)
        for row, request in zip(tokens, every, strict=True):
            row[: len(request.tokens)] = request.tokens
        return SimpleNamespace(
            top_k_cpu=np.full(len(names), VOCAB, np.int32),
            top_p_cpu=np.ones(len(names), np.float32),
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            num_tokens_no_spec=np.array([len(r.tokens) for r in every], np.int32),
            num_prompt_tokens=np.array([r.prompt for r in every], np.int32),
            num_computed_tokens_cpu=np.array([before[name] for name in names], np.int32),
            num_computed_before=lambda rows: np.array([before[names[row]] for row in rows]),
            token_ids_cpu=tokens,
            block_table=[self._block_table(gid, every) for gid in range(len(self._block_sizes))],
        )

    def _block_table(self, gid: int, requests: Sequence[Request]) -> Any:
        """vLLM's table of a KV cache group, of kernel blocks."""
        size, kernel_size = self._block_sizes[gid], self._kernel_sizes[gid]
        ratio, width = size // kernel_size, -(-self._max_model_len // size)
        table = self._rng.integers(0, self._num_blocks, (len(requests), width)).astype(np.int32)
        for row, request in zip(table, requests, strict=True):
            blocks = request.group_blocks[gid]
            row[: len(blocks)] = blocks
        kernel = (table[:, :, None] * ratio + np.arange(ratio)).reshape(
            len(requests), width * ratio
        )
        kernel = kernel.astype(np.int32)
        return SimpleNamespace(
            block_size=kernel_size,
            get_numpy_array=lambda: kernel,
            get_device_tensor=lambda num_reqs: torch.from_numpy(kernel)[:num_reqs],
        )
