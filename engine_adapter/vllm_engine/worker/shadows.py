"""Shadow drafts: made beside a row's own, or dropped, and compared with what the target writes.

They are never verified and never emitted. A draft waits until the row has written as many tokens,
or one that differs; the tokens before the difference are what verification would have accepted.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from engine_adapter.policies.contract import DraftOutcome, StepPlan
from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.vllm_engine.wire import DraftReport


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A draft for the tokens of a row from `start` on."""

    start: int
    requested_k: int
    tokens: Sequence[int]


class ShadowDrafts:
    """The shadow drafts that wait for the target's tokens, one for each request and proposer."""

    def __init__(self) -> None:
        self._waiting: dict[tuple[str, str], _Waiting] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def waits(self, request_id: str, proposer: str) -> bool:
        """Whether a draft of this proposer still waits for the row's tokens."""
        return (request_id, proposer) in self._waiting

    def add(
        self, proposer: str, batch: DraftBatch, drafts: Sequence[Sequence[int]]
    ) -> list[DraftOutcome]:
        """Takes the drafts of a batch; returns the outcomes that are known: nothing was found."""
        outcomes = []
        for i, tokens in enumerate(drafts):
            requested_k = int(batch.k[i])
            if tokens:
                self.keep(proposer, batch, i, tokens)
            elif requested_k:
                outcomes.append(DraftOutcome(batch.request_ids[i], proposer, requested_k, 0, 0, 0))
        return outcomes

    def keep(self, proposer: str, batch: DraftBatch, i: int, tokens: Sequence[int]) -> None:
        """Lets the draft of the batch's row `i` wait."""
        self._waiting[batch.request_ids[i], proposer] = _Waiting(
            int(batch.num_tokens[i]), int(batch.k[i]), tokens
        )

    def compare(
        self, rows: Iterable[tuple[str, int, int]], token_ids: npt.NDArray[np.int32]
    ) -> list[DraftOutcome]:
        """The outcomes that the rows' tokens decide.

        Args:
            rows: request id, the row in the batch, and its committed tokens.
            token_ids: int32 [B, max_model_len], the tokens of the batch.
        """
        if not self._waiting:
            return []
        rows_by_request = {request_id: (row, length) for request_id, row, length in rows}
        outcomes = []
        for key, draft in list(self._waiting.items()):
            if key[0] not in rows_by_request:
                continue
            row, length = rows_by_request[key[0]]
            end = min(length, draft.start + len(draft.tokens))
            if end <= draft.start:
                continue
            drafted = np.array([*draft.tokens[: end - draft.start]], np.int32)
            equal = token_ids[row, draft.start : end] == drafted
            num_equal = len(equal) if equal.all() else int(equal.argmin())
            if num_equal < len(equal) or num_equal == len(draft.tokens):
                length = len(draft.tokens)
                outcomes.append(DraftOutcome(*key, draft.requested_k, length, length, num_equal))
                del self._waiting[key]
        return outcomes

    def forget_proposer(self, name: str) -> None:
        """Drops the drafts of a proposer that is unloaded."""
        for key in [key for key in self._waiting if key[1] == name]:
            del self._waiting[key]

    def forget(self, request_ids: Iterable[str]) -> None:
        """Drops the drafts of requests that ended or were preempted."""
        if self._waiting:
            ended_ids = set(request_ids)
            for key in [key for key in self._waiting if key[0] in ended_ids]:
                del self._waiting[key]


def trim_lookup_drafts(
    plan: StepPlan,
    name: str,
    batch: DraftBatch,
    drafts: Drafts,
    shadows: ShadowDrafts,
    report: DraftReport,
) -> Drafts:
    """The drafts of a lookup as far as `plan.verify_caps` lets them be verified.

    A draft that is dropped waits like a shadow, so that its outcome is known too. A draft that was
    sampled is only cut to its k: its length may tell of its tokens, and if it were dropped because
    of its tokens, the output's distribution would change.

    Args:
        name: the proposer.
        report: gets the lengths before the cuts, and the outcomes that are known.
    """
    tokens = list(drafts.tokens)
    for i, request_id in enumerate(batch.request_ids):
        verify_caps, length = plan.verify_caps.get(request_id), len(tokens[i])
        if verify_caps is None or not length:
            continue
        num_kept = min(length, plan.drafts[request_id].num_speculative_tokens)
        if drafts.probabilities is None:
            num_kept = min(num_kept, verify_caps[length])
        if num_kept:
            report.full_lengths[request_id] = length
            tokens[i] = tokens[i][:num_kept]
            continue
        report.dropped.append(request_id)
        if shadows.waits(request_id, name):
            report.outcomes.append(DraftOutcome(request_id, name, int(batch.k[i]), length, 0, 0))
        else:
            shadows.keep(name, batch, i, tokens[i])
        tokens[i] = []
    return replace(drafts, tokens=tokens)
