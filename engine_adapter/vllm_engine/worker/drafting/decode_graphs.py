"""CUDA graphs of whole passes of a draft model.

A graph of pieces leaves to Python, in each pass, the inputs, the metadata of attention and the call
of each piece, which takes longer than a small model on the device. Here one graph is a whole pass:
it computes the slots, runs the model, takes the likeliest token, and writes the inputs of the next
pass where that one reads them. One replay of a first pass and k - 1 of the later ones, which read
one token a row, give all drafts. vLLM's own heads do the same, with one graph for all later passes
(`v1/worker/gpu/spec_decode`); a graph of one pass serves every k.

A first pass is a graph where all rows have verified as many drafts as the model makes, and lack no
KV: the usual step under asynchronous scheduling.
"""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import torch

from engine_adapter.proposers.staging import to_device
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.drafting.draft_passes import (
    ForwardOutputs,
    gather,
    in_order,
)
from engine_adapter.vllm_engine.worker.drafting.early_drafts import UnreadStep
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import (
    ForwardInputBuilder,
    ForwardInputs,
    Ints,
)
from engine_adapter.vllm_engine.worker.drafting.weights import LoadedModel


class DraftPass(Protocol):
    """What a graph captures of a model."""

    keeps_states: bool
    """Whether all that its first pass reads lies in the KV cache."""

    def run(
        self,
        tokens: torch.Tensor,
        inputs: ForwardInputs,
        by_layer: Mapping[str, Any],
        recurrent: torch.Tensor | None,
    ) -> ForwardOutputs:
        """Runs the model without graphs of pieces; see `ModelPasses.run`."""
        ...

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits over the target's vocabulary, [N, V], of hidden states [N, H]."""
        ...


def can_capture(loaded: LoadedModel, num_drafts: int) -> bool:
    """Whether a model's passes can be graphs: its attention's metadata is updated in a graph."""
    return num_drafts > 1 and all(
        group.kernel_block_size is None
        and group.supports_draft_decode_metadata_update
        and _updates_what_it_builds(type(group.get_metadata_builder()))
        for group in loaded.draft_attn_groups
    )


def _updates_what_it_builds(builder: type) -> bool:
    """Whether the update of a builder of vLLM's knows how it builds.

    The builders of chunked attention and of attention with sinks change what is built and inherit
    the update, as if nothing were changed.
    """
    classes = builder.__mro__
    build, update = (
        next(place for place, of_class in enumerate(classes) if name in vars(of_class))
        for name in ("build", "update_draft_decode_metadata")
    )
    return update <= build


_QUERY_BACKENDS = {"FLASH_ATTN", "TRITON_ATTN"}
"""Attention that computes on the device what it needs of rows with several tokens."""


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
        self._width = num_drafts + 1  # tokens of a row in a first pass
        self._later, self._first = (
            compat.CudaGraphManager(
                config, device, compat.CUDAGraphMode.FULL_DECODE_ONLY, decode_query_len=length
            )
            for length in (1, self._width)
        )
        self._captures_first = draft_pass.keeps_states and all(
            group.backend.get_name() in _QUERY_BACKENDS for group in loaded.draft_attn_groups
        )
        size: int = config.scheduler_config.max_num_seqs
        # Each row's position in the next pass, and the last one that its drafts need: below the
        # first in a row that drafts no more. int64 [2, B].
        self._positions = torch.zeros(2, size, dtype=torch.int64, device=device)
        self._seq_lens = torch.zeros(size, dtype=torch.int32, device=device)
        self._starts = torch.arange(size + 1, dtype=torch.int32, device=device)
        self._first_starts = self._starts * self._width
        # Of a first pass, for each row: where it begins, below 0 without a row; how many of its
        # drafts were rejected; the number of drafts wanted. int64 [3, B].
        self._rows = torch.zeros(3, size, dtype=torch.int64, device=device)
        self._read = torch.zeros(size, self._width, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(size, dtype=torch.int64, device=device)
        self._blocks = builder.new_blocks(size)
        # int64 [B, num_drafts], and the place of the next pass's drafts, int64 [1].
        self._drafts = torch.zeros(size, num_drafts, dtype=torch.int64, device=device)
        self._depth = torch.ones(1, dtype=torch.int64, device=device)

    def capture(self) -> None:
        """Captures passes for each number of rows for which vLLM captures such steps."""
        title = f"Capturing drafts of {self._loaded.prefix}"
        with self._loaded.tp_scope():
            if self._captures_first:
                self._first.capture(self._prepare_first, title)
            self._later.capture(self._prepare_later, title)

    def shape(self, num_rows: int, num_drafts: int) -> Any:
        """vLLM's description of the graph of later passes for so many rows; `None` without one.

        Args:
            num_drafts: the most of a row; more than the graphs have places for have none.
        """
        if num_drafts > self._drafts.shape[1]:
            return None
        return _whole(self._later.dispatch(num_rows, num_rows, 1, 0))

    def first_shape(self, num_rows: int, num_drafts: int) -> Any:
        """That of first passes for so many rows, if there are later ones, too."""
        if not self._captures_first or self.shape(num_rows, num_drafts) is None:
            return None
        return _whole(self._first.dispatch(num_rows, num_rows * self._width, self._width, 0))

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
            shape: that of `shape` for these rows.
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
            self._later.run_fullgraph(shape)
        return self._drafts[:count, :deepest].clone()

    def draft_after(
        self, shape: Any, rows: Ints, start: Ints, k: Ints, step: UnreadStep
    ) -> torch.Tensor:
        """The drafts of N rows after a step, from their first passes on: see `draft`.

        Args:
            shape: that of `first_shape` for these rows.
            start: int64 [N], where the tokens that the step emitted begin.
            step: of the rows; each has verified as many drafts as the model makes.
        """
        count, size, deepest = len(rows), shape.num_reqs, int(k.max())
        of_rows = np.array([[-1], [0], [0]]).repeat(size, axis=1)
        of_rows[0, :count], of_rows[2, :count] = start, k
        rows_there, of_rows_there = to_device(self._loaded.device, rows, of_rows)
        self._rows[:, :size] = of_rows_there
        self._rows[1, :count] = step.num_rejected
        self._read[:count] = in_order(step.emitted, step.source)[:, : self._width]
        for gid, blocks in self._builder.blocks(rows, rows_there).items():
            self._blocks[gid][:count] = blocks
        self._first.run_fullgraph(shape)
        if deepest > 1:
            later_shape = self.shape(count, deepest)
            if later_shape.num_tokens > size:  # more rows without a request than in the first pass
                self._positions[1, size : later_shape.num_tokens] = -1
            for _ in range(deepest - 1):
                self._later.run_fullgraph(later_shape)
        return self._drafts[:count, :deepest].clone()

    def _prepare_first(self, shape: Any, warmup: bool) -> Callable[[Any], None]:
        """As `_prepare_later`, of a first pass."""
        size: int = shape.num_reqs
        self._rows[0] = -1
        self._rows[1:] = 0
        self._seq_lens.fill_(self._width)
        common = self._captured_metadata(size, self._first_starts, self._width)
        by_layer = self._loaded.attention_metadata(common, captured=True)
        return lambda _mode: self._run_first(size, by_layer)

    def _run_first(self, size: int, by_layer: dict[str, Any]) -> None:
        """A first pass of `size` rows; later passes find their inputs."""
        loaded, states, width = self._loaded, self._loaded.hidden_states, self._width
        start, num_rejected, k = self._rows[:, :size]
        place = start.clamp(min=0) + torch.arange(width, device=loaded.device)[:, None]
        self._seq_lens[:size] = place[-1] + 1
        blocks = {gid: group_blocks[:size] for gid, group_blocks in self._blocks.items()}
        slots = {
            gid: torch.where(start >= 0, group_slots, -1).T.reshape(-1)
            for gid, group_slots in self._builder.slots_on_device(blocks, place).items()
        }
        self._update(by_layer)
        row, positions = np.arange(size).repeat(width), place.T.reshape(-1)
        tokens = self._read[:size].view(-1)
        inputs = ForwardInputs(row, row, positions, slots, {}, tokens)
        outputs = self._draft_pass.run(tokens, inputs, by_layer, None)
        accepted = self._first_starts[1 : size + 1] - 1 - num_rejected
        output, recurrent = gather(outputs, accepted)
        newest = self._draft_pass.logits(output).argmax(dim=-1)
        self._tokens[:size] = self._drafts[:size, 0] = newest
        if states is not None:
            states[:size] = recurrent
        next_position = start + width - num_rejected
        self._positions[0, :size] = next_position
        self._positions[1, :size] = torch.where(start >= 0, next_position + k - 2, -1)
        self._depth.fill_(1)

    def _captured_metadata(self, size: int, starts: torch.Tensor, length: int) -> dict[int, Any]:
        """Metadata of `size` rows of `length` tokens."""
        slots = self._loaded.slot_buffers
        return self._builder.captured_metadata(
            {gid: blocks[:size] for gid, blocks in self._blocks.items()},
            {gid: buffer[: size * length] for gid, buffer in slots.items()},
            starts[: size + 1],
            self._seq_lens[:size],
            (length, self._loaded.draft_model_config.max_model_len),
        )

    def _update(self, by_layer: dict[str, Any]) -> None:
        for group in self._loaded.draft_attn_groups:
            group.update_draft_decode_metadata(by_layer)

    def _prepare_later(self, shape: Any, warmup: bool) -> Callable[[Any], None]:
        """Prepares a pass without a row that drafts, and returns it: see vLLM's `capture`."""
        size: int = shape.num_tokens
        self._positions[0] = 0
        self._positions[1] = -1
        self._seq_lens.fill_(1)
        self._depth.fill_(1)
        common = self._captured_metadata(size, self._starts, 1)
        by_layer = self._loaded.attention_metadata(common, captured=True)
        return lambda _mode: self._run_later(size, by_layer)

    def _run_later(self, size: int, by_layer: dict[str, Any]) -> None:
        """One pass of `size` rows. No KV is written for a row that drafts no more."""
        states = self._loaded.hidden_states
        position, last_position = self._positions[:, :size]
        place = torch.minimum(position, last_position).clamp_(min=0)
        self._seq_lens[:size] = place + 1
        slots = {
            gid: torch.where(position <= last_position, group_slots, -1)
            for gid, group_slots in self._builder.slots_on_device(
                {gid: blocks[:size] for gid, blocks in self._blocks.items()}, place
            ).items()
        }
        self._update(by_layer)
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


def _whole(shape: Any) -> Any:
    """The description of a graph of a whole pass, `None` if it says that there is none."""
    return shape if shape.cg_mode == compat.CUDAGraphMode.FULL else None
