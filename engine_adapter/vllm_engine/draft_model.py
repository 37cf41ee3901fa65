"""Running a draft model inside vLLM: its own layers' KV in the target's blocks, any lag read.

One routine serves the first pass and every catch-up: feed each row all committed tokens whose
draft KV is missing, take the next token from the last one, then k - 1 single-token passes. The
KV that drafting itself wrote is kept as far as the drafts were accepted, so a row that never
lagged feeds one or two tokens, where vLLM's own draft model feeds k + 1 again.
"""

import copy
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.contract import DraftBatch, Drafts, ProposerSpec
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.catchup import DraftKVLedger

Ints = npt.NDArray[np.int64]

_NEVER = (-1, np.empty(0, np.int64))


class DraftConfig(compat.SpeculativeConfig):
    """vLLM's configuration of a draft model, for vocabularies that differ by padding too.

    vLLM compares sizes. What matters is the tokenizer, and those were compared before the start.
    """

    def verify_equal_vocab_size_if_draft_model(self) -> None:
        """Sizes may differ."""


class LoadedDraft(compat.DraftModelProposer):
    """vLLM's draft model under a name of its own, so that several fit in one engine.

    Attributes:
        weights_bytes: what the loaded weights take on this rank.
    """

    def __init__(self, spec: ProposerSpec, vllm_config: Any, device: torch.device, runner: Any):
        target = vllm_config.speculative_config
        config = copy.copy(vllm_config)  # shares the registry of layers with the target's
        config.speculative_config = DraftConfig(
            method="draft_model",
            model=spec.model,
            num_speculative_tokens=spec.num_speculative_tokens,
            target_model_config=target.target_model_config,
            target_parallel_config=target.target_parallel_config,
        )
        self._prefix = f"draft_model.{spec.name}"
        self.weights_bytes = 0
        super().__init__(vllm_config=config, device=device, runner=runner)

    def _get_model(self) -> torch.nn.Module:
        config = self._create_draft_vllm_config()
        loader = compat.get_model_loader(config.load_config)
        load_weights = loader.load_weights

        def load_and_weigh(model: torch.nn.Module, *args: Any) -> None:
            load_weights(model, *args)
            # Counted here, since on CPU the weights are then packed into buffers out of sight.
            sizes = (p.numel() * p.element_size() for p in model.parameters())
            self.weights_bytes = sum(sizes)

        loader.load_weights = load_and_weigh
        with compat.set_model_tag(self._prefix):
            model: torch.nn.Module = loader.load_model(
                vllm_config=config, model_config=config.model_config, prefix=self._prefix
            )
        return model


class PagedDraftModel:
    """A `DraftModel` over vLLM's paged KV. Lives in a worker; every rank runs the same.

    Attributes:
        max_model_len: positions that the draft model knows; rows beyond it get no drafts.
    """

    def __init__(self, spec: ProposerSpec, vllm_config: Any, device: torch.device, runner: Any):
        self._loaded = LoadedDraft(spec, vllm_config, device, runner)
        self._runner = runner
        self._device = device
        self._budget: int = self._loaded.max_num_tokens
        self._vocab_size: int = vllm_config.model_config.get_vocab_size()
        self._drafted: dict[str, tuple[int, npt.NDArray[np.int64]]] = {}
        self._ledger: DraftKVLedger | None = None
        self._kv_bytes = 0
        self.max_model_len: int = self._loaded.draft_model_config.max_model_len

    # -- vLLM's set-up, in the order in which it calls ---------------------------------------

    def load(self, target: torch.nn.Module) -> None:
        """Loads the weights; `target` is the loaded target model."""
        self._loaded.load_model(target)

    def bind_kv_cache(self, kv_cache_config: Any, kernel_block_sizes: list[int]) -> None:
        """Builds the attention groups of the draft's layers and the ledger over the blocks."""
        self._loaded.initialize_attn_backend(kv_cache_config, kernel_block_sizes)
        spec = kv_cache_config.kv_cache_groups[self._loaded.kv_cache_gid].kv_cache_spec
        self._ledger = DraftKVLedger(kv_cache_config.num_blocks, spec.block_size)
        self._kv_bytes = kv_cache_config.num_blocks * sum(
            group.kv_cache_spec.page_size_bytes * len(group.layer_names)
            for group in self._loaded.draft_attn_groups
        )

    def set_cudagraph_mode(self, mode: Any) -> None:
        """Prepares the CUDA-graph keys for the mode that the target resolved to."""
        self._loaded.initialize_cudagraph_keys(mode)

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

    def forget(self, request_ids: list[str]) -> None:
        """The requests ended or lost their blocks: their drafts' KV is nobody's."""
        for request_id in request_ids:
            self._drafted.pop(request_id, None)

    # -- drafting ----------------------------------------------------------------------------

    @torch.inference_mode()
    def draft(self, batch: DraftBatch) -> Drafts:
        """Greedy drafts; see `DraftModel.draft`."""
        assert self._ledger is not None
        blocks = self._blocks(batch.rows)
        missing = self._ledger.first_missing(blocks, batch.num_tokens)
        start = self._read_from(batch, missing)
        caught_up = int(np.maximum(batch.num_computed - start, 0).sum())
        drafting = np.flatnonzero(batch.k)
        drafts = np.zeros((len(batch.rows), int(batch.k.max())), np.int64)
        last = self._extend(batch, start)
        self._ledger.mark(blocks, missing, batch.num_tokens)
        if not drafting.size:
            return Drafts([[] for _ in batch.rows], None, caught_up)
        tokens = [self._sample(last[torch.from_numpy(drafting).to(self._device)])]
        for depth in range(1, drafts.shape[1]):
            tokens.append(self._step(batch, drafting, tokens[-1], depth))
        drafts[drafting] = torch.stack(tokens, dim=1).cpu().numpy()
        for i in drafting:
            self._drafted[batch.request_ids[i]] = (int(batch.num_tokens[i]), drafts[i])
        tokens_of_rows = zip(drafts.tolist(), batch.k.tolist(), strict=True)
        return Drafts([row[:k] for row, k in tokens_of_rows], None, caught_up)

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
        # A row that drafts feeds its last token in any case: its logits are what is wanted.
        return np.minimum(start, batch.num_tokens - (batch.k > 0))

    def _extend(self, batch: DraftBatch, start: Ints) -> torch.Tensor:
        """Feeds [start, num_tokens) of each row, in chunks that fit; last hidden states [R, H]."""
        last = torch.empty(
            len(batch.rows), self._loaded.hidden_size, dtype=self._loaded.dtype, device=self._device
        )
        position = start.copy()
        while (left := batch.num_tokens - position).any():
            room = np.maximum(self._budget - (np.cumsum(left) - left), 0)
            length = np.minimum(left, room)
            rows = np.flatnonzero(length)
            hidden = self._feed(batch, rows, position[rows], length[rows])
            ends = torch.from_numpy(np.cumsum(length[rows]) - 1).to(self._device)
            last[torch.from_numpy(rows).to(self._device)] = hidden[ends]
            position += length
        return last

    def _feed(self, batch: DraftBatch, rows: Ints, start: Ints, length: Ints) -> torch.Tensor:
        """One forward over [start, start + length) of the given rows; hidden states [T, H]."""
        total = int(length.sum())
        begins = np.cumsum(length) - length
        row = np.repeat(rows, length)
        position = np.arange(total) - np.repeat(begins - start, length)
        tokens = batch.token_ids[batch.rows[row], position]
        return self._forward(
            torch.from_numpy(tokens).to(self._device), batch.rows[rows], position, length
        )

    def _step(
        self, batch: DraftBatch, drafting: Ints, tokens: torch.Tensor, depth: int
    ) -> torch.Tensor:
        """Feeds the draft at `depth - 1` of each drafting row; the next one, int64 [D]."""
        # A row whose k is reached runs along unread; its position stays inside the context.
        position = np.minimum(batch.num_tokens[drafting] + depth - 1, self.max_model_len - 1)
        length = np.ones(len(drafting), np.int64)
        return self._sample(self._forward(tokens, batch.rows[drafting], position, length))

    def _forward(
        self, tokens: torch.Tensor, rows: npt.NDArray[np.intp], position: Ints, length: Ints
    ) -> torch.Tensor:
        """The draft model over the rows' next tokens.

        Args:
            tokens: int [T], on the device, row by row.
            rows: [N], indices into the engine's batch.
            position: int64 [T], of each token.
            length: int64 [N], tokens per row; sums to T.

        Returns:
            Hidden states [T, H].
        """
        loaded, total = self._loaded, len(position)
        metadata, slots = self._metadata(rows, position, length)
        _, by_layer = loaded.build_per_group_and_layer_attn_metadata(metadata)
        mode, padded, across_dp = loaded._determine_batch_execution_and_padding(total)
        loaded.input_ids[:total] = tokens
        loaded.positions[:total] = torch.from_numpy(position)
        with compat.set_forward_context(
            by_layer,
            loaded.vllm_config,
            num_tokens=padded,
            num_tokens_across_dp=across_dp,
            cudagraph_runtime_mode=mode,
            slot_mapping=loaded._get_slot_mapping(padded, slots),
        ):
            hidden: torch.Tensor = loaded.model(
                input_ids=loaded.input_ids[:padded],
                positions=loaded.positions[:padded],
                inputs_embeds=None,
            )
        return hidden[:total]

    def _metadata(
        self, rows: npt.NDArray[np.intp], position: Ints, length: Ints
    ) -> tuple[Any, torch.Tensor]:
        """Attention metadata of a forward pass, and the KV slot of each token, int64 [T]."""
        table = self._runner.input_batch.block_table[self._loaded.kv_cache_gid]
        kernel = table.get_numpy_array()[rows]
        row = np.repeat(np.arange(len(rows)), length)
        slots = kernel[row, position // table.block_size].astype(np.int64) * table.block_size
        slots += position % table.block_size
        stops = np.cumsum(length)
        starts = torch.from_numpy(np.concatenate([[0], stops]).astype(np.int32))
        seq_lens = torch.from_numpy((position[stops - 1] + 1).astype(np.int32))
        slot_mapping = torch.from_numpy(slots).to(self._device)
        metadata = compat.CommonAttentionMetadata(
            query_start_loc=starts.to(self._device),
            query_start_loc_cpu=starts,
            seq_lens=seq_lens.to(self._device),
            seq_lens_cpu_upper_bound=seq_lens,
            num_reqs=len(rows),
            num_actual_tokens=len(position),
            max_query_len=int(length.max()),
            max_seq_len=int(seq_lens.max()),
            block_table_tensor=torch.from_numpy(kernel).to(self._device),
            slot_mapping=slot_mapping,
            causal=True,
        )
        return metadata, slot_mapping

    def _sample(self, hidden: torch.Tensor) -> torch.Tensor:
        """The most likely token of the target's vocabulary for each hidden state, int64 [N]."""
        logits = self._loaded.model.compute_logits(hidden)
        return logits[:, : self._vocab_size].argmax(dim=-1)

    def _blocks(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.int32]:
        """The KV manager's block ids of the rows, [R, W], from the table of kernel blocks."""
        assert self._ledger is not None
        table = self._runner.input_batch.block_table[self._loaded.kv_cache_gid]
        ratio = self._ledger.block_size // table.block_size
        blocks: npt.NDArray[np.int32] = table.get_numpy_array()[rows]
        return blocks if ratio == 1 else blocks[:, ::ratio] // ratio
