"""Runs assistants of Gemma 4 inside vLLM: heads that read the target's KV and write none.

Their layers have queries alone, at the newest position whose KV the target has computed. Every
pass of a draft is at that position: it reads the draft before it and the state that the assistant
predicted, and the same KV. So there is nothing to catch up, and no state of an older step to keep.
"""

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any

import numpy as np
import torch

from engine_adapter.proposers.batch import DraftBatch, DraftCollector, Drafts
from engine_adapter.vllm_engine.worker.drafting.head_weights import LoadedQueryHead
from engine_adapter.vllm_engine.worker.drafting.hidden_states import HiddenStateCache
from engine_adapter.vllm_engine.worker.drafting.kv_groups import DraftKVGroups
from engine_adapter.vllm_engine.worker.drafting.paged_head import PagedHead


class PagedQueryHead(PagedHead):
    """An assistant over the target's paged KV."""

    drafts_early = False
    _decodes = False
    _advances = False

    def _create_head(self, *args: Any) -> LoadedQueryHead:
        return LoadedQueryHead(*args)

    def reserve_states(self, reserved: MutableMapping[Any, HiddenStateCache]) -> None:
        """Reserves nothing: it reads the states of the step in which it drafts."""

    def _new_groups(
        self, block_sizes: Mapping[int, int], num_blocks: int, num_rows: int
    ) -> DraftKVGroups[Any]:
        return super()._new_groups({}, num_blocks, num_rows)

    def _slot_gids(self) -> Iterable[int]:
        return self._loaded.kv_cache_gids

    @torch.inference_mode()
    def propose(self, batch: DraftBatch) -> Drafts:
        """Drafts `batch.k[i]` tokens for each row."""
        drafts, rows = DraftCollector(len(batch.rows)), np.flatnonzero(batch.k)
        if rows.size:
            drafting = batch.select(rows)
            newest = self._known_length(drafting) - 1
            with self._loaded.tp_scope():
                outputs = self._forward_span(
                    drafting, np.arange(len(rows)), newest, np.ones_like(newest)
                )
                drafts.set(rows, self._decode_drafts(drafting, newest, outputs))
        return drafts.collect()
