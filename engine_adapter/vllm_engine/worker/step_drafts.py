"""The drafts of a step: at its end, or late.

Under asynchronous scheduling the next step is scheduled, with places for drafts, while the device
still works on this one. Its drafts are made when the next step begins to run: there the main thread
waits for the tokens of this one, unless no proposer was planned or the device has looked them up
(`early_lookups`). Places that got no draft are left out of the step, so neither the target nor the
counts see them.
"""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence, Set
from copy import copy
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional

from engine_adapter.policies.contract import StepPlan
from engine_adapter.proposers.draft_table import DraftRow, DraftTable
from engine_adapter.proposers.staging import HostCopy, to_device
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.wire import DraftReport
from engine_adapter.vllm_engine.worker.drafting.early_drafts import UnreadStep
from engine_adapter.vllm_engine.worker.drafting.tensor_parallel import share_drafts, share_lengths
from engine_adapter.vllm_engine.worker.early_lookups import EarlyLookup
from engine_adapter.vllm_engine.worker.target import TargetStep


@dataclass(frozen=True, slots=True)
class VerifiedStep:
    """A step of R rows whose drafts are verified.

    Attributes:
        scheduled: vLLM's `SchedulerOutput`, with the plan.
        input_batch: vLLM's `InputBatch`.
        emitted: the tokens of each row, int64 [R, width], and how many of them were emitted,
            int32 [R].
        hidden: [T or more, H], the target's final hidden states of the T tokens read.
        emitted_on_device: int64 [R, width].
        num_rejected: int32 [R], on the device, how many drafts of each row were rejected.
    """

    scheduled: Any
    input_batch: Any
    emitted: HostCopy
    hidden: torch.Tensor
    emitted_on_device: torch.Tensor
    num_rejected: torch.Tensor


@dataclass(slots=True)
class PendingStep:
    """A step whose tokens are not in the mirrors yet.

    Attributes:
        step: the step.
        lookup: its drafts, if the device has looked them up.
        ended_ids: requests whose rows are free since, or another request's.
    """

    step: VerifiedStep
    lookup: EarlyLookup | None
    ended_ids: set[str] = field(default_factory=set)

    @property
    def needs_tokens(self) -> bool:
        """Whether its drafts are made with its tokens."""
        return self.lookup is None and bool(self.step.scheduled.specgate_plan)


class StepDrafts:
    """Drafts at the end of each step; the scheduler gets the drafts before the next one.

    Args:
        runner: vLLM's, with `input_batch` and `drafter`.
        capacity: the most drafts of a row.
        has_ranks: several ranks draft for the same rows.

    Attributes:
        report: of the newest drafting; `None` if nothing was planned.
        drafts: request id -> its drafts, of the newest drafting. Requests without are left out.
        drafts_early: drafts are made before the tokens of the step are read, where they are late
            and their proposer can.
    """

    def __init__(self, runner: Any, capacity: int, *, has_ranks: bool = False) -> None:
        self._runner = runner
        self._capacity = capacity
        self._has_ranks = has_ranks
        self._zeros: torch.Tensor | None = None
        self.report: DraftReport | None = None
        self.drafts: dict[str, Sequence[int]] = {}
        self.drafts_early = False

    def begin_step(self, scheduler_output: Any) -> Any:
        """Called first in a step: the step that is to run, as vLLM's `SchedulerOutput`."""
        self.report, self.drafts = None, {}
        return scheduler_output

    def draft_after(self, step: VerifiedStep) -> torch.Tensor:
        """Called when a step is verified: its drafts, int64 [R, capacity].

        The places after a row's drafts have any valid token, which the target may read.
        """
        drafts = self._draft(step, frozenset())
        if drafts is None:
            return self._no_drafts(len(step.input_batch.req_ids))
        return self._padded(drafts)

    def take_draft_token_ids(self) -> Any:
        """The drafts that the scheduler needs, as vLLM's `DraftTokenIds`; `None` for none."""
        drafts = {id_: row for id_, row in self.drafts.items() if self._reads_drafts(id_)}
        if not drafts:
            return None
        return compat.DraftTokenIds(list(drafts), [*map(list, drafts.values())])

    def _reads_drafts(self, request_id: str) -> bool:
        """Whether the scheduler reads the drafts of a request, and not their number alone."""
        return True

    def _draft(self, step: VerifiedStep, ended_ids: Set[str]) -> torch.Tensor | None:
        """The drafts for the rows of a step, but not for requests that have ended since.

        int64 [R, capacity or fewer]. `None` if none were planned; the tokens of the step are in the
        mirrors then, too.
        """
        runner, batch = self._runner, step.input_batch
        rows, num_sampled = batch.idx_mapping_np, self._read(step, ended_ids)
        if not (plan := without_requests(step.scheduled.specgate_plan, ended_ids)):
            return None
        target = TargetStep(
            scheduled=step.scheduled.num_scheduled_tokens,
            num_sampled=num_sampled,
            rows=rows,
            starts=batch.cu_num_logits_np,
            sample_places=batch.logits_indices,
            hidden=step.hidden,
        )
        drafts, self.report = runner.drafter.propose(plan, target)
        row_drafts = [drafts[row] for row in rows.tolist()]
        if self._has_ranks:
            for request_id in runner.drafter.sampled_drafts.drop_unshared(batch.req_ids):
                row_drafts[batch.req_ids.index(request_id)] = ()
        self.drafts = {
            id_: drafts_of_row
            for id_, drafts_of_row in zip(batch.req_ids, row_drafts, strict=True)
            if drafts_of_row
        }
        on_device = drafts_on_device(row_drafts, self._capacity, runner.device)
        return share_drafts(on_device) if self._has_ranks else on_device

    def _read(self, step: VerifiedStep, ended_ids: Set[str]) -> npt.NDArray[np.int64]:
        """Takes the tokens of a step into the mirrors; returns how many, as `RequestRows.append`.

        Those of requests that have ended since are left out.
        """
        batch, (emitted, counts) = step.input_batch, step.emitted.arrays()
        is_live: Any = slice(None)
        if ended_ids:
            is_live = np.array([id_ not in ended_ids for id_ in batch.req_ids], np.bool_)
        rows = batch.idx_mapping_np[is_live]
        num_sampled: npt.NDArray[np.int64] = self._runner.input_batch.append(
            rows, emitted[is_live], counts[is_live]
        )
        return num_sampled

    def _padded(self, drafts: torch.Tensor) -> torch.Tensor:
        """Drafts of R rows with all their places, int64 [R, capacity]."""
        missing = self._capacity - drafts.shape[1]
        return functional.pad(drafts, (0, missing)) if missing else drafts

    def _no_drafts(self, count: int) -> torch.Tensor:
        """Those of `count` rows, int64 [count, capacity]. They are only read."""
        if self._zeros is None or self._zeros.shape[0] != count:
            shape = count, self._capacity
            self._zeros = torch.zeros(shape, dtype=torch.int64, device=self._runner.device)
        return self._zeros


class LateStepDrafts(StepDrafts):
    """Drafts when the next step begins to run; the scheduler gets their number with its outputs."""

    def __init__(self, runner: Any, capacity: int, *, has_ranks: bool = False) -> None:
        super().__init__(runner, capacity, has_ranks=has_ranks)
        # Steps whose tokens are not in the mirrors yet, the oldest first.
        self._pending: deque[PendingStep] = deque()
        # Request id -> drafts of a row that no step has verified yet.
        self._waiting: dict[str, Sequence[int]] = {}

    def begin_step(self, scheduler_output: Any) -> Any:
        """See `StepDrafts.begin_step`. The step before gets its drafts here.

        If none was planned for it, or the device has made them, nothing waits for its tokens: they
        are taken a step later.
        """
        ended_ids = scheduler_output.finished_req_ids | (
            scheduler_output.preempted_req_ids or set()
        )
        ended_ids |= {request.req_id for request in scheduler_output.scheduled_new_reqs}
        for pending in self._pending:
            pending.ended_ids |= ended_ids
        for request_id in ended_ids:
            self._waiting.pop(request_id, None)
        self.report, self.drafts = None, {}
        if not scheduler_output.total_num_scheduled_tokens:
            return scheduler_output  # vLLM runs nothing, and no report would reach the scheduler
        while self._pending:
            pending = self._pending[0]
            if len(self._pending) == 1 and not pending.needs_tokens:
                self._take_lookup(pending)
                break
            self._pending.popleft()
            if pending.lookup is None:
                self._draft_late(pending.step, pending.ended_ids)
            else:
                self._read(pending.step, pending.ended_ids)
                self._runner.drafter.lookups.note_matches(pending.lookup)
        return self._with_drafts(scheduler_output)

    def draft_after(self, step: VerifiedStep) -> torch.Tensor:
        """See `StepDrafts.draft_after`; the drafts come later. Some are launched now."""
        lookup = self._draft_early(step) if self.drafts_early else None
        self._pending.append(PendingStep(step, lookup))
        if lookup is None:
            return self._no_drafts(len(step.input_batch.req_ids))
        return self._padded(lookup.table.tokens)

    def _draft_early(self, step: VerifiedStep) -> EarlyLookup | None:
        """Drafts that need not wait for the tokens of the step.

        If one lookup makes all drafts, they are returned. Otherwise `None`: the drafts of models
        wait in the models.
        """
        plan, drafter = step.scheduled.specgate_plan, self._runner.drafter
        if not plan:
            return None
        unread_step = self._without_tokens(step)
        if not self._has_ranks:  # a rank whose lookup fails would have another number of drafts
            lookup = drafter.look_up_early(plan, unread_step, step.input_batch.idx_mapping)
            if lookup is not None:
                return lookup
        # The mirrors have the rows as they were before this step, if no other is pending.
        if not self._pending:
            drafter.propose_early(plan, unread_step)
        return None

    def _without_tokens(self, step: VerifiedStep) -> UnreadStep:
        """The step, before its tokens are read."""
        batch = step.input_batch
        num_drafts = np.diff(batch.cu_num_logits_np) - 1
        return UnreadStep(
            batch.idx_mapping_np,
            batch.num_scheduled_tokens,
            num_drafts.astype(np.int64),
            step.emitted_on_device,
            np.arange(len(num_drafts)),
            step.num_rejected,
        )

    def _reads_drafts(self, request_id: str) -> bool:
        return self._is_constrained(request_id)

    def _take_lookup(self, pending: PendingStep) -> None:
        """Takes the drafts of a step that were made without its tokens, if there are any."""
        if pending.lookup is None:
            return
        lookups = self._runner.drafter.lookups
        drafts, self.report = lookups.take(pending.lookup, pending.ended_ids)
        self.report.drafted = {
            id_: len(drafts.get(id_, ())) for id_ in pending.step.input_batch.req_ids
        }
        self._waiting |= drafts

    def _draft_late(self, step: VerifiedStep, ended_ids: Set[str]) -> None:
        """Drafts after a step, and writes the drafts where the next one reads them."""
        if (drafts := self._draft(step, ended_ids)) is None:
            return
        assert self.report is not None
        ids = step.input_batch.req_ids
        lengths = [len(self.drafts.get(id_, ())) for id_ in ids]
        if self._has_ranks and (shared := share_lengths(lengths)) != lengths:
            # The tokens are rank 0's already; only their numbers are read of these.
            self.drafts = {id_: [0] * n for id_, n in zip(ids, shared, strict=True) if n}
            lengths = shared
        self.report.drafted = dict(zip(ids, lengths, strict=True))
        self._waiting |= self.drafts
        # A row that has ended may be another request's by now, which has no drafts yet.
        width = drafts.shape[1]
        self._runner.req_states.draft_tokens[step.input_batch.idx_mapping, :width] = drafts

    def _with_drafts(self, scheduler_output: Any) -> Any:
        """The step without the places that got no draft."""
        tokens = dict(scheduler_output.num_scheduled_tokens)
        places, self.drafts = scheduler_output.scheduled_spec_decode_tokens, {}
        verified: dict[str, Sequence[int]] = {}
        for request_id in tokens:
            drafts = self._waiting.pop(request_id, ())[: len(places.get(request_id, ()))]
            if request_id not in places:
                continue
            self.drafts[request_id] = drafts
            width = len(places[request_id])
            if not self._is_constrained(request_id):
                tokens[request_id] -= width - len(drafts)
                width = len(drafts)
            if width:
                verified[request_id] = places[request_id][:width]
        if not places:
            return scheduler_output
        step = copy(scheduler_output)  # the scheduler's own stays as it is
        step.num_scheduled_tokens, step.scheduled_spec_decode_tokens = tokens, verified
        step.total_num_scheduled_tokens = sum(tokens.values())
        return step

    def _is_constrained(self, request_id: str) -> bool:
        """Whether a request has structured output: vLLM makes a mask for each of its places."""
        return self._runner.requests[request_id].sampling_params.structured_outputs is not None


def drafts_on_device(
    row_drafts: Sequence[Sequence[int]], capacity: int, device: torch.device
) -> torch.Tensor:
    """The drafts of R rows as the target reads them, int64 [R, capacity], after one upload.

    After a row's drafts it has other valid tokens. Those of a model stay on the device. One that
    drafted for all rows has made the tensor already, which may have fewer places.
    """
    if (table := table_of(row_drafts)) is not None:
        return table.tokens[:, :capacity]
    from_table: defaultdict[DraftTable, list[tuple[int, int]]] = defaultdict(list)
    lists = list(row_drafts)
    for row, drafts in enumerate(row_drafts):
        if type(drafts) is DraftRow:
            from_table[drafts.table].append((row, drafts.row))
            lists[row] = ()
    tokens = np.zeros((len(lists), capacity), np.int64)
    sizes = np.array([len(drafts) for drafts in lists])
    tokens[np.arange(capacity) < sizes[:, None]] = [*chain.from_iterable(lists)]
    drafted, *pairs = to_device(device, tokens, *(np.array(pairs) for pairs in from_table.values()))
    for table, pair in zip(from_table, pairs, strict=True):
        target_rows, table_rows = pair.unbind(1)
        width = min(table.tokens.shape[1], capacity)
        drafted[target_rows, :width] = table.tokens[table_rows, :width]
    return drafted


def table_of(row_drafts: Sequence[Sequence[int]]) -> DraftTable | None:
    """The table whose rows these are, in its order; `None` if there is none."""
    table = row_drafts[0].table if type(row_drafts[0]) is DraftRow else None
    if table is None or len(table.tokens) != len(row_drafts):
        return None
    for row, drafts in enumerate(row_drafts):
        if type(drafts) is not DraftRow or drafts.table is not table or drafts.row != row:
            return None
    return table


def without_requests(plan: StepPlan, ended_ids: Set[str]) -> StepPlan:
    """The plan for the other requests."""
    if not ended_ids:
        return plan

    def live(by_request: Mapping[str, Any]) -> dict[str, Any]:
        return {id_: value for id_, value in by_request.items() if id_ not in ended_ids}

    shadows = {
        name: [id_ for id_ in ids if id_ not in ended_ids] for name, ids in plan.shadows.items()
    }
    return StepPlan(live(plan.drafts), live(plan.fallbacks), shadows, live(plan.verify_caps))
