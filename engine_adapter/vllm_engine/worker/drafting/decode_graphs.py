"""CUDA graphs of the passes of one token, from which a model drafts after its first pass.

A graph of pieces leaves to Python, in each pass, the inputs, the metadata of attention and the call
of each piece, which takes longer than a small model on the device. Here one graph is a whole pass:
it computes the slots, runs the model, takes the likeliest token, and writes the inputs of the next
pass where that one reads them. So k - 1 replays give the drafts after the first. vLLM's own heads
do the same in one graph for all passes (`v1/worker/gpu/spec_decode`); a graph of one pass serves
every k.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from engine_adapter.proposers.staging import to_device
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.drafting.draft_passes import ForwardOutputs
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import (
    ForwardInputBuilder,
    ForwardInputs,
    Ints,
)
from engine_adapter.vllm_engine.worker.drafting.weights import LoadedModel


class DraftPass(Protocol):
    """What a graph captures of a model."""

    def run(
        self,
        tokens: torch.Tensor,
        inputs: ForwardInputs,
        by_layer: Mapping[str, Any],
        recurrent: torch.Tensor | None,
    ) -> ForwardOutputs:
        """Runs the model without graphs of pieces; see `PagedDraftModel.run`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits over the target's vocabulary, [N, V], of hidden states [N, H]."""
        ...


def can_capture(loaded: LoadedModel, num_drafts: int) -> bool:
    """Whether a model's passes can be graphs: its attention reads its metadata on the device."""
    return num_drafts > 1 and all(
        group.kernel_block_size is None and group.supports_draft_decode_metadata_update
        for group in loaded.draft_attn_groups
    )


class DecodeGraphs:
    """The graphs of one model, and the buffers that they read and write. B: the most rows.

    Args:
        draft_pass: the model.
        loaded: its weights.
        builder: of its inputs.
        num_drafts: the most drafts of a row.
    """

    def __init__(
        self,
        draft_pass: DraftPass,
        loaded: LoadedModel,
        builder: ForwardInputBuilder,
        num_drafts: int,
    ) -> None:
        self._draft_pass, self._loaded, self._builder = draft_pass, loaded, builder
        config, device = loaded.vllm_config, loaded.device
        self._manager = compat.CudaGraphManager(
            config, device, compat.CUDAGraphMode.FULL_DECODE_ONLY, decode_query_len=1
        )
        size: int = config.scheduler_config.max_num_seqs
        # Each row's position in the next pass, and the last one that its drafts need: below the
        # first in a row that drafts no more. int64 [2, B].
        self._positions = torch.zeros(2, size, dtype=torch.int64, device=device)
        self._seq_lens = torch.zeros(size, dtype=torch.int32, device=device)
        self._starts = torch.arange(size + 1, dtype=torch.int32, device=device)
        self._tokens = torch.zeros(size, dtype=torch.int64, device=device)
        self._blocks = builder.new_blocks(size)
        # int64 [B, num_drafts], and the place of the next pass's drafts, int64 [1].
        self._drafts = torch.zeros(size, num_drafts, dtype=torch.int64, device=device)
        self._depth = torch.ones(1, dtype=torch.int64, device=device)

    def capture(self) -> None:
        """Captures a pass for each number of rows that vLLM captures steps of one token for."""
        with self._loaded.tp_scope():
            self._manager.capture(self._prepare, f"Capturing drafts of {self._loaded.prefix}")

    def shape(self, num_rows: int) -> Any:
        """vLLM's description of the graph for so many rows; `None` if there is none."""
        shape = self._manager.dispatch(num_rows, num_rows, 1, 0)
        return shape if shape.cg_mode == compat.CUDAGraphMode.FULL else None

    def draft(
        self,
        shape: Any,
        rows: Ints,
        position: Ints,
        k: Ints,
        first_drafts: torch.Tensor,
        recurrent: torch.Tensor,
        behind: torch.Tensor | None,
    ) -> torch.Tensor:
        """The drafts of N rows, int64 [N, largest k]; after a row's k come any valid tokens.

        Args:
            shape: that of `shape(N)`.
            rows: [N], indices into the engine's batch.
            position: int64 [N], of each row's first draft, or a bound.
            k: int [N], at least 1.
            first_drafts: int64 [N].
            recurrent: [N, H], the states of a head after its first pass.
            behind: int [N], on the device, how far each row's position is below the bound; `None`
                if `position` is the position.
        """
        count, size, deepest = len(rows), shape.num_tokens, int(k.max())
        positions = np.array([[0], [-1]]).repeat(size, axis=1)
        positions[:, :count] = position, position + k - 2
        rows_there, positions_there = to_device(self._loaded.device, rows, positions)
        self._positions[:, :size] = positions_there
        if behind is not None:
            self._positions[:, :count] -= behind
        for gid, blocks in self._builder.blocks(rows, rows_there).items():
            self._blocks[gid][:count] = blocks
        self._tokens[:count] = self._drafts[:count, 0] = first_drafts
        if self._loaded.hidden_states is not None:
            self._loaded.hidden_states[:count] = recurrent
        self._depth.fill_(1)
        for _ in range(deepest - 1):
            self._manager.run_fullgraph(shape)
        return self._drafts[:count, :deepest].clone()

    def _prepare(self, shape: Any, warmup: bool) -> Callable[[Any], None]:
        """Prepares a pass without a row that drafts, and returns it: see vLLM's `capture`."""
        size: int = shape.num_tokens
        self._positions[0] = 0
        self._positions[1] = -1
        self._seq_lens.fill_(1)
        self._depth.fill_(1)
        common = self._builder.captured_metadata(
            {gid: blocks[:size] for gid, blocks in self._blocks.items()},
            {gid: buffer[:size] for gid, buffer in self._loaded.slot_buffers.items()},
            self._starts[: size + 1],
            self._seq_lens[:size],
            self._loaded.draft_model_config.max_model_len,
        )
        by_layer = self._loaded.attention_metadata(common, captured=True)
        return lambda _mode: self._run_pass(size, by_layer)

    def _run_pass(self, size: int, by_layer: dict[str, Any]) -> None:
        """One pass of `size` rows. No KV is written for a row that drafts no more."""
        loaded, states = self._loaded, self._loaded.hidden_states
        position, last_position = self._positions[:, :size]
        place = torch.minimum(position, last_position).clamp_(min=0)
        self._seq_lens[:size] = place + 1
        slots = {
            gid: torch.where(position <= last_position, group_slots, -1)
            for gid, group_slots in self._builder.slots_on_device(
                {gid: blocks[:size] for gid, blocks in self._blocks.items()}, place
            ).items()
        }
        for group in loaded.draft_attn_groups:
            group.update_draft_decode_metadata(by_layer)
        rows = np.arange(size)
        inputs = ForwardInputs(rows, rows, place, slots, {}, self._tokens[:size])
        output, recurrent = self._draft_pass.run(
            inputs.tokens, inputs, by_layer, None if states is None else states[:size]
        )
        newest = self._draft_pass.logits(output).argmax(dim=-1)
        self._drafts[:size].scatter_(1, self._depth.expand(size, 1), newest[:, None])
        self._tokens[:size] = newest
        if states is not None:
            states[:size] = recurrent
        position += 1
        self._depth += 1
