"""The batch of vLLM's runner after a step, with junk where reading is an error."""

from collections.abc import Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from tests.engine_adapter.vllm_engine.support.toy_models import VOCAB
from tests.engine_adapter.vllm_engine.support.toy_scheduler import Request

NUM_ROWS = 64


class ToyBatches:
    """Makes the batch of each step. A request has one row, any free one, while it runs.

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
        self._row_of: dict[str, int] = {}

    def make(
        self,
        requests: Mapping[str, Request],
        running: Collection[str],
        before: Mapping[str, int],
    ) -> SimpleNamespace:
        """The batch after a step.

        Args:
            requests: every request, by its id.
            running: the requests that have rows.
            before: of the requests in the step, how many tokens each had computed before it.
        """
        self._row_of = {name: row for name, row in self._row_of.items() if name in running}
        for name in before:
            if name not in self._row_of:
                free = set(range(NUM_ROWS)).difference(self._row_of.values())
                self._row_of[name] = int(self._rng.choice(sorted(free)))
        tokens = self._rng.integers(0, VOCAB, (NUM_ROWS, self._max_model_len)).astype(np.int32)
        counts = np.zeros((3, NUM_ROWS), np.int32)
        for name, computed in before.items():
            request, row = requests[name], self._row_of[name]
            tokens[row, : len(request.tokens)] = request.tokens
            counts[:, row] = len(request.tokens), request.prompt, computed
        num_tokens, num_prompt_tokens, num_computed = counts
        of_step = [(self._row_of[name], requests[name]) for name in before]
        return SimpleNamespace(
            top_k_cpu=np.full(NUM_ROWS, VOCAB, np.int32),
            top_p_cpu=np.ones(NUM_ROWS, np.float32),
            req_ids={row: name for name, row in self._row_of.items()},
            req_id_to_index=dict(self._row_of),
            num_tokens_no_spec=num_tokens,
            num_prompt_tokens=num_prompt_tokens,
            num_computed_tokens_cpu=num_computed,
            num_computed_before=lambda rows: num_computed[rows],
            token_ids_cpu=tokens,
            block_table=[self._block_table(gid, of_step) for gid in range(len(self._block_sizes))],
        )

    def _block_table(self, gid: int, of_step: Sequence[tuple[int, Request]]) -> Any:
        """vLLM's table of a KV cache group, of kernel blocks."""
        size, kernel_size = self._block_sizes[gid], self._kernel_sizes[gid]
        ratio, width = size // kernel_size, -(-self._max_model_len // size)
        table = self._rng.integers(0, self._num_blocks, (NUM_ROWS, width)).astype(np.int32)
        for row, request in of_step:
            blocks = request.group_blocks[gid]
            table[row, : len(blocks)] = blocks
        kernel = (table[:, :, None] * ratio + np.arange(ratio)).reshape(NUM_ROWS, width * ratio)
        kernel = kernel.astype(np.int32)
        return SimpleNamespace(
            block_size=kernel_size,
            get_numpy_array=lambda: kernel,
            get_device_tensor=lambda num_reqs: torch.from_numpy(kernel)[:num_reqs],
        )
