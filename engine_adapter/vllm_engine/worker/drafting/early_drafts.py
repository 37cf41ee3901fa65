"""Drafts that a model makes before the CPU has the tokens of the step they follow.

Under asynchronous scheduling the CPU would wait for a step's tokens, then launch the draft model,
while the device has nothing to do. But most of what a draft model's passes need is known before:
each row's tokens up to this step, and how many drafts the step verifies. Which of these are
accepted is known on the device. So the first pass runs the positions of all of them, as vLLM's
own heads do; the output at the last accepted one gives the first draft, and the later passes take
their positions from the device.

The CPU learns the tokens a step later. Then it notes which KV has become valid
(`PagedDraftModel.propose`). A row with something else to know waits, and is drafted for then.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.staging import to_device


@dataclass(frozen=True, slots=True)
class UnreadStep:
    """A verified step whose tokens only the device knows, of R rows.

    Attributes:
        rows: int [R], the rows' indices in the engine's batch.
        num_read: int [R], how many tokens of each row the target has read.
        num_drafts: int64 [R], how many drafts of each row were verified.
        emitted: int64 [any, width], on the device: the tokens that a row emitted, then any others.
        source: int64 [R], each row's index there.
        num_rejected: int32 [R], on the device, how many of the drafts were rejected.
    """

    rows: npt.NDArray[np.intp]
    num_read: npt.NDArray[np.integer[Any]]
    num_drafts: npt.NDArray[np.int64]
    emitted: torch.Tensor
    source: npt.NDArray[np.int64]
    num_rejected: torch.Tensor

    def select(self, index: npt.NDArray[np.intp]) -> "UnreadStep":
        """That of the rows at `index`, [N]."""
        if len(index) == len(self.rows):
            return self
        (on_device,) = to_device(self.emitted.device, index)
        return UnreadStep(
            self.rows[index],
            self.num_read[index],
            self.num_drafts[index],
            self.emitted,
            self.source[index],
            self.num_rejected[on_device],
        )

    def emits(self, length: npt.NDArray[np.integer[Any]], computed: npt.NDArray[Any]) -> Any:
        """Which rows emit tokens, bool [R]: the others are in the middle of their prompts.

        Args:
            length: int [R], the committed tokens of each row before the step.
            computed: int [R], how many of them the target had read.
        """
        return computed + self.num_read - self.num_drafts >= length

    def place(self, tokens: torch.Tensor, stops: npt.NDArray[np.int64]) -> None:
        """Writes what each row emitted where a pass reads it: one token and one for each draft.

        Args:
            tokens: int32 [T], on the device, what the pass reads, row by row.
            stops: int64 [R], the end of each row among the T.
        """
        counts = self.num_drafts + 1
        row = np.arange(len(counts)).repeat(counts)
        place = np.arange(len(row)) - (counts.cumsum() - counts)[row]
        begins = stops - counts
        source = self.source[row] * self.emitted.shape[1] + place
        index, source_index = to_device(tokens.device, begins[row] + place, source)
        tokens[index] = self.emitted.reshape(-1)[source_index].to(tokens.dtype)


class _EarlyDraft(NamedTuple):
    """The early drafts of a row.

    Attributes:
        num_tokens: the committed tokens of the row before the step that they follow.
        num_drafts: how many drafts that step verified.
        tokens: the drafts; a `DraftRow`.
        catchup_tokens: the lag that was removed before drafting.
    """

    num_tokens: int
    num_drafts: int
    tokens: Sequence[int]
    catchup_tokens: int

    def follows(self, num_tokens: int, k: int) -> bool:
        """Whether these are `k` drafts or more of a row that has so many committed tokens now."""
        emitted = num_tokens - self.num_tokens
        return 0 < emitted <= self.num_drafts + 1 and 0 < k <= len(self.tokens)


class EarlyDrafts:
    """The early drafts of the newest step, by request, until the tokens of the step are read."""

    def __init__(self) -> None:
        self._drafts: dict[str, _EarlyDraft] = {}

    def __len__(self) -> int:
        return len(self._drafts)

    def set(
        self,
        batch: DraftBatch,
        step: UnreadStep,
        tokens: Sequence[Sequence[int]],
        catchup_tokens: npt.NDArray[np.int64],
    ) -> None:
        """Takes the drafts of the R rows of a batch; see `DraftBatch` and `Drafts`."""
        rows = batch.num_tokens.tolist(), step.num_drafts.tolist(), tokens, catchup_tokens.tolist()
        by_request = zip(batch.request_ids, *rows, strict=True)
        self._drafts = {request_id: _EarlyDraft(*row) for request_id, *row in by_request}

    def forget(self, request_ids: Sequence[str]) -> None:
        """Drops the drafts of requests that ended or were preempted."""
        for request_id in request_ids:
            self._drafts.pop(request_id, None)

    def take(self, batch: DraftBatch) -> tuple[npt.NDArray[np.intp], Drafts]:
        """The rows of the batch that have drafts, [N], and the drafts of all R rows."""
        rows: list[int] = []
        drafts: list[Sequence[int]] = [[] for _ in batch.rows]
        catchup_tokens = 0
        drafts_of, self._drafts = self._drafts, {}
        batch_rows = zip(
            batch.request_ids, batch.num_tokens.tolist(), batch.k.tolist(), strict=True
        )
        for i, (request_id, num_tokens, k) in enumerate(batch_rows):
            draft = drafts_of.get(request_id)
            if draft is not None and draft.follows(num_tokens, k):
                rows.append(i)
                drafts[i] = draft.tokens[:k]
                catchup_tokens += draft.catchup_tokens
        return np.array(rows, np.intp), Drafts(drafts, None, catchup_tokens)
