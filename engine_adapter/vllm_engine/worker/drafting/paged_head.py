"""Running EAGLE and EAGLE-3 heads inside vLLM: `draft_model` with the target's hidden states.

At the KV position p a head reads token p + 1 and the target's hidden state of position p (EAGLE,
arXiv 2401.15077; EAGLE-3, arXiv 2503.01840, which combines states of several of its layers). The
target's states of every slot are kept, so a lag is read like a draft model's. While drafting, a
head goes on from states of its own. The KV that it writes then is not kept, as in vLLM: positions
are read again with the target's state.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from engine_adapter.proposers.batch import DraftBatch, DraftCollector, Drafts
from engine_adapter.proposers.eagle import aux_layers
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import Ints, PassInputs
from engine_adapter.vllm_engine.worker.drafting.hidden_states import HiddenStateCache
from engine_adapter.vllm_engine.worker.drafting.kv_ledger import (
    BlockEnds,
    Blocks,
    DraftKVLedger,
    HeadKVLedger,
)
from engine_adapter.vllm_engine.worker.drafting.paged_model import Outputs, PagedDraftModel
from engine_adapter.vllm_engine.worker.drafting.weights import LoadedHead


class PagedHead(PagedDraftModel):
    """A head over vLLM's paged KV.

    Attributes:
        aux_layers: the target's layers whose outputs it combines, ascending; none if it reads the
            target's final hidden state. Known once it is loaded.
    """

    _shift = 1

    def _make(self, *args: Any) -> LoadedHead:
        self._vllm_config = args[1]
        self.aux_layers: tuple[int, ...] = ()
        self._states: HiddenStateCache | None = None
        return LoadedHead(*args)

    # -- vLLM's set-up -----------------------------------------------------------------------

    def load(self, target: Any) -> None:
        """Loads the weights, and reserves room for the target's states in every block."""
        super().load(target)
        if self._loaded.eagle3_use_aux_hidden_state:
            named = aux_layers(vars(self._loaded.draft_model_config.hf_config))
            # Ascending, as the target gives them out.
            self.aux_layers = named or tuple(
                sorted(set(target.get_eagle3_default_aux_hidden_state_layers()))
            )
        self._states = HiddenStateCache(
            f"{self._loaded.prefix}.target_states.0", self._loaded.hidden_size, self._vllm_config
        )

    def _new_ledger(self, num_blocks: int, block_size: int) -> DraftKVLedger:
        return HeadKVLedger(num_blocks, block_size)

    @property
    def layer_names(self) -> set[str]:
        """The layers of the KV cache that are its own; one holds the target's states."""
        assert self._states is not None
        return super().layer_names | {self._states.name}

    @property
    def kv_bytes(self) -> int:
        """What its layers and the target's states take of all KV blocks, on this rank."""
        assert self._states is not None
        return super().kv_bytes + self._states.num_bytes

    # -- the target's states -----------------------------------------------------------------

    def keep_states(
        self, slots: torch.Tensor, final: torch.Tensor, by_layer: Mapping[int, torch.Tensor]
    ) -> None:
        """Keeps what it needs of the target's hidden states; called in every step.

        Args:
            slots: int64 [T], the KV slots of all tokens that the target read.
            final: [T, H], its final hidden states.
            by_layer: auxiliary layer -> its output, [T, H].
        """
        assert self._states is not None
        if self.aux_layers:
            joined = torch.cat([by_layer[layer] for layer in self.aux_layers], dim=-1)
            final = self._loaded.model.combine_hidden_states(joined)
        self._states.write(slots, final)

    # -- drafting ----------------------------------------------------------------------------

    def _draft(self, batch: DraftBatch, blocks: Blocks, stop: Ints) -> Drafts:
        """See `PagedDraftModel._draft`.

        Rows that share a block and go on behind it with different tokens are drafted for one
        after the other, since they need its last slot differently. It takes a prefix that was
        shared up to the very end of a block.
        """
        assert isinstance(self._ledger, HeadKVLedger)
        ends = self._ledger.ends(blocks, stop, batch.token_ids, batch.rows)
        waits = self._ledger.contested(ends, len(batch.rows))
        if waits.any():
            drafts = DraftCollector(len(batch.rows))
            for rows in np.flatnonzero(~waits), np.flatnonzero(waits):
                drafts.set(rows, self._draft(batch.select(rows), blocks[rows], stop[rows]))
            return drafts.collect()
        mended = self._mend(batch, blocks, stop, ends)
        drafted = super()._draft(batch, blocks, stop)
        return replace(drafted, catchup_tokens=drafted.catchup_tokens + mended)

    def _stop(self, batch: DraftBatch) -> Ints:
        """All positions whose next token is known: a row in mid-prompt knows that of its last."""
        known = self._runner.input_batch.num_tokens_no_spec[batch.rows]
        return np.minimum(batch.num_tokens, known - 1)

    def _mend(self, batch: DraftBatch, blocks: Blocks, stop: Ints, ends: BlockEnds) -> int:
        """Feeds the ends that were read already and hold another row's token; how many."""
        assert isinstance(self._ledger, HeadKVLedger)
        wrong = self._ledger.rewritten(ends)
        if not wrong.any():
            return 0
        missing = self._ledger.first_missing(blocks, stop)
        wrong &= ends.position < missing[ends.row]
        rows, positions = ends.row[wrong], ends.position[wrong]
        for at in range(0, len(rows), self._budget):
            chunk = slice(at, at + self._budget)
            self._feed(batch, rows[chunk], positions[chunk], np.ones_like(rows[chunk]))
        self._ledger.note(ends)
        return len(rows)

    def _remember(self, batch: DraftBatch, i: int, drafts: Ints) -> None:
        """Nothing: the KV was written with the head's own states."""

    def _run(self, padded: int, inputs: PassInputs, states: torch.Tensor | None) -> Outputs:
        assert self._states is not None
        loaded = self._loaded
        given = self._states.read(inputs.slots) if states is None else states
        loaded.hidden_states[: len(inputs.position)] = given
        output, onward = loaded.model(
            input_ids=loaded.input_ids[:padded],
            positions=loaded.positions[:padded],
            hidden_states=loaded.hidden_states[:padded],
        )
        return output, onward
