"""What the requests allow at the next drafts of their rows: their options and their constraints.

The target's logits are changed by both before a token is taken, so a model that drafts without them
drafts tokens that cannot be accepted. Here vLLM's own code applies the options, as in verification
(`logits_processors`), and the constraint's matcher reads every draft.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.staging import to_device
from engine_adapter.vllm_engine.worker.constraints import RowConstraint
from engine_adapter.vllm_engine.worker.verification import logits_processors
from engine_adapter.vllm_engine.worker.verification.layout import DraftLayout

_IMPOSSIBLE = float("-inf")


class RowLimits:
    """The limits of the R rows of a draft batch, in one step.

    Args:
        sampler: vLLM's plain sampler.
        metadata: vLLM's `SamplingMetadata` of its whole batch of B rows.
        rows: int [R], the rows' indices in that batch.
        num_rows: B.
        constraints: the constraint of each of the R rows, which has read the row.
        samples: a row samples its drafts.
    """

    def __init__(
        self,
        sampler: Any,
        metadata: Any,
        rows: npt.NDArray[np.intp],
        num_rows: int,
        constraints: Sequence[RowConstraint | None],
        *,
        samples: bool,
    ) -> None:
        self._sampler = sampler
        self._metadata = metadata
        self._rows = rows
        self._num_rows = num_rows
        self._constraints = constraints
        self._has_constraints = any(one is not None for one in constraints)
        self._samples = samples
        self._has_options = not logits_processors.are_idle(metadata, samples=samples)
        self._reads_drafts = self._has_options and logits_processors.reads_outputs(metadata)
        self._drafted: list[list[int]] = [[] for _ in rows]

    def __bool__(self) -> bool:
        """Whether any row has a limit."""
        return self._has_constraints or self._has_options

    def apply(
        self, logits: torch.Tensor, rows: npt.NDArray[np.intp], depth: int
    ) -> tuple[torch.Tensor, Sequence[Any]]:
        """The logits of N rows as they are before their temperature is applied.

        Where nothing is left, a row keeps its own logits: the target has no token to agree on.

        Args:
            logits: [N, V]; not changed.
            rows: indices among the R rows, [N].
            depth: how many drafts precede this one; those before have been recorded.

        Returns:
            float32 [N, V], and the processors to apply after the temperature.
        """
        limited = logits.to(torch.float32, copy=True)
        after: Sequence[Any] = ()
        if self._has_constraints:
            self._mask(limited, rows)
        if self._has_options:
            expanded = self._expand(rows, depth, logits.device)
            limited = self._sampler.apply_logits_processors(limited, expanded, False)
            after = expanded.logitsprocs.argmax_invariant
        nothing = (limited == _IMPOSSIBLE).all(dim=1, keepdim=True)
        return torch.where(nothing, logits.float(), limited), after

    def record(self, rows: npt.NDArray[np.intp], tokens: torch.Tensor) -> None:
        """Takes the drafts of N rows, int64 [N], on which the next ones depend."""
        if not (self._reads_drafts or self._has_constraints):
            return
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            self._drafted[row].append(token)
            if (constraint := self._constraints[row]) is not None:
                constraint.advance(token)

    def select(self, index: npt.NDArray[np.intp]) -> "RowLimits":
        """The limits of the rows at `index`, before any of their drafts."""
        constraints = [self._constraints[i] for i in index]
        return RowLimits(
            self._sampler,
            self._metadata,
            self._rows[index],
            self._num_rows,
            constraints,
            samples=self._samples,
        )

    def _mask(self, logits: torch.Tensor, rows: npt.NDArray[np.intp]) -> None:
        """Removes the tokens that the constraints do not allow, in place."""
        masks = {
            i: mask
            for i, row in enumerate(rows)
            if (constraint := self._constraints[row]) is not None
            and (mask := constraint.mask()) is not None
        }
        if not masks:
            return
        # [n, bits]: bit v says whether token v is allowed.
        packed = np.frombuffer(b"".join(masks.values()), np.uint8).reshape(len(masks), -1)
        allowed = np.unpackbits(packed, axis=1, count=logits.shape[1], bitorder="little")
        index, forbidden = to_device(logits.device, np.array(list(masks)), allowed == 0)
        logits[index] = logits[index].masked_fill(forbidden, _IMPOSSIBLE)

    def _expand(self, rows: npt.NDArray[np.intp], depth: int, device: torch.device) -> Any:
        """The batch's metadata as that of the N positions that are drafted."""
        layout = DraftLayout(self._rows[rows], depth, self._num_rows, device)
        outputs: list[list[int]] = []
        if self._reads_drafts:
            before = self._metadata.output_token_ids
            outputs = [before[self._rows[row]] + self._drafted[row] for row in rows]
        expanded = logits_processors.expand_metadata(self._metadata, layout, outputs, {})
        return replace(expanded, thinking_budget_state_holder=None)
