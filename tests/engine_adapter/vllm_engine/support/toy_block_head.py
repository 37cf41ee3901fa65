"""A toy DFlash or DSpark head: the real paged code without a forward pass; see `toy_models`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from engine_adapter.vllm_engine.worker.drafting.forward_inputs import ForwardInputs
from engine_adapter.vllm_engine.worker.drafting.paged_block_head import PagedBlockHead
from tests.engine_adapter.vllm_engine.support.toy_models import (
    MASK_TOKEN,
    VOCAB,
    ToyForward,
    after,
    next_state,
    target_states,
)

_CONTEXT, _BLOCK = -2, -3
"""Whether the KV of a slot comes from a state of the target or from a block."""


def block_outputs(
    known: Sequence[tuple[float, float]], block: int, drafts: int, layers: Sequence[int]
) -> Any:
    """A head's token at each of the last places of its block.

    They are mostly the twin's. Each depends on all entries, on their number, and on its place.

    Args:
        known: (state, _CONTEXT) for each committed position, then (token, _BLOCK) for each token.
        block: the tokens of the block.
        drafts: how many places.
    """
    folded = 1
    for value, kind in known:
        folded = next_state(folded, int(value) % 1009 + int(kind))
    committed = len(known) - block
    newest = int(known[committed][0])
    state = (int(known[committed - 1][0]) - sum(layers)) // len(layers) if committed else 1
    out = []
    for i in range(drafts):
        state = next_state(state, newest)
        hashed = next_state(folded, i) >> 8
        newest = (state >> 8 if hashed % 5 else hashed) % VOCAB
        out.append(newest)
    return out


class ToyBlockHead(ToyForward, PagedBlockHead):
    """A toy DFlash or DSpark head: its KV holds the combined states, or the tokens of a block."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._loaded.model.precompute_and_store_context_kv = self._store_context

    def continuation(self, tokens: Sequence[int], k: int) -> list[int]:
        context = min(self.world.max_model_len, self.max_model_len)
        length = max(min(self._block, context - len(tokens) + 1), 1)
        block = [tokens[-1], *[MASK_TOKEN] * (length - 1)]
        known = [tuple(entry) for entry in self._committed(tokens).tolist()]
        known += [(token, _BLOCK) for token in block]
        outputs = block_outputs(known, length, length - self._first_place, self.layers)
        drafts: list[int] = []
        for output in outputs[:k]:
            forced = after([*tokens, *drafts][-1]) if self._loaded.has_markov_head else None
            drafts.append(output if forced is None else forced)
        return drafts

    def _project_states(self, batch: Any, start: np.ndarray, stop: np.ndarray) -> None:
        super()._project_states(batch, start, stop)
        for i, request_id in enumerate(batch.request_ids):
            tokens = batch.token_ids[batch.rows[i]]
            span = range(int(start[i]), int(stop[i]))
            self.fed += [(request_id, p, int(tokens[p + self._token_offset])) for p in span]

    def _store_context(
        self, states: torch.Tensor, positions: torch.Tensor, slots: Sequence[torch.Tensor]
    ) -> None:
        assert 0 < len(states) == len(positions) <= self._max_num_tokens
        entries = np.stack([states[:, 0].numpy(), np.full(len(states), _CONTEXT)], 1)
        for store, of_group in zip(self.stores, slots, strict=True):
            store[of_group.numpy()] = entries

    def _committed(self, tokens: Sequence[int]) -> np.ndarray:
        of_layers = [target_states(tokens[:-1], layer) for layer in self.layers]
        combined = np.sum(of_layers, axis=0)
        return np.stack([combined, np.full(len(combined), _CONTEXT)], axis=1)

    def _forward(
        self, tokens: torch.Tensor, inputs: ForwardInputs, recurrent: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        position = inputs.positions.numpy()
        assert len(tokens) == len(position) <= self._max_num_tokens
        assert (position < self.max_model_len).all()
        self.passes += 1
        block = np.stack([tokens.numpy(), np.full(len(tokens), _BLOCK)], axis=1)
        for gid, store in enumerate(self.stores):
            store[inputs.slots[gid].numpy()] = block
        outputs = np.zeros((len(tokens), 1))
        starts = inputs.metadata[0].query_start_loc.numpy()
        for i, row in enumerate(inputs.rows):
            begin, end = starts[i], starts[i + 1]
            request = self.world.requests[self.world.batch.req_ids[row]]
            want = np.concatenate([self._committed(request.tokens), block[begin:end]])
            for gid, metadata in inputs.metadata.items():
                table, seq_len = metadata.block_table_tensor[i], int(metadata.seq_lens[i])
                known = self._read(gid, table, seq_len)
                assert np.array_equal(known, want), f"{request.request_id} reads stale KV"
            entries = [tuple(entry) for entry in want.tolist()]
            first, length = begin + self._first_place, end - begin
            drafts = length - self._first_place
            outputs[first:end, 0] = block_outputs(entries, length, drafts, self.layers)
        result = torch.from_numpy(outputs)
        return result, result

    def _read_in(self, inputs: ForwardInputs, recurrent: torch.Tensor | None) -> np.ndarray:
        raise AssertionError("`_forward` reads and drafts whole blocks")

    def _outputs(self, known: np.ndarray) -> list[tuple[int, float]]:
        raise AssertionError("`_forward` reads and drafts whole blocks")
