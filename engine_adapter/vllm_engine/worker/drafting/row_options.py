"""The options of requests at the next drafts of their rows, as the runner's sampler has them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.vllm_engine.worker.verification import logits_processors
from engine_adapter.vllm_engine.worker.verification.layout import DraftLayout


class RowOptions(Protocol):
    """The options of the R rows of a draft batch: penalties, bias, bad words and the like.

    Attributes:
        are_idle: no option of these rows, or of the batch, changes logits.
        read_drafts: some depend on the drafts before, which `record` must then take.
    """

    are_idle: bool
    read_drafts: bool

    def apply(
        self, logits: torch.Tensor, rows: npt.NDArray[np.intp], depth: int
    ) -> tuple[torch.Tensor, Sequence[Any]]:
        """Applies the options of N rows to logits whose temperature is not applied yet.

        Args:
            logits: float32 [N, V]; may be changed in place.
            rows: indices among the R rows, [N].
            depth: how many drafts precede this one; those before have been recorded.

        Returns:
            float32 [N, V], and the processors to apply after the temperature.
        """
        ...

    def record(self, rows: npt.NDArray[np.intp], tokens: torch.Tensor) -> None:
        """Takes the next drafts of N rows, int64 [N]."""
        ...

    def select(self, index: npt.NDArray[np.intp]) -> "RowOptions":
        """Those of the rows at `index`, before any of their drafts."""
        ...


class MetadataOptions:
    """Those of runner V1, whose sampler reads the whole batch's `SamplingMetadata`.

    Args:
        sampler: vLLM's plain sampler.
        metadata: of the whole batch of B rows.
        rows: int [R], the rows' indices in that batch.
        num_rows: B.
        samples: a row samples its drafts.

    Attributes:
        are_idle, read_drafts: see `RowOptions`.
    """

    def __init__(
        self,
        sampler: Any,
        metadata: Any,
        rows: npt.NDArray[np.intp],
        num_rows: int,
        *,
        samples: bool,
    ) -> None:
        self._sampler, self._metadata, self._rows = sampler, metadata, rows
        self._num_rows, self._samples = num_rows, samples
        self.are_idle = logits_processors.are_idle(metadata, samples=samples)
        self.read_drafts = not self.are_idle and logits_processors.reads_outputs(metadata)
        self._drafted: list[list[int]] = [[] for _ in rows]

    def apply(
        self, logits: torch.Tensor, rows: npt.NDArray[np.intp], depth: int
    ) -> tuple[torch.Tensor, Sequence[Any]]:
        """See `RowOptions.apply`."""
        layout = DraftLayout(self._rows[rows], depth, self._num_rows, logits.device)
        outputs: list[list[int]] = []
        if self.read_drafts:
            before = self._metadata.output_token_ids
            outputs = [before[self._rows[row]] + self._drafted[row] for row in rows]
        expanded = logits_processors.expand_metadata(self._metadata, layout, outputs, {})
        expanded = replace(expanded, thinking_budget_state_holder=None)
        limited = self._sampler.apply_logits_processors(logits, expanded, False)
        return limited, expanded.logitsprocs.argmax_invariant

    def record(self, rows: npt.NDArray[np.intp], tokens: torch.Tensor) -> None:
        """See `RowOptions.record`."""
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            self._drafted[row].append(token)

    def select(self, index: npt.NDArray[np.intp]) -> "MetadataOptions":
        """See `RowOptions.select`."""
        return MetadataOptions(
            self._sampler,
            self._metadata,
            self._rows[index],
            self._num_rows,
            samples=self._samples,
        )
