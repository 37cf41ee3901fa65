"""What the requests allow at the next drafts of their rows: their options and their constraints.

The target's logits are changed by both before a token is taken, so a model that drafts without them
drafts tokens that cannot be accepted. Here vLLM's own code applies the options, as in verification
(`row_options`), and the constraint's matcher reads every draft.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.staging import to_device
from engine_adapter.vllm_engine.worker.constraints import RowConstraint
from engine_adapter.vllm_engine.worker.drafting.row_options import RowOptions

_IMPOSSIBLE = float("-inf")


class RowLimits:
    """The limits of the R rows of a draft batch, in one step.

    Args:
        options: of the rows' requests.
        constraints: the constraint of each of the R rows, which has read the row.
    """

    def __init__(self, options: RowOptions, constraints: Sequence[RowConstraint | None]) -> None:
        self._options = options
        self._constraints = constraints
        self._has_constraints = any(constraint is not None for constraint in constraints)

    def __bool__(self) -> bool:
        """Whether any row has a limit."""
        return self._has_constraints or not self._options.are_idle

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
        processors: Sequence[Any] = ()
        if self._has_constraints:
            self._mask(limited, rows)
        if not self._options.are_idle:
            limited, processors = self._options.apply(limited, rows, depth)
        has_no_token = (limited == _IMPOSSIBLE).all(dim=1, keepdim=True)
        return torch.where(has_no_token, logits.float(), limited), processors

    def record(self, rows: npt.NDArray[np.intp], tokens: torch.Tensor) -> None:
        """Takes the drafts of N rows, int64 [N], on which the next ones depend."""
        if self._options.read_drafts:
            self._options.record(rows, tokens)
        if not self._has_constraints:
            return
        for row, token in zip(rows.tolist(), tokens.tolist(), strict=True):
            if (constraint := self._constraints[row]) is not None:
                constraint.advance(token)

    def select(self, index: npt.NDArray[np.intp]) -> "RowLimits":
        """The limits of the rows at `index`, before any of their drafts."""
        return RowLimits(self._options.select(index), [self._constraints[i] for i in index])

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
