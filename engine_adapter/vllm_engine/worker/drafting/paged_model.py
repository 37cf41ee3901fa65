"""Running a draft model inside vLLM: its own layers' KV in the target's blocks, any lag read.

One routine serves the first pass and every catch-up: feed each row all committed tokens whose
draft KV is missing, take the next token from the last one, then k - 1 single-token passes. The
KV that drafting itself wrote is kept as far as the drafts were accepted, so a row that never
lagged feeds one or two tokens, where vLLM's own draft model feeds k + 1 again.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import Ints, Passes, PassInputs
from engine_adapter.vllm_engine.worker.drafting.kv_ledger import Blocks, DraftKVLedger
from engine_adapter.vllm_engine.worker.drafting.weights import LoadedDraft, LoadedHead

Outputs = tuple[torch.Tensor, torch.Tensor]
"""Of a forward pass: states [T, H] that the next token is taken from, and states [T, H] that a
head goes on from. One and the same for most models."""

_NEVER = (-1, np.empty(0, np.int64))


class PagedDraftModel:
    """A `Proposer`: a draft model over vLLM's paged KV. Every rank of the engine runs the same.

    Attributes:
        max_model_len: positions that the draft model knows; rows beyond it get no drafts.
    """

    _shift = 0
    """How far behind a KV position is the token that the model reads there."""

    def __init__(self, spec: ProposerSpec, vllm_config: Any, device: torch.device, runner: Any):
        self._loaded = self._make(spec, vllm_config, device, runner)
        self._runner = runner
        self._device = device
        self._budget: int = self._loaded.max_num_tokens
        self._vocab_size: int = vllm_config.model_config.get_vocab_size()
        self._drafted: dict[str, tuple[int, npt.NDArray[np.int64]]] = {}
        self._ledger: DraftKVLedger | None = None
        self._kv_bytes = 0
        self.max_model_len: int = self._loaded.draft_model_config.max_model_len

    def _make(self, *args: Any) -> LoadedDraft | LoadedHead:
        return LoadedDraft(*args)

    # -- vLLM's set-up, in the order in which it calls ---------------------------------------

    def load(self, target: torch.nn.Module) -> None:
        """Loads the weights; `target` is the loaded target model."""
        self._loaded.load_model(target)

    def bind_kv_cache(self, kv_cache_config: Any, kernel_block_sizes: list[int]) -> None:
        """Builds the attention groups of the draft's layers and the ledger over the blocks."""
        self._loaded.initialize_attn_backend(kv_cache_config, kernel_block_sizes)
        spec = kv_cache_config.kv_cache_groups[self._loaded.kv_cache_gid].kv_cache_spec
        self._ledger = self._new_ledger(kv_cache_config.num_blocks, spec.block_size)
        self._kv_bytes = kv_cache_config.num_blocks * sum(
            group.kv_cache_spec.page_size_bytes * len(group.layer_names)
            for group in self._loaded.draft_attn_groups
        )

    def _new_ledger(self, num_blocks: int, block_size: int) -> DraftKVLedger:
        return DraftKVLedger(num_blocks, block_size)

    def set_cudagraph_mode(self, mode: Any) -> None:
        """Prepares the CUDA-graph keys for the mode that the target resolved to."""
        self._loaded.initialize_cudagraph_keys(mode)

    @property
    def layer_names(self) -> set[str]:
        """The layers of the KV cache that are its own."""
        return self._loaded.layer_names

    @property
    def weights_bytes(self) -> int:
        """What its weights take, in bytes, on this rank."""
        return self._loaded.weights_bytes

    @property
    def kv_bytes(self) -> int:
        """What its layers take of every KV block, in bytes over all blocks, on this rank."""
        return self._kv_bytes

    # -- following the blocks ----------------------------------------------------------------

    def blocks_changed(self, fresh: list[int], copies: list[tuple[int, int]]) -> None:
        """Physical blocks were handed out anew, or copied as (source, destination)."""
        assert self._ledger is not None
        if fresh:
            self._ledger.reset(fresh)
        if copies:
            self._ledger.copy(copies)

    def forget(self, request_ids: Sequence[str]) -> None:
        """The requests ended or lost their blocks: their drafts' KV is nobody's."""
        for request_id in request_ids:
            self._drafted.pop(request_id, None)

    # -- drafting ----------------------------------------------------------------------------

    @torch.inference_mode()
    def propose(self, batch: DraftBatch) -> Drafts:
        """Drafts `batch.k[i]` tokens for each row.

        KV that is missing for committed tokens is computed first, so drafts do not depend on
        whether the row was switched, hit the prefix cache or was preempted.
        """
        stop = self._stop(batch)
        with self._loaded.parallel():
            return self._draft(batch, self._blocks(batch.rows, int(stop.max())), stop)

    def _draft(self, batch: DraftBatch, blocks: Blocks, stop: Ints) -> Drafts:
        """Reads what is missing of the rows' first `stop` positions, then drafts."""
        assert self._ledger is not None
        missing = self._ledger.first_missing(blocks, stop)
        # A row that drafts feeds its last position in any case: its output is what is wanted.
        start = np.minimum(self._read_from(batch, missing), stop - (batch.k > 0))
        last = self._extend(batch, start, stop)
        self._ledger.mark(blocks, missing, stop)
        caught_up = int(np.maximum(batch.num_computed - start, 0).sum())
        return replace(self._go_on(batch, stop, last), catchup_tokens=caught_up)

    def _stop(self, batch: DraftBatch) -> Ints:
        """How many positions of each row can be fed: int64 [R]."""
        return batch.num_tokens

    def _read_from(self, batch: DraftBatch, missing: Ints) -> Ints:
        """The first position of each row to feed: `missing`, or later where drafting was there."""
        start = missing.copy()
        for i, request_id in enumerate(batch.request_ids):
            length, drafts = self._drafted.pop(request_id, _NEVER)
            if start[i] == length:
                # Drafting wrote KV for all drafts but the last; it holds where they were kept.
                kept = batch.context(i)[length : length + len(drafts) - 1]
                same = kept == drafts[: len(kept)]
                start[i] += len(kept) if same.all() else int(same.argmin())
        return start

    def _extend(self, batch: DraftBatch, start: Ints, stop: Ints) -> Outputs:
        """Feeds [start, stop) of each row, in chunks that fit; the last position's outputs [R]."""
        if (left := stop - start).all() and left.sum() <= self._budget:
            ends = torch.from_numpy(np.cumsum(left) - 1).to(self._device)
            return _at(self._feed(batch, np.arange(len(left)), start, left), ends)
        shape = len(batch.rows), self._loaded.hidden_size
        output, onward = (
            torch.empty(shape, dtype=self._loaded.dtype, device=self._device) for _ in range(2)
        )
        position = start.copy()
        while (left := stop - position).any():
            room = np.maximum(self._budget - (np.cumsum(left) - left), 0)
            length = np.minimum(left, room)
            rows = np.flatnonzero(length)
            made = self._feed(batch, rows, position[rows], length[rows])
            ends = torch.from_numpy(np.cumsum(length[rows]) - 1).to(self._device)
            at = torch.from_numpy(rows).to(self._device)
            output[at], onward[at] = _at(made, ends)
            position += length
        return output, onward

    def _feed(self, batch: DraftBatch, rows: Ints, start: Ints, length: Ints) -> Outputs:
        """One forward over [start, start + length) of the given rows."""
        inputs = self._passes().over(batch.rows[rows], start, length)
        tokens = batch.token_ids[np.repeat(inputs.rows, length), inputs.position + self._shift]
        return self._forward(torch.from_numpy(tokens).to(self._device), inputs)

    def _go_on(self, batch: DraftBatch, stop: Ints, last: Outputs) -> Drafts:
        """Drafts k tokens of each row, its last position having been fed."""
        order = np.argsort(-batch.k, kind="stable")  # who drafts most comes first
        counts = (batch.k[:, None] > np.arange(batch.k.max())).sum(axis=0).tolist()
        drafts: list[list[int]] = [[] for _ in batch.rows]
        drawn_from: list[torch.Tensor | None] = [None] * len(batch.rows)
        if not counts:
            return Drafts(drafts)
        output, states = _at(last, torch.from_numpy(order[: counts[0]]).to(self._device))
        shape = counts[0], len(counts)
        tokens = torch.zeros(shape, dtype=torch.int64, device=self._device)
        sampling, q = batch.sampling, torch.empty(0)
        if sampling is not None:
            q = torch.empty(*shape, self._vocab_size, device=self._device)
        passes = self._passes().onward(batch.rows[order], stop[order], counts[1:])
        for depth, count in enumerate(counts):
            if depth:
                drafted = tokens[:count, depth - 1]
                output, states = self._forward(drafted, next(passes), states[:count])
            logits = self._logits(output)
            if sampling is None:
                tokens[:count, depth] = logits.argmax(dim=-1)
            else:
                tokens[:count, depth], q[:count, depth] = sampling.draw(
                    logits, order[:count], depth
                )
        for at, (i, row) in enumerate(zip(order, tokens.cpu().numpy(), strict=False)):
            drafted = row[: batch.k[i]]
            drafts[i] = drafted.tolist()
            if sampling is not None:
                drawn_from[i] = q[at, : len(drafted)]
            self._remember(batch, i, drafted)
        return Drafts(drafts, drawn_from if sampling is not None else None)

    def _remember(self, batch: DraftBatch, i: int, drafts: Ints) -> None:
        """Notes what the i-th row's drafts were, since their KV is there already."""
        self._drafted[batch.request_ids[i]] = (int(batch.num_tokens[i]), drafts)

    def _forward(
        self, tokens: torch.Tensor, inputs: PassInputs, states: torch.Tensor | None = None
    ) -> Outputs:
        """The draft model over some rows' next tokens.

        Args:
            tokens: int [T], on the device, row by row.
            inputs: where they stand.
            states: [T, H], what a head goes on from; `None` for the target's states.
        """
        loaded, total = self._loaded, len(inputs.position)
        _, by_layer = loaded.build_per_group_and_layer_attn_metadata(inputs.metadata)
        mode, padded, across_dp = loaded._determine_batch_execution_and_padding(total)
        loaded.input_ids[:total] = tokens
        loaded.positions[:total] = inputs.positions
        with compat.set_forward_context(
            by_layer,
            loaded.vllm_config,
            num_tokens=padded,
            num_tokens_across_dp=across_dp,
            cudagraph_runtime_mode=mode,
            slot_mapping=loaded._get_slot_mapping(padded, inputs.slots),
        ):
            output, onward = self._run(padded, inputs, states)
        if padded == total:
            return output, onward
        return output[:total], onward[:total]

    def _run(self, padded: int, inputs: PassInputs, states: torch.Tensor | None) -> Outputs:
        """Calls the model over its input buffers, of which the first `padded` rows count."""
        loaded = self._loaded
        hidden: torch.Tensor = loaded.model(
            input_ids=loaded.input_ids[:padded],
            positions=loaded.positions[:padded],
            inputs_embeds=None,
        )
        return hidden, hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits over the target's vocabulary for each hidden state, [N, V]."""
        logits: torch.Tensor = self._loaded.model.compute_logits(hidden)
        logits = logits[:, : self._vocab_size]
        missing = self._vocab_size - logits.shape[1]
        return functional.pad(logits, (0, missing), value=float("-inf")) if missing else logits

    def _passes(self) -> Passes:
        return Passes(self._table, self._device)

    @property
    def _table(self) -> Any:
        return self._runner.input_batch.block_table[self._loaded.kv_cache_gid]

    def _blocks(self, rows: npt.NDArray[np.intp], length: int) -> Blocks:
        """The KV manager's ids of the rows' blocks for `length` positions, [R, W].

        They are read from the table of kernel blocks, of which a block has one or more.
        """
        assert self._ledger is not None
        table, size = self._table, self._ledger.block_size
        ratio = size // table.block_size
        width = -(-length // size) * ratio
        blocks: Blocks = table.get_numpy_array()[rows, :width]
        return blocks if ratio == 1 else blocks[:, ::ratio] // ratio


def _at(outputs: Outputs, index: torch.Tensor) -> Outputs:
    """The outputs at some positions."""
    output, onward = outputs
    taken = output[index]
    return taken, taken if onward is output else onward[index]
