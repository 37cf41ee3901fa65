"""Runs DFlash and DSpark heads inside vLLM: one pass for all drafts of a row.

Sources: arXiv 2602.06036 (DFlash), github.com/deepseek-ai/DeepSpec (DSpark).

The head's KV of a committed position is a projection of the target's hidden state there, which does
not depend on later tokens: it is valid for every row that shares the position, and catch-up only
projects stored states. A pass reads a block: the newest token and mask tokens, whose attention is
not causal in layers without a window. Each mask gives a draft; in a DSpark head the newest token
gives the first one. The drafts of DSpark, DFlash2 and XPress heads depend on those before: see
`place_logits`. The KV that the pass writes is never reused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from engine_adapter.proposers.batch import DraftBatch, DraftCollector, Drafts
from engine_adapter.proposers.draft_table import DraftTable
from engine_adapter.proposers.staging import to_device
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import Ints
from engine_adapter.vllm_engine.worker.drafting.head_weights import LoadedBlockHead
from engine_adapter.vllm_engine.worker.drafting.kv_groups import DraftKVGroups, GroupBlocks
from engine_adapter.vllm_engine.worker.drafting.kv_ledger import DraftKVLedger
from engine_adapter.vllm_engine.worker.drafting.paged_head import Bools, PagedHead
from engine_adapter.vllm_engine.worker.drafting.paged_model import PagedDraftModel
from engine_adapter.vllm_engine.worker.drafting.place_logits import (
    BiasedLogits,
    CandidateLogits,
    Latents,
    PlaceLogits,
    RefinerLatents,
    SelectorLatents,
    product_bias,
)


class PagedBlockHead(PagedHead):
    """A DFlash or DSpark head over vLLM's paged KV."""

    _loaded: LoadedBlockHead
    drafts_early = False
    _decodes = False

    def _create_head(self, *args: Any) -> LoadedBlockHead:
        loaded = LoadedBlockHead(*args)
        self._first_place: int = loaded.first_draft
        self._block: int = self._first_place + args[0].num_speculative_tokens  # tokens
        return loaded

    def _new_groups(
        self, block_sizes: Mapping[int, int], num_blocks: int, num_rows: int
    ) -> DraftKVGroups[Any]:
        return DraftKVGroups(block_sizes, num_blocks, num_rows, DraftKVLedger)

    # -- drafting ----------------------------------------------------------------------------

    def _needs_older_states(self, batch: DraftBatch, blocks: GroupBlocks, stop: Ints) -> Bools:
        needs: Bools = self._kv.first_missing(blocks, stop) < batch.num_computed
        return needs

    def _draft(self, batch: DraftBatch, blocks: GroupBlocks, stop: Ints) -> Drafts:
        """Computes the missing KV of each row's first `stop` positions, then drafts."""
        batch = replace(batch, k=np.minimum(batch.k, self._block - self._first_place))
        missing = self._kv.first_missing(blocks, stop)
        self._project_states(batch, missing, stop)
        self._kv.mark_valid(blocks, stop)
        caught_up = int(np.maximum(np.minimum(batch.num_computed, stop) - missing, 0).sum())
        drafts = DraftCollector(len(batch.rows))
        drafts_here = batch.k > 0
        if self._loaded.needs_whole_blocks:
            drafts_here &= stop + self._block <= self._context
        drafting = np.flatnonzero(drafts_here)
        together = max(self._max_num_tokens // self._block, 1)
        for begin in range(0, len(drafting), together):
            rows = drafting[begin : begin + together]
            drafts.set(rows, self._draft_block(batch, rows, stop[rows]))
        return replace(drafts.collect(), catchup_tokens=caught_up)

    def _project_states(self, batch: DraftBatch, start: Ints, stop: Ints) -> None:
        """Writes the KV of the positions [start, stop) of each row, in chunks."""
        builder, position = self._input_builder(), start.copy()
        while (remaining := stop - position).any():
            remaining_budget = np.maximum(
                self._max_num_tokens - (np.cumsum(remaining) - remaining), 0
            )
            length = np.minimum(remaining, remaining_budget)
            rows = np.flatnonzero(length)
            inputs = builder.prefill(batch.rows[rows], position[rows], length[rows])
            self._loaded.model.precompute_and_store_context_kv(
                self._read_states(inputs),
                inputs.positions,
                self._loaded.context_slots(inputs.slots),
            )
            position += length

    def _draft_block(self, batch: DraftBatch, rows: Ints, start: Ints) -> Drafts:
        """One pass over the blocks of some rows; the drafts of these rows.

        Every row has all masks, also with a smaller k: a draft depends on how many there are. There
        are fewer only where the context ends; a head that needs whole blocks drafts nothing there.

        Args:
            rows: [N], indices into the batch.
            start: int64 [N], the position of each row's newest token.
        """
        length = np.minimum(self._block, self._context - start)
        inputs = self._input_builder().prefill(batch.rows[rows], start, length, batch.token_ids)
        tokens = torch.full_like(inputs.tokens, self._loaded.mask_token)
        begin = inputs.starts[:-1]
        newest = tokens[begin] = inputs.tokens[begin]
        states, _ = self._forward(tokens, inputs)
        k = batch.k[rows]
        # Of each place that gives a draft: its row, and how many drafts precede it there.
        row = np.repeat(np.arange(len(rows)), k)
        depth = np.arange(len(row)) - (np.cumsum(k) - k)[row]
        first_place = np.cumsum(length) - length + self._first_place
        places, table_index = to_device(
            self._device, first_place[row] + depth, row * k.max() + depth
        )
        logits = self._place_logits(states, places, newest)
        likeliest = logits.all_likeliest() if batch.sampling is None else None
        if likeliest is None:
            return self._draw(batch, rows, logits, newest)
        table = table_index.new_zeros(len(rows), int(k.max()))
        table.view(-1)[table_index] = likeliest
        return batch.select(rows).truncate(DraftTable(table).rows())

    @property
    def _context(self) -> int:
        """The positions of a row, of the target and of the head."""
        return min(self._runner.max_model_len, self.max_model_len)

    def _place_logits(
        self, block_states: torch.Tensor, places: torch.Tensor, newest: torch.Tensor
    ) -> PlaceLogits:
        """The logits of the places that give drafts.

        Args:
            block_states: [at least all tokens of the N blocks, H].
            places: int64 [T], where they are among these.
            newest: int [N], the token with which each block begins.
        """
        loaded, states = self._loaded, block_states[places]
        if loaded.has_markov_head:
            return BiasedLogits(self.logits(states), loaded.add_markov_bias)
        latents: Latents
        if (selector := loaded.selector) is not None:
            latents, readout = SelectorLatents(selector, states), selector.successor_codebook
        elif (refiner := loaded.refiner) is not None:
            blocks = block_states[: len(newest) * self._block].view(len(newest), self._block, -1)
            latents, readout = RefinerLatents(refiner, blocks, newest, places), refiner.w2.weight
        else:
            return PlaceLogits(self.logits(states))
        if not loaded.num_candidates:
            return BiasedLogits(self.logits(states), product_bias(latents, readout))
        return CandidateLogits(*loaded.candidates(states), latents, readout)

    def _draw(
        self, batch: DraftBatch, rows: Ints, logits: PlaceLogits, newest: torch.Tensor
    ) -> Drafts:
        """The drafts that the batch's sampler draws, or the most likely ones; depth by depth.

        Args:
            rows: [N], indices into the batch.
            logits: of the first k[i] places of the i-th row that give drafts, row by row.
            newest: int32 [N], the newest token of each row.
        """
        k, sampling = batch.k[rows], batch.sampling
        shape, first_place = (len(rows), int(k.max())), np.cumsum(k) - k
        tokens = torch.zeros(shape, dtype=torch.int64, device=self._device)
        q: torch.Tensor | None = None
        if sampling is not None and sampling.samples:
            q = torch.empty(*shape, self._vocab_size, device=self._device)
        rows_by_depth = [np.flatnonzero(k > depth) for depth in range(shape[1])]
        places_of = [first_place[drafting] + depth for depth, drafting in enumerate(rows_by_depth)]
        on_device = to_device(self._device, *rows_by_depth, *places_of)
        for depth, drafting in enumerate(rows_by_depth):
            index, places = on_device[depth], on_device[depth + shape[1]]
            previous = tokens[index, depth - 1] if depth else newest[index]
            if sampling is None:
                tokens[index, depth] = logits.likeliest(places, previous)
                continue
            depth_logits = logits.after(places, previous)
            tokens[index, depth], q_of_depth = sampling.draw(depth_logits, rows[drafting], depth)
            if q is not None:
                q[index, depth] = q_of_depth
        drafted = DraftTable(tokens).rows()
        return batch.select(rows).truncate(drafted, None if q is None else list(q))

    # Not that of other heads: a block reads no states.
    _call_model = PagedDraftModel._call_model
