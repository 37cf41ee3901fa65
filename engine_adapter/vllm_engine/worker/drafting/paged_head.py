"""Runs EAGLE heads and MTP layers inside vLLM: `paged_model` with the target's hidden states.

At the KV position p a head reads token p + 1 and the target's hidden state of position p (EAGLE,
arXiv 2401.15077; EAGLE-3, arXiv 2503.01840, which combines states of several of its layers;
multi-token prediction, arXiv 2412.19437). The target's states of every slot are stored, so a head
catches up like a draft model. With the option `keep_states` false they are not: the head drafts for
a row only if nothing is missing before the step's own tokens.

While drafting, a head reads states of its own. The KV that it writes then is not reused, as in
vLLM: these positions are run again with the target's states.
"""

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.batch import DraftBatch, DraftCollector, Drafts
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_options import KEEP_STATES
from engine_adapter.proposers.eagle import aux_layers
from engine_adapter.vllm_engine.worker.drafting.draft_passes import ForwardOutputs
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import ForwardInputs, Ints
from engine_adapter.vllm_engine.worker.drafting.head_weights import AnyHead, LoadedHead
from engine_adapter.vllm_engine.worker.drafting.hidden_states import (
    HiddenStateCache,
    StepStates,
)
from engine_adapter.vllm_engine.worker.drafting.kv_groups import DraftKVGroups, GroupBlocks
from engine_adapter.vllm_engine.worker.drafting.kv_ledger import BlockEnds, HeadKVLedger
from engine_adapter.vllm_engine.worker.drafting.paged_model import PagedDraftModel

Bools = npt.NDArray[np.bool_]


class PagedHead(PagedDraftModel):
    """A head over vLLM's paged KV.

    Attributes:
        aux_layers: the target's layers whose outputs it combines, ascending; none if it reads the
            target's final hidden state. Known once it is loaded.
    """

    _loaded: AnyHead
    _token_offset = 1
    reads_images = True  # the target's states tell it of them

    def _create_loaded(self, *args: Any) -> AnyHead:
        self._spec: ProposerSpec = args[0]
        self._vllm_config = args[1]
        self.aux_layers: tuple[int, ...] = ()
        self._states: HiddenStateCache | None = None
        self._owns_states = False
        self._step_states: StepStates | None = None
        return self._create_head(*args)

    @property
    def keeps_states(self) -> bool:  # type: ignore[override]
        """Whether the target's states are kept; otherwise a pass reads those of the step."""
        return self._step_states is None

    def _create_head(self, *args: Any) -> AnyHead:
        return LoadedHead(*args)

    # -- set-up ------------------------------------------------------------------------------

    def load(self, target: Any) -> None:
        """See `PagedDraftModel.load`."""
        super().load(target)
        if self._loaded.reads_aux_layers:
            layers = aux_layers(vars(self._loaded.draft_model_config.hf_config))
            # The target returns them in ascending order.
            self.aux_layers = layers or tuple(
                sorted(set(target.get_eagle3_default_aux_hidden_state_layers()))
            )

    def reserve_states(self, reserved: MutableMapping[Any, HiddenStateCache]) -> None:
        """Reserves space for the target's states in every block, if they are kept.

        Args:
            reserved: the spaces of the heads before, by what they hold. A head that reads the same
                uses the same one.
        """
        if not self._spec.options[KEEP_STATES]:
            return
        width = self._loaded.hidden_size
        # Layers are combined by the head's own weights; the final states are those of every head.
        contents = width, self.aux_layers, self._spec.model if self.aux_layers else None
        self._owns_states = contents not in reserved
        if self._owns_states:
            name = f"{self._loaded.prefix}.target_states.0"
            reserved[contents] = HiddenStateCache(name, width, self._vllm_config)
        self._states = reserved[contents]

    def bind_kv_cache(self, kv_cache_config: Any, kernel_block_sizes: list[int]) -> None:
        """See `PagedDraftModel.bind_kv_cache`; notes the group of the target's states."""
        super().bind_kv_cache(kv_cache_config, kernel_block_sizes)
        groups = kv_cache_config.kv_cache_groups
        if self._states is None:
            attn_group = self._loaded.draft_attn_groups[0]
            self._states_gid = attn_group.kv_cache_group_id
            size = groups[self._states_gid].kv_cache_spec.block_size
            slots = kv_cache_config.num_blocks * size
            self._step_states = StepStates(attn_group.layer_names[0], slots, self._device)
            return
        self._states_gid = next(
            gid for gid, group in enumerate(groups) if self._states.name in group.layer_names
        )

    def _new_groups(
        self, block_sizes: Mapping[int, int], num_blocks: int, num_rows: int
    ) -> DraftKVGroups[HeadKVLedger]:
        return DraftKVGroups(block_sizes, num_blocks, num_rows, HeadKVLedger)

    def _slot_gids(self) -> Iterable[int]:
        return {*self._kv.ledgers, self._states_gid}

    @property
    def layer_names(self) -> set[str]:
        """Its layers of the KV cache; one holds the target's states, if they are kept."""
        return super().layer_names | ({self._states.name} if self._states else set())

    @property
    def kv_bytes(self) -> int:
        """Bytes of its layers and of the target's states in all KV blocks on this rank.

        States that several heads read are counted for the first one.
        """
        states = self._states.num_bytes if self._states and self._owns_states else 0
        return super().kv_bytes + states

    # -- the target's states -----------------------------------------------------------------

    def store_states(
        self,
        slots: Mapping[str, torch.Tensor],
        final: torch.Tensor,
        by_layer: Mapping[int, torch.Tensor],
    ) -> None:
        """Stores what it needs of the target's hidden states; called in every step.

        Where they are not kept, or another head keeps them, this computes nothing.

        Args:
            slots: layer of the KV cache -> int64 [T or more], the slots of all tokens that the
                target read.
            final: [T, H], its final hidden states.
            by_layer: auxiliary layer -> its output, [T, H].
        """
        layer_states = [by_layer[layer] for layer in self.aux_layers] or [final]
        if self._step_states is not None:
            self._step_states.hold(slots, layer_states)
        elif self._states is not None and self._owns_states:
            states = self._combined(layer_states)
            self._states.write(slots[self._states.name][: len(states)], states)

    def drop_states(self) -> None:
        """Frees the states of the last step, if they are not kept."""
        if self._step_states is not None:
            self._step_states.drop()

    def _combined(self, states: Sequence[torch.Tensor]) -> torch.Tensor:
        """What the head reads of the target's states, each [T, H]: [T, W]."""
        if not self.aux_layers:
            return states[0]
        combined: torch.Tensor = self._loaded.model.combine_hidden_states(
            torch.cat(list(states), -1)
        )
        return combined

    def _read_states(self, inputs: ForwardInputs) -> torch.Tensor:
        """The target's states of the pass's positions, [T, W]."""
        slots = inputs.slots[self._states_gid]
        if self._step_states is not None:
            return self._combined(self._step_states.read(slots))
        assert self._states is not None
        return self._states.read(slots)

    # -- drafting ----------------------------------------------------------------------------

    def _draft_rows(self, batch: DraftBatch, blocks: GroupBlocks, stop: Ints) -> Drafts:
        """Drafts for every row; without kept states, for those that need none of older steps."""
        if self._step_states is None:
            return self._draft(batch, blocks, stop)
        drafts, waiting = DraftCollector(len(batch.rows)), np.arange(len(batch.rows))
        # A row may share blocks that another row has filled in this step: it comes after that one.
        while waiting.size:
            row_blocks = blocks.select(waiting)
            waits = self._needs_older_states(batch.select(waiting), row_blocks, stop[waiting])
            if waits.all():
                break
            rows = waiting[~waits]
            drafts.set(rows, self._draft(batch.select(rows), blocks.select(rows), stop[rows]))
            waiting = waiting[waits]
        return drafts.collect()

    def _needs_older_states(self, batch: DraftBatch, blocks: GroupBlocks, stop: Ints) -> Bools:
        """Rows with a position to run that the target read before this step, bool [R]."""
        missing = self._kv.first_missing(blocks, stop)
        needs: Bools = missing < batch.num_computed
        return needs | self._has_stale_ends(self._block_ends(batch, blocks, stop), missing)

    def _draft(self, batch: DraftBatch, blocks: GroupBlocks, stop: Ints) -> Drafts:
        """Drafts as a draft model does; rows that conflict over a slot draft in turn.

        Rows that share a block and continue after it with different tokens need its last slot
        with different contents. This happens only if the shared prefix ends with a block.
        """
        ends = self._block_ends(batch, blocks, stop)
        if not ends:
            return super()._draft(batch, blocks, stop)
        if self._has_others_ends(ends):
            self._kv.unsettle(slice(None))  # every row that shares the block has to look at it
            blocks = self._blocks(batch, stop)
            ends = self._block_ends(batch, blocks, stop)
        waits = self._waits(ends, len(batch.rows))
        if waits.any():
            drafts = DraftCollector(len(batch.rows))
            for rows in np.flatnonzero(~waits), np.flatnonzero(waits):
                drafts.set(rows, self._draft(batch.select(rows), blocks.select(rows), stop[rows]))
            return drafts.collect()
        rewritten = self._rewrite_stale_ends(batch, blocks, stop, ends)
        drafted = super()._draft(batch, blocks, stop)
        if not rewritten:
            return drafted
        return replace(drafted, catchup_tokens=drafted.catchup_tokens + rewritten)

    def _must_wait(
        self, batch: DraftBatch, blocks: GroupBlocks, num_before: Ints, missing: Ints
    ) -> Bools:
        """Rows that need states of older steps, or conflict with another row over a slot."""
        ends = self._block_ends(batch, blocks, num_before)
        waits = self._waits(ends, len(batch.rows)) | self._has_stale_ends(ends, missing)
        if self._step_states is not None:
            waits |= missing < batch.num_computed
        return waits

    def _record_early(self, batch: DraftBatch, blocks: GroupBlocks, stop: Ints) -> None:
        super()._record_early(batch, blocks, stop)
        for gid, ends in self._block_ends(batch, blocks, stop).items():
            self._kv.ledgers[gid].record(ends)

    def _block_ends(
        self, batch: DraftBatch, blocks: GroupBlocks, stop: Ints
    ) -> dict[int, BlockEnds]:
        """In each group, the ends of the unsettled blocks that the rows fill, if there are any."""
        by_group = {
            gid: ledger.block_ends(blocks[gid], stop, batch.token_ids, batch.rows)
            for gid, ledger in self._kv.ledgers.items()
        }
        return {gid: ends for gid, ends in by_group.items() if ends.row.size}

    def _has_stale_ends(self, ends: Mapping[int, BlockEnds], missing: Ints) -> Bools:
        """Rows with an end that holds valid KV with another row's token, bool [R]."""
        has_stale = np.zeros(len(missing), np.bool_)
        for gid, group_ends in ends.items():
            is_stale = self._kv.ledgers[gid].is_stale(group_ends)
            is_valid = group_ends.position < missing[group_ends.row]
            has_stale[group_ends.row[is_stale & is_valid]] = True
        return has_stale

    def _has_others_ends(self, ends: Mapping[int, BlockEnds]) -> bool:
        """Whether another row, which may have settled it, has written one of the ends."""
        ledgers = self._kv.ledgers
        return any(ledgers[gid].is_others(of_group).any() for gid, of_group in ends.items())

    def _waits(self, ends: Mapping[int, BlockEnds], num_rows: int) -> Bools:
        """Rows that must wait for another one in any group, bool [R]: see `must_wait`.

        In each group the last of the conflicting rows does not wait, so one row never waits.
        """
        waits = np.zeros(num_rows, np.bool_)
        if num_rows > 1:
            for gid, group_ends in ends.items():
                waits |= self._kv.ledgers[gid].must_wait(group_ends, num_rows)
        return waits

    def _known_length(self, batch: DraftBatch) -> Ints:
        """The positions whose next token is known; in the middle of a prompt, all of them."""
        num_known = self._runner.input_batch.num_tokens_no_spec[batch.rows]
        return np.minimum(batch.num_tokens, num_known - 1)

    def _rewrite_stale_ends(
        self,
        batch: DraftBatch,
        blocks: GroupBlocks,
        stop: Ints,
        ends: Mapping[int, BlockEnds],
    ) -> int:
        """Runs the block ends that hold valid KV with another row's token; returns how many."""
        ledgers = self._kv.ledgers
        stale = {gid: ledgers[gid].is_stale(group_ends) for gid, group_ends in ends.items()}
        if not any(is_stale.any() for is_stale in stale.values()):
            return 0
        missing = self._kv.first_missing(blocks, stop)
        row = np.concatenate([ends[gid].row[is_stale] for gid, is_stale in stale.items()])
        position = np.concatenate([ends[gid].position[is_stale] for gid, is_stale in stale.items()])
        is_valid = position < missing[row]
        num_rewritten = 0
        if is_valid.any():
            # A pass writes the position in every group.
            positions = np.unique(np.stack([row, position], axis=1)[is_valid], axis=0)
            num_rewritten = len(positions)
            for begin in range(0, num_rewritten, self._max_num_tokens):
                rows, places = positions[begin : begin + self._max_num_tokens].T
                self._forward_span(batch, rows, places, np.ones_like(rows))
        for gid, group_ends in ends.items():
            ledgers[gid].record(group_ends)
        return num_rewritten

    def _first_uncached(self, batch: DraftBatch, missing: Ints) -> Ints:
        """`missing`: the KV of drafts was written with the head's own states."""
        return missing

    def _record_drafted(
        self, batch: DraftBatch, rows: npt.NDArray[np.intp], drafts: Drafts
    ) -> None:
        """Nothing: see `_first_uncached`."""

    def _call_model(
        self,
        model_inputs: dict[str, torch.Tensor],
        inputs: ForwardInputs,
        recurrent: torch.Tensor | None,
    ) -> ForwardOutputs:
        loaded: Any = self._loaded
        padded = model_inputs["input_ids"].shape[0]
        states = self._read_states(inputs) if recurrent is None else recurrent
        outputs = loaded.model(
            **model_inputs, hidden_states=loaded.placed(loaded.hidden_states, states, padded)
        )
        # Most MTP layers read the states that their logits come from.
        return outputs if isinstance(outputs, tuple) else (outputs, outputs)
