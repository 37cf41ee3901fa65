"""Runs the passes of a draft model: one pass, and those that draft one token after the other."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from engine_adapter.proposers.batch import DraftBatch, DraftCollector, Drafts
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_table import DraftTable
from engine_adapter.proposers.staging import to_device
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.drafting.decode_graphs import DecodeGraphs, can_capture
from engine_adapter.vllm_engine.worker.drafting.draft_passes import (
    DraftPasses,
    ForwardOutputs,
    PassTokens,
    by_most_drafts,
    drafts_of_table,
    gather,
    in_order,
    select_rows,
)
from engine_adapter.vllm_engine.worker.drafting.early_drafts import UnreadStep
from engine_adapter.vllm_engine.worker.drafting.forward_inputs import (
    ForwardInputBuilder,
    ForwardInputs,
    Ints,
)
from engine_adapter.vllm_engine.worker.drafting.mapped_vocabulary import map_draft_vocabulary
from engine_adapter.vllm_engine.worker.drafting.weights import LoadedModel


class ModelPasses(ABC):
    """A loaded draft model, and the rows of the engine's batch that it runs for."""

    _loaded: LoadedModel

    _decodes = True
    """Whether it drafts in passes of one token."""

    _advances = True
    """Whether a draft's pass is one position further than that of the draft before it."""

    keeps_states = True
    """Whether all that its first pass reads lies in the KV cache."""

    def __init__(self, spec: ProposerSpec, vllm_config: Any, device: torch.device, runner: Any):
        self._runner = runner
        self._device = device
        self._vocab_size: int = vllm_config.model_config.get_vocab_size()
        models = vllm_config.model_config, self._loaded.draft_model_config
        self._vocabulary = map_draft_vocabulary(spec, *models, self._device)
        self._num_drafts = spec.num_speculative_tokens
        self._capacity: int = vllm_config.num_speculative_tokens
        self._builder: ForwardInputBuilder | None = None
        ForwardInputBuilder.compile()
        self._decode_graphs: DecodeGraphs | None = None

    # -- graphs of whole passes -----------------------------------------------------------------

    def capture_passes(self) -> None:
        """Captures its passes of one token, where they can be graphs of whole passes."""
        if self._decodes and can_capture(self._loaded, self._num_drafts):
            builder = self._input_builder()
            graphs = DecodeGraphs(self, self._loaded, builder, self._num_drafts)
            graphs.capture()
            self._decode_graphs = graphs

    def drop_passes(self) -> None:
        """Drops what `capture_passes` captured, as after vLLM's profile of graph memory."""
        self._decode_graphs = None

    # -- drafting one token after the other ----------------------------------------------------

    def _decode_drafts(
        self,
        batch: DraftBatch,
        stop: Ints,
        prefilled: ForwardOutputs,
        behind: torch.Tensor | None = None,
    ) -> Drafts:
        """Drafts up to k tokens of each row, one for each pass that the row is in.

        `stop` and `behind` are those of `DraftPasses`.
        """
        order, counts = by_most_drafts(batch.k)
        if not counts:
            return Drafts([()] * len(order))
        first_rows, (output, recurrent) = order[: counts[0]], prefilled
        drafts_alike = counts[-1] == len(order)  # so the order is that of the batch
        if not drafts_alike:
            output, recurrent = gather(prefilled, *to_device(self._device, first_rows))
        sampling, graphs = batch.sampling, self._decode_graphs
        if (
            sampling is None
            and graphs
            and len(counts) > 1
            and (graph := graphs.shape(counts[0], len(counts)))
        ):
            if behind is not None:
                behind = in_order(behind, first_rows)
            rows, k = batch.rows[first_rows], batch.k[first_rows]
            newest = self.logits(output).argmax(dim=-1)
            tokens = graphs.draft(graph, rows, stop[first_rows], k, newest, recurrent, behind)
            drafts = Drafts(drafts_of_table(DraftTable(tokens), k.tolist()))
        else:
            drafts = self._decode_by_pass(batch, order, stop, counts, (output, recurrent), behind)
        if drafts_alike:
            return drafts
        collector = DraftCollector(len(order))
        collector.set(first_rows, drafts)
        return collector.collect()

    def _decode_by_pass(
        self,
        batch: DraftBatch,
        order: Ints,
        stop: Ints,
        counts: Sequence[int],
        prefilled: ForwardOutputs,
        behind: torch.Tensor | None,
    ) -> Drafts:
        """`_decode_drafts` without graphs of whole passes, of the rows that draft, in order.

        `prefilled` is of these rows.
        """
        sampling, (output, recurrent) = batch.sampling, prefilled
        samples = sampling is not None and sampling.samples
        shape = counts[0], len(counts), self._vocab_size if samples else 0
        q = torch.empty(shape, device=self._device)
        builder = self._input_builder()
        passes = DraftPasses(builder, batch, order, stop, counts, behind, self._advances)
        tokens = PassTokens(counts[0], self._capacity, self._device)
        for depth in range(len(counts)):
            if depth:
                staying, inputs = passes.next()
                if inputs is None:
                    break
                previous = select_rows(tokens.newest, staying)
                recurrent = select_rows(recurrent, staying)
                output, recurrent = self._forward(previous, inputs, recurrent)
            logits, selection = self.logits(output), passes.selection
            if sampling is None:
                newest = logits.argmax(dim=-1)
            else:
                newest, drawn_from = sampling.draw(logits, order[selection], depth)
                if samples:
                    q[selection, depth] = drawn_from
            tokens.add(selection, depth, newest)
        rows = tokens.drafts()
        distributions = [q[n, : len(row)] for n, row in enumerate(rows)] if samples else None
        return Drafts(rows, distributions)

    def _draft_in_graphs(self, batch: DraftBatch, start: Ints, step: UnreadStep) -> Drafts | None:
        """The drafts of all rows after a step, if graphs can make them: see `DecodeGraphs`."""
        graphs = self._decode_graphs
        if graphs is None:
            return None
        if (shape := graphs.first_shape(len(batch.rows), int(batch.k.max()))) is None:
            return None
        # Under asynchronous scheduling the scheduler needs their number alone.
        drafts = graphs.draft_after(shape, batch.rows, start, batch.k, step)
        table = DraftTable(drafts, is_read=False)
        return Drafts(drafts_of_table(table, batch.k.tolist()))

    # -- one pass -------------------------------------------------------------------------------

    def _forward(
        self, tokens: torch.Tensor, inputs: ForwardInputs, recurrent: torch.Tensor | None = None
    ) -> ForwardOutputs:
        """Runs the draft model on the next tokens of some rows.

        Args:
            tokens: int [T], on the device, row by row.
            inputs: their positions and KV slots.
            recurrent: [T, H], a head's own states of the pass before; `None` for the target's.
        """
        mode, padded = self._loaded.execution(total := len(inputs.position))
        by_layer = self._loaded.attention_metadata(inputs.metadata)
        output, recurrent = self.run(tokens, inputs, by_layer, recurrent, mode, padded)
        if padded == total:
            return output, recurrent
        return output[:total], recurrent[:total]

    def run(
        self,
        tokens: torch.Tensor,
        inputs: ForwardInputs,
        by_layer: Mapping[str, Any],
        recurrent: torch.Tensor | None,
        mode: Any = None,
        padded: int | None = None,
    ) -> ForwardOutputs:
        """`_forward` with the metadata of each layer; its outputs have the padding.

        Args:
            mode: vLLM's of the graphs of pieces; `None` for none.
            padded: tokens with padding; `None` for none.
        """
        loaded = self._loaded
        padded = len(inputs.position) if padded is None else padded
        ids = self._vocabulary.inputs(tokens)
        model_inputs = {
            "input_ids": loaded.placed(loaded.input_ids, ids, padded),
            "positions": loaded.placed(loaded.positions, inputs.positions, padded),
        }
        with compat.set_forward_context(
            by_layer,
            loaded.vllm_config,
            num_tokens=padded,
            cudagraph_runtime_mode=mode or compat.CUDAGraphMode.NONE,
            slot_mapping=loaded.slot_mapping(padded, inputs.slots),
        ):
            return self._call_model(model_inputs, inputs, recurrent)

    def _call_model(
        self,
        model_inputs: dict[str, torch.Tensor],
        inputs: ForwardInputs,
        recurrent: torch.Tensor | None,
    ) -> ForwardOutputs:
        """Calls the model; `model_inputs`: the padded tokens and positions. See `_forward`."""
        hidden: torch.Tensor = self._loaded.model(**model_inputs, inputs_embeds=None)
        return hidden, hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits over the target's vocabulary for each hidden state, [N, V]."""
        logits: torch.Tensor = self._vocabulary.logits(self._loaded.model.compute_logits(hidden))
        return logits

    def _input_builder(self) -> ForwardInputBuilder:
        tables = self._runner.input_batch.block_table
        if self._builder is None or self._builder.tables is not tables:
            self._builder = ForwardInputBuilder(tables, self._slot_gids(), self._device)
        return self._builder

    @abstractmethod
    def _slot_gids(self) -> Iterable[int]:
        """The KV cache groups in which a pass needs slots."""
