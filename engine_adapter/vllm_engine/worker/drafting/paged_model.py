"""Runs a draft model inside vLLM. Its KV lives in the target's blocks.

One routine serves the first pass and every catch-up: run all committed tokens whose draft KV is
missing, take the next token from the last position, then make k - 1 passes of one token. The KV
that drafting itself wrote is reused as far as the drafts were accepted, so a row without a lag
runs one or two tokens, where vLLM's own draft model runs k + 1 again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.batch import DraftBatch, DraftCollector, Drafts
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_table import DraftRow
from engine_adapter.proposers.staging import to_device
from engine_adapter.vllm_engine.worker.drafting.draft_passes import (
    ForwardOutputs,
    gather,
)
from engine_adapter.vllm_engine.worker.drafting.early_drafts import EarlyDrafts, UnreadStep
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import (
    Ints,
)
from engine_adapter.vllm_engine.worker.drafting.kv_groups import DraftKVGroups, GroupBlocks
from engine_adapter.vllm_engine.worker.drafting.kv_ledger import DraftKVLedger
from engine_adapter.vllm_engine.worker.drafting.model_passes import ModelPasses
from engine_adapter.vllm_engine.worker.drafting.weights import LoadedDraft, LoadedModel

_NO_DRAFT: tuple[int, DraftRow | None] = (-1, None)


class PagedDraftModel(ModelPasses):
    """A `Proposer`: a draft model over vLLM's paged KV. Every rank runs the same.

    Attributes:
        max_model_len: the draft model's context length; longer rows get no drafts.
    """

    _token_offset = 0
    """At KV position p the model reads token p + this."""

    reads_images = False
    """Whether it can draft for a prompt with pictures: it would need a token for each placeholder,
    and knows the picture from nothing else."""

    drafts_early = True
    """Whether `draft_early` can draft."""

    def __init__(self, spec: ProposerSpec, vllm_config: Any, device: torch.device, runner: Any):
        self._loaded = self._create_loaded(spec, vllm_config, device)
        super().__init__(spec, vllm_config, device, runner)
        self._max_num_tokens: int = self._loaded.max_num_tokens
        # Request id -> its committed tokens when it was last drafted for, and the drafts.
        self._drafted: dict[str, tuple[int, DraftRow]] = {}
        self._early = EarlyDrafts()
        self._kv = self._new_groups({}, 0, 0)
        self._kv_bytes = 0
        self.max_model_len: int = self._loaded.draft_model_config.max_model_len

    def _create_loaded(self, *args: Any) -> LoadedModel:
        return LoadedDraft(*args)

    # -- set-up, in the order in which vLLM calls ---------------------------------------------

    def load(self, target: torch.nn.Module) -> None:
        """Loads the weights; `target` is the loaded target model."""
        self._loaded.load_model(target)

    def bind_kv_cache(self, kv_cache_config: Any, kernel_block_sizes: list[int]) -> None:
        """Builds the attention groups of the draft's layers, and the ledgers of the blocks."""
        self._loaded.initialize_attn_backend(kv_cache_config, kernel_block_sizes)
        groups = kv_cache_config.kv_cache_groups
        sizes = {gid: groups[gid].kv_cache_spec.block_size for gid in self._loaded.kv_cache_gids}
        num_rows: int = self._runner.max_num_reqs
        self._kv = self._new_groups(sizes, kv_cache_config.num_blocks, num_rows)
        self._builder = None
        with_kv = self._loaded.layers_with_kv
        self._kv_bytes = kv_cache_config.num_blocks * sum(
            group.kv_cache_spec.page_size_bytes * len(with_kv.intersection(group.layer_names))
            for group in self._loaded.draft_attn_groups
        )

    def _new_groups(
        self, block_sizes: Mapping[int, int], num_blocks: int, num_rows: int
    ) -> DraftKVGroups[Any]:
        return DraftKVGroups(block_sizes, num_blocks, num_rows, DraftKVLedger)

    def set_cudagraph_mode(self, mode: Any) -> None:
        """Prepares the CUDA-graph keys for the mode that vLLM chose for the target."""
        self._loaded.initialize_cudagraph_keys(mode)

    def dummy_run(self, num_tokens: int, graphs: bool) -> None:
        """See `LoadedModel.dummy_run`."""
        self._loaded.dummy_run(num_tokens, graphs)

    @property
    def layer_names(self) -> set[str]:
        """Its own layers of the KV cache."""
        return self._loaded.layer_names

    @property
    def weights_bytes(self) -> int:
        """Bytes of its weights on this rank."""
        return self._loaded.weights_bytes

    @property
    def kv_bytes(self) -> int:
        """Bytes of its layers' part of all KV blocks on this rank."""
        return self._kv_bytes

    # -- following the blocks ----------------------------------------------------------------

    def blocks_changed(
        self, new_blocks: Sequence[Sequence[int]], copies: Sequence[tuple[int, int]]
    ) -> None:
        """Follows changed blocks: see `DraftKVGroups.blocks_changed`."""
        self._kv.blocks_changed(new_blocks, copies)

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops which draft KV was written for requests that ended or were preempted."""
        if not request_ids:
            return
        rows_of = self._runner.input_batch.req_id_to_index
        self._kv.unsettle([rows_of[id_] for id_ in request_ids if id_ in rows_of])
        for request_id in request_ids:
            self._drafted.pop(request_id, None)
        self._early.forget(request_ids)

    # -- drafting ----------------------------------------------------------------------------

    @torch.inference_mode()
    def propose(self, batch: DraftBatch) -> Drafts:
        """Drafts `batch.k[i]` tokens for each row.

        KV that is missing for committed tokens is computed first, so drafts do not depend on
        whether the row was switched, hit the prefix cache or was preempted. Rows with early drafts
        have them already.
        """
        stop = self._known_length(batch)
        blocks = self._blocks(batch, stop)
        if not len(self._early):
            with self._loaded.tp_scope():
                return self._draft_rows(batch, blocks, stop)
        rows, drafts = self._early.take(batch)
        if rows.size:
            self._record_early(batch.select(rows), blocks.select(rows), stop[rows])
            self._record_drafted(batch, rows, drafts)
        if rows.size == len(batch.rows):
            return drafts
        with self._loaded.tp_scope():
            all_rows, collector = np.arange(len(batch.rows)), DraftCollector(len(batch.rows))
            collector.set(all_rows, drafts)
            late = np.setdiff1d(all_rows, rows)
            late_batch, late_blocks = batch.select(late), blocks.select(late)
            collector.set(late, self._draft_rows(late_batch, late_blocks, stop[late]))
            return collector.collect()

    @torch.inference_mode()
    def draft_early(self, batch: DraftBatch, step: UnreadStep) -> None:
        """Drafts for rows of a step that is not read yet, until `propose` takes the drafts.

        Args:
            batch: the rows as they were before the step, with at least one draft each; no options
                and no constraint limit these.
            step: what it did.
        """
        num_before = batch.num_tokens - self._token_offset
        blocks = self._blocks(batch, num_before + 1)
        missing = self._kv.first_missing(blocks, num_before)
        rows = np.flatnonzero(~self._must_wait(batch, blocks, num_before, missing))
        step, batch = step.select(rows), batch.select(rows)
        num_before, missing = num_before[rows], missing[rows]
        length = num_before + step.num_drafts + 1 - missing
        if not rows.size or length.sum() > self._max_num_tokens:
            return
        lacks_none = (missing == num_before).all()
        usual = lacks_none and (step.num_drafts == self._num_drafts).all()
        drafts = self._draft_in_graphs(batch, missing, step) if usual else None
        if drafts is None:
            with self._loaded.tp_scope():
                inputs = self._input_builder().prefill(
                    batch.rows, missing, length, batch.token_ids, self._token_offset
                )
                step.place(inputs.tokens, length.cumsum())
                outputs = self._forward(inputs.tokens, inputs)
                prefilled = gather(outputs, inputs.ends - step.num_rejected)
                drafts = self._decode_drafts(batch, missing + length, prefilled, step.num_rejected)
        if not lacks_none:
            self._record_early(batch, blocks.select(rows), num_before)
        caught_up = np.maximum(batch.num_computed - missing, 0)
        self._early.set(batch, step, drafts.tokens, caught_up)

    def _must_wait(
        self, batch: DraftBatch, blocks: GroupBlocks, num_before: Ints, missing: Ints
    ) -> npt.NDArray[np.bool_]:
        """Rows that cannot draft early, bool [R].

        Args:
            num_before: int64 [R], the positions whose token is known.
            missing: int64 [R], the first of them without KV.
        """
        return np.zeros(len(batch.rows), np.bool_)

    def _record_early(self, batch: DraftBatch, blocks: GroupBlocks, stop: Ints) -> None:
        """Notes that each row's first `stop` positions hold KV, by an early pass."""
        self._kv.mark_valid(blocks, stop)

    def _blocks(self, batch: DraftBatch, stop: Ints) -> GroupBlocks:
        """The unsettled blocks of each row, up to its `stop`."""
        tables = self._runner.input_batch.block_table
        return self._kv.blocks(tables, batch.rows, stop)

    def _draft_rows(self, batch: DraftBatch, blocks: GroupBlocks, stop: Ints) -> Drafts:
        """Drafts for the rows whose missing KV can be computed."""
        return self._draft(batch, blocks, stop)

    def _draft(self, batch: DraftBatch, blocks: GroupBlocks, stop: Ints) -> Drafts:
        """Computes the missing KV of each row's first `stop` positions, then drafts."""
        missing = self._kv.first_missing(blocks, stop)
        # A row that drafts always runs its last position, whose output gives the first draft.
        start = np.minimum(self._first_uncached(batch, missing), stop - (batch.k > 0))
        prefilled = self._prefill_missing(batch, start, stop)
        self._kv.mark_valid(blocks, stop)
        caught_up = int(np.maximum(batch.num_computed - start, 0).sum())
        drafts = self._decode_drafts(batch, stop, prefilled)
        self._record_drafted(batch, np.arange(len(batch.rows)), drafts)
        return replace(drafts, catchup_tokens=caught_up) if caught_up else drafts

    def _known_length(self, batch: DraftBatch) -> Ints:
        """How many positions of each row the model can run: int64 [R]."""
        return batch.num_tokens

    def _first_uncached(self, batch: DraftBatch, missing: Ints) -> Ints:
        """The first position to run of each row: `missing`, or after accepted drafts with KV."""
        start = missing.copy()
        for i, request_id in enumerate(batch.request_ids):
            length, drafts = self._drafted.pop(request_id, _NO_DRAFT)
            if drafts is not None and start[i] == length:
                # Drafting wrote KV for all drafts but the last; accepted drafts' KV is valid.
                committed = batch.context(i)[length : length + len(drafts) - 1]
                equal = committed == drafts.numpy()[: len(committed)]
                start[i] += len(committed) if equal.all() else int(equal.argmin())
        return start

    def _prefill_missing(self, batch: DraftBatch, start: Ints, stop: Ints) -> ForwardOutputs:
        """Runs [start, stop) of each row in chunks; the outputs at each row's last position."""
        if (remaining := stop - start).all() and remaining.sum() <= self._max_num_tokens:
            return self._forward_span(batch, np.arange(len(remaining)), start, remaining)
        shape = len(batch.rows), self._loaded.hidden_size
        output, recurrent = torch.empty(2, *shape, dtype=self._loaded.dtype, device=self._device)
        position = start.copy()
        while (remaining := stop - position).any():
            remaining_budget = np.maximum(
                self._max_num_tokens - (np.cumsum(remaining) - remaining), 0
            )
            length = np.minimum(remaining, remaining_budget)
            rows = np.flatnonzero(length)
            outputs = self._forward_span(batch, rows, position[rows], length[rows])
            (index,) = to_device(self._device, rows)
            output[index], recurrent[index] = outputs
            position += length
        return output, recurrent

    def _forward_span(
        self, batch: DraftBatch, rows: Ints, start: Ints, length: Ints
    ) -> ForwardOutputs:
        """One pass over [start, start + length) of some rows; the outputs at their last tokens."""
        inputs = self._input_builder().prefill(
            batch.rows[rows], start, length, batch.token_ids, self._token_offset
        )
        return gather(self._forward(inputs.tokens, inputs), inputs.ends)

    def _record_drafted(
        self, batch: DraftBatch, rows: npt.NDArray[np.intp], drafts: Drafts
    ) -> None:
        """Notes the drafts of some rows, whose KV is written already."""
        for i in rows.tolist():
            drafted = drafts.tokens[i]
            if isinstance(drafted, DraftRow):
                self._drafted[batch.request_ids[i]] = int(batch.num_tokens[i]), drafted

    def _slot_gids(self) -> Iterable[int]:
        return self._kv.ledgers
