"""The options of requests at the next drafts of their rows: penalties, bias, bad words, `min_p`.

vLLM's sampler keeps the options of each request on the device, and applies them at every position
that a step verifies. Its processors read the drafts before a position from the rows before it. So
here a row of logits is given to them as the last of as many rows as it has drafts before it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.staging import to_device
from engine_adapter.vllm_engine import compat

Rows = npt.NDArray[np.intp]

_IN_USE: dict[str, Callable[[Any, Rows], Any]] = {
    "LogitBiasState": lambda state, rows: state.use_logit_bias[rows].any(),
    "PenaltiesState": lambda state, rows: state.use_penalty[rows].any(),
    "BadWordsState": lambda state, rows: state.num_bad_words.np[rows].any(),
}
"""Class of a processor -> whether it changes the logits of one of these rows."""

_READS_NO_DRAFTS = ("LogitBiasState",)


class RowOptions:
    """The options of the R rows of a draft batch.

    Args:
        sampler: vLLM's plain sampler.
        rows: int [R], the rows' indices among the runner's requests.
        num_tokens: int64 [R], the committed tokens of each row.
        samples: a row samples its drafts.

    Attributes:
        are_idle: no option of these rows changes logits.
        read_drafts: some depend on the drafts before, which `record` must then take.
    """

    def __init__(
        self, sampler: Any, rows: Rows, num_tokens: npt.NDArray[np.int64], *, samples: bool
    ) -> None:
        self._sampler, self._rows, self._num_tokens = sampler, rows, num_tokens
        self._samples = samples
        self._processors = [
            processor for processor in sampler.logits_processors if _is_in_use(processor, rows)
        ]
        self._has_min_p = samples and bool(sampler.sampling_states.min_p.np[rows].any())
        self.are_idle = not (self._processors or self._has_min_p)
        kinds = {type(processor).__name__ for processor in self._processors}
        self.read_drafts = not kinds.issubset(_READS_NO_DRAFTS)
        # int32 [R, drafts so far]; `None` before the first.
        self._drafted: torch.Tensor | None = None

    def apply(
        self, logits: torch.Tensor, rows: Rows, depth: int
    ) -> tuple[torch.Tensor, Sequence[Any]]:
        """Applies the options of N rows to logits whose temperature is not applied yet.

        Args:
            logits: float32 [N, V]; may be changed in place.
            rows: indices among the R rows, [N].
            depth: how many drafts precede this one; those before have been recorded.

        Returns:
            float32 [N, V], and the processors to apply after the temperature.
        """
        indices = self._rows[rows]
        (requests,) = to_device(logits.device, indices.astype(np.int64))
        if self._processors:
            logits = self._process(logits, rows, requests, depth)
        return logits, [_MinP(self._sampler, requests, indices)] if self._has_min_p else ()

    def record(self, rows: Rows, tokens: torch.Tensor) -> None:
        """Takes the next drafts of N rows, int64 [N]."""
        (index,) = to_device(tokens.device, rows.astype(np.int64))
        column = tokens.new_zeros(len(self._rows), 1, dtype=torch.int32)
        column[index, 0] = tokens.int()
        columns = () if self._drafted is None else (self._drafted,)
        self._drafted = torch.cat([*columns, column], 1)

    def select(self, index: Rows) -> "RowOptions":
        """Those of the rows at `index`, before any of their drafts."""
        rows, num_tokens = self._rows[index], self._num_tokens[index]
        return RowOptions(self._sampler, rows, num_tokens, samples=self._samples)

    def _process(
        self, logits: torch.Tensor, rows: Rows, requests: torch.Tensor, depth: int
    ) -> torch.Tensor:
        """The logits [N, V] after the processors; `requests`: int64 [N], in the sampler."""
        num_drafts = depth if self.read_drafts else 0  # rows of logits that only hold a draft
        lengths = self._num_tokens[rows] + depth
        index, last_position = to_device(logits.device, rows.astype(np.int64), lengths - 1)
        tokens = requests.new_zeros(len(rows), num_drafts + 1, dtype=torch.int32)
        all_logits = logits
        if num_drafts:
            assert self._drafted is not None
            tokens[:, 1:] = self._drafted[index]
            all_logits = logits.new_zeros(len(rows) * (num_drafts + 1), logits.shape[1])
            all_logits[num_drafts :: num_drafts + 1] = logits
        place = torch.arange(num_drafts + 1, dtype=torch.int32, device=logits.device)
        context = compat.LogitsContext(
            expanded_idx_mapping=requests.repeat_interleave(num_drafts + 1),
            idx_mapping=requests,
            idx_mapping_np=self._rows[rows],
            expanded_local_pos=place.repeat(len(rows)),
            input_ids=tokens.view(-1),
            pos=(last_position[:, None] + (place - num_drafts)).view(-1),
            seq_lens_upper_bound_np=lengths,
        )
        for processor in self._processors:
            all_logits = processor.apply(all_logits, context)
        return all_logits[num_drafts :: num_drafts + 1]


class _MinP:
    """`min_p` of N rows, as a processor that follows the temperature."""

    def __init__(self, sampler: Any, requests: torch.Tensor, rows: Rows) -> None:
        self._states, self._requests, self._rows = sampler.sampling_states, requests, rows

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        """Removes the tokens below a share of the likeliest one's probability, in place."""
        self._states.apply_min_p(logits, self._requests, self._rows)
        return logits


def _is_in_use(processor: Any, rows: Rows) -> bool:
    in_use = _IN_USE.get(type(processor).__name__)
    return in_use is None or bool(in_use(processor, rows))
