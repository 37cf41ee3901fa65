"""Runs DFlash heads inside vLLM: one pass drafts all tokens of a row (arXiv 2602.06036).

The head's KV of a committed position is a projection of the target's hidden state there, which does
not depend on later tokens: it is valid for every row that shares the position, and catch-up only
projects stored states. A pass reads the newest token and k mask tokens, whose attention is not
causal; the i-th mask gives the i-th draft. The KV that the pass writes is never reused.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import ForwardInputs, Ints
from engine_adapter.vllm_engine.worker.drafting.kv_ledger import Blocks, DraftKVLedger
from engine_adapter.vllm_engine.worker.drafting.paged_head import PagedHead
from engine_adapter.vllm_engine.worker.drafting.paged_model import ForwardOutputs
from engine_adapter.vllm_engine.worker.drafting.weights import LoadedBlockHead


class PagedBlockHead(PagedHead):
    """A DFlash head over vLLM's paged KV."""

    _loaded: LoadedBlockHead

    def _create_head(self, *args: Any) -> LoadedBlockHead:
        self._masks: int = args[0].num_speculative_tokens
        return LoadedBlockHead(*args)

    def _new_ledger(self, num_blocks: int, block_size: int) -> DraftKVLedger:
        return DraftKVLedger(num_blocks, block_size)

    # -- drafting ----------------------------------------------------------------------------

    def _draft(self, batch: DraftBatch, blocks: Blocks, stop: Ints) -> Drafts:
        """Computes the missing KV of each row's first `stop` positions, then drafts."""
        assert self._ledger is not None
        missing = self._ledger.first_missing(blocks, stop)
        self._project_states(batch, missing, stop)
        self._ledger.mark_valid(blocks, missing, stop)
        caught_up = int(np.maximum(np.minimum(batch.num_computed, stop) - missing, 0).sum())
        drafts: list[list[int]] = [[] for _ in batch.rows]
        probabilities: list[torch.Tensor | None] = [None] * len(batch.rows)
        rows = np.flatnonzero(batch.k)
        together = max(self._max_num_tokens // (1 + self._masks), 1)
        for at in range(0, len(rows), together):
            some = rows[at : at + together]
            logits = self._block_logits(batch, some, stop[some])
            tokens, q = self._choose(batch, some, logits)
            for i, row, drawn in zip(some, tokens.cpu().numpy(), q, strict=True):
                drafts[i], probabilities[i] = row[: batch.k[i]].tolist(), drawn
        sampled = batch.sampling is not None
        return Drafts(drafts, probabilities if sampled else None, caught_up)

    def _project_states(self, batch: DraftBatch, start: Ints, stop: Ints) -> None:
        """Writes the KV of the positions [start, stop) of each row, in chunks."""
        assert self._states is not None
        builder, position = self._input_builder(), start.copy()
        while (left := stop - position).any():
            remaining_budget = np.maximum(self._max_num_tokens - (np.cumsum(left) - left), 0)
            length = np.minimum(left, remaining_budget)
            rows = np.flatnonzero(length)
            inputs = builder.prefill(batch.rows[rows], position[rows], length[rows])
            states = self._states.read(inputs.slots)
            self._loaded.model.precompute_and_store_context_kv(
                states, inputs.positions, inputs.slots
            )
            position += length

    def _block_logits(self, batch: DraftBatch, rows: Ints, start: Ints) -> torch.Tensor:
        """The logits of each mask of some rows, [rows, masks, V]; -inf where there is no mask.

        Every row has all masks, whatever its k: a draft depends on how many there are. Only where
        the context ends there are fewer.

        Args:
            rows: [N], indices into the batch.
            start: int64 [N], the position of each row's newest token.
        """
        context = min(self._runner.max_model_len, self.max_model_len)
        length = np.minimum(1 + self._masks, context - start)
        inputs = self._input_builder().prefill(batch.rows[rows], start, length)
        metadata = replace(inputs.metadata, causal=self._loaded.dflash_causal)
        stops = np.cumsum(length)
        tokens = np.full(stops[-1], self._loaded.parallel_drafting_token_id, np.int64)
        tokens[stops - length] = batch.token_ids[batch.rows[rows], start]
        output, _ = self._forward(
            torch.from_numpy(tokens).to(self._device), replace(inputs, metadata=metadata)
        )
        masks = np.arange(self._masks)
        has_mask = torch.from_numpy(masks < length[:, None] - 1).to(self._device)
        at = torch.from_numpy((stops - length)[:, None] + 1 + masks).to(self._device)
        shape = (*has_mask.shape, self._vocab_size)
        logits = torch.full(shape, float("-inf"), device=self._device)
        logits[has_mask] = self._logits(output[at[has_mask]]).float()
        return logits

    def _choose(
        self, batch: DraftBatch, rows: Ints, logits: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
        """Tokens [N, masks] of some rows, and the distributions that each was drawn from.

        Args:
            rows: [N], indices into the batch.
            logits: [N, masks, V].
        """
        if batch.sampling is None:
            return logits.argmax(dim=-1), [None] * len(rows)
        tokens = torch.zeros(logits.shape[:2], dtype=torch.int64, device=self._device)
        q = torch.empty(logits.shape, device=self._device)
        for depth in range(batch.k[rows].max()):
            drafting = np.flatnonzero(batch.k[rows] > depth)
            index = torch.from_numpy(drafting).to(self._device)
            tokens[index, depth], q[index, depth] = batch.sampling.draw(
                logits[index, depth], rows[drafting], depth
            )
        return tokens, [drawn[: batch.k[i]] for i, drawn in zip(rows, q, strict=True)]

    def _call_model(
        self, padded: int, inputs: ForwardInputs, recurrent: torch.Tensor | None
    ) -> ForwardOutputs:
        loaded = self._loaded
        output: torch.Tensor = loaded.model(
            input_ids=loaded.input_ids[:padded],
            positions=loaded.positions[:padded],
            inputs_embeds=None,
        )
        return output, output
