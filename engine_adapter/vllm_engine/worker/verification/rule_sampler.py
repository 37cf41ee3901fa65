"""vLLM's plain sampler: steps with many positions in parts, and a place for the rules of drafts.

Imports vLLM's runner: only a worker's process may import it.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.worker.verification.rejection import (
    MAX_BYTES,
    SampledDraft,
    SpeculativeSampling,
)

NO_DRAFTS: Mapping[int, SampledDraft] = MappingProxyType({})


class RuleSampler(compat.V2Sampler):
    """Leaves to the noise only the tokens that the rules of a step's sampled drafts emit.

    A step with drafts has several positions for each row, and the options of requests need a copy
    of their logits. Rows are sampled in parts of `MAX_BYTES`; a row is not divided.

    Attributes:
        drafts: row -> its sampled drafts, in the next step.
        rule: of the part that is sampled; `None` if no row of it has sampled drafts.
    """

    drafts: Mapping[int, SampledDraft] = NO_DRAFTS
    rule: SpeculativeSampling | None = None
    _all_rows: npt.NDArray[np.integer[Any]] | None = None
    _live_are_plain: bool | None = None

    def __call__(self, logits: torch.Tensor, input_batch: Any) -> Any:
        """vLLM's `SamplerOutput` for the P positions of a step.

        Args:
            logits: [P, V], row after row.
            input_batch: vLLM's `InputBatch`.
        """
        if self.are_plain(input_batch.idx_mapping_np):
            return self._greedy_output(logits, input_batch)
        starts = input_batch.cu_num_logits_np
        max_positions = max(MAX_BYTES // (torch.float32.itemsize * logits.shape[1]), 1)
        if len(logits) <= max_positions and not self.drafts:
            self.rule = None
            return super().__call__(logits, input_batch)
        self._all_rows = input_batch.idx_mapping_np
        outputs = [
            self._sample_part(logits, input_batch, begin, end)
            for begin, end in row_ranges(starts, max_positions)
        ]
        self._all_rows = None
        if len(outputs) == 1:
            return outputs[0]
        is_drafted = len(logits) != len(input_batch.idx_mapping_np)
        return joined_outputs(outputs, starts.tolist() if is_drafted else None)

    def requests_changed(self) -> None:
        """Called in a step with other live requests than the step before."""
        self._live_are_plain = None

    def are_plain(self, rows: npt.NDArray[np.integer[Any]]) -> bool:
        """Whether all rows are greedy, without other options, and only their tokens are needed.

        While all live requests are such ones, which is asked once, no row is looked at.
        """
        live_rows = self.req_states.req_id_to_index
        if self._live_are_plain is None and live_rows:
            self._live_are_plain = self._have_no_options(np.array([*live_rows.values()]))
        return bool(self._live_are_plain) or self._have_no_options(rows)

    def _have_no_options(self, rows: npt.NDArray[np.integer[Any]]) -> bool:
        has_options = self.needs_logits_processing[rows].any()
        return not (
            has_options
            or self.sampling_states.temperature.np[rows].any()
            or self.compute_nans
            or self.trace_replay_state is not None
            or self.get_logprobs_dims(rows) is not None
        )

    def _greedy_output(self, logits: torch.Tensor, batch: Any) -> Any:
        """The output of plain rows: the first of the highest logits, as vLLM's kernel has it.

        That kernel, and what is gathered for it, take several times as long on a CPU.
        """
        num_sampled, num_rejected = compat.v2_input_batch.get_num_sampled_and_rejected(
            batch.seq_lens.new_ones(batch.num_reqs),
            batch.seq_lens,
            batch.cu_num_logits,
            batch.idx_mapping,
            self.req_states.prefill_len.gpu,
        )
        return compat.V2SamplerOutput(
            sampled_token_ids=logits.argmax(dim=1, keepdim=True),
            logprobs_tensors=None,
            num_nans=None,
            num_sampled=num_sampled,
            num_rejected=num_rejected,
        )

    def _sample_part(self, logits: torch.Tensor, batch: Any, begin: int, end: int) -> Any:
        """The output of the rows [begin, end)."""
        starts = batch.cu_num_logits_np
        start, stop = int(starts[begin]), int(starts[end])
        drafts = {row - begin: draft for row, draft in self.drafts.items() if begin <= row < end}
        self.rule = (
            SpeculativeSampling(drafts, starts[begin:end] - start, logits.device)
            if drafts
            else None
        )
        if stop - start < len(logits):
            logits, batch = logits[start:stop], rows_of(batch, begin, end)
        return super().__call__(logits, batch)

    def get_logprobs_dims(
        self, idx_mapping_np: npt.NDArray[np.integer[Any]], include_token_ids: bool = True
    ) -> Any:
        """vLLM's numbers of log probabilities: for all rows of a step, whatever part is sampled."""
        rows = idx_mapping_np if self._all_rows is None else self._all_rows
        return super().get_logprobs_dims(rows, include_token_ids)

    def sample(
        self,
        logits: torch.Tensor,
        expanded_idx_mapping: torch.Tensor,
        idx_mapping: torch.Tensor,
        idx_mapping_np: Any,
        pos: torch.Tensor,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The tokens, int64 [P], and the logits [P, V] after all options, as vLLM's."""
        rows = expanded_idx_mapping, idx_mapping, idx_mapping_np, pos
        if self.rule is None:
            plain: tuple[torch.Tensor, torch.Tensor] = super().sample(
                logits, *rows, *args, **kwargs
            )
            return plain
        processed = self.apply_sampling_params(logits, *rows, *args)
        # Log probabilities are read from the logits, or from the processed ones, later.
        emitted = self.rule.apply(processed.to(torch.float32, copy=True))
        states = self.sampling_states
        tokens = compat.v2_gumbel.gumbel_sample(
            emitted,
            expanded_idx_mapping,
            states.temperature.gpu,
            states.seeds.gpu,
            pos,
            apply_temperature=False,
            is_drafting=False,
            use_fp64=self.use_fp64_gumbel,
        )
        return tokens, processed


def row_ranges(
    starts: npt.NDArray[np.integer[Any]], max_positions: int
) -> Iterator[tuple[int, int]]:
    """Ranges of rows with at most so many positions together, or of one row with more.

    Args:
        starts: int [B + 1], the first position of each row, and their number.
    """
    begin, count = 0, len(starts) - 1
    while begin < count:
        end = int(np.searchsorted(starts, starts[begin] + max_positions, side="right")) - 1
        end = min(max(end, begin + 1), count)
        yield begin, end
        begin = end


def rows_of(batch: Any, begin: int, end: int) -> Any:
    """The rows [begin, end) of vLLM's `InputBatch`, as its sampler reads them."""
    starts = batch.cu_num_logits_np
    start, stop = int(starts[begin]), int(starts[end])
    part = copy(batch)
    part.num_reqs = end - begin
    part.cu_num_logits = batch.cu_num_logits[begin : end + 1] - start
    part.cu_num_logits_np = starts[begin : end + 1] - start
    for name in ("idx_mapping", "idx_mapping_np", "seq_lens", "seq_lens_cpu_upper_bound"):
        setattr(part, name, getattr(batch, name)[begin:end])
    for name in ("expanded_idx_mapping", "expanded_local_pos", "logits_indices"):
        setattr(part, name, getattr(batch, name)[start:stop])
    return part


def joined_outputs(outputs: Sequence[Any], starts: list[int] | None) -> Any:
    """The `SamplerOutput` of a step from those of its parts.

    Args:
        starts: the first position of each row, and their number; `None` if each row has one.
    """

    def joined(name: str, **kwargs: Any) -> Any:
        parts = [getattr(output, name) for output in outputs]
        if parts[0] is None:
            return None
        join = torch.cat if isinstance(parts[0], torch.Tensor) else type(parts[0]).cat
        return join(parts, **kwargs)

    return replace(
        outputs[0],
        **{
            name: joined(name)
            for name in (
                *("sampled_token_ids", "num_sampled", "num_rejected", "num_nans"),
                "sampling_mask_tensors",
            )
        },
        logprobs_tensors=joined("logprobs_tensors", cu_num_generated_tokens=starts),
    )
