"""Drafts that are made when the next step begins to run."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.policies.contract import StepPlan
from engine_adapter.proposers.draft_table import DraftRow, DraftTable
from engine_adapter.proposers.staging import HostCopy
from engine_adapter.seam.types import SpecMethod
from engine_adapter.vllm_engine.wire import DraftReport
from engine_adapter.vllm_engine.worker import step_drafts
from engine_adapter.vllm_engine.worker.draft_clock import DraftClock
from engine_adapter.vllm_engine.worker.early_lookups import EarlyLookup, EarlyLookups
from engine_adapter.vllm_engine.worker.request_rows import RequestRows
from engine_adapter.vllm_engine.worker.step_drafts import (
    LateStepDrafts,
    StepDrafts,
    VerifiedStep,
    drafts_on_device,
    without_requests,
)

CAPACITY, ROWS = 3, 4
NGRAM = SpecMethod("ngram", 3)
PLAN = StepPlan({"a": NGRAM, "b": NGRAM})


class Runner:
    """Two requests: `a` in row 2, `b` in row 0."""

    def __init__(self, drafts: dict[int, list[int]]) -> None:
        self.device = torch.device("cpu")
        self.plans: list[StepPlan] = []
        self.unread: list[Any] = []
        self.drafts = drafts
        self.drafter, self.looks_up = self, False
        self.lookups = EarlyLookups(self, {})
        self.req_states = SimpleNamespace(
            max_num_reqs=ROWS,
            max_model_len=16,
            num_computed_tokens_np=np.array([9, 0, 9, 0], np.int32),
            draft_tokens=torch.full((ROWS, CAPACITY), 9),
        )
        self.input_batch = RequestRows(self.req_states)
        self.input_batch.num_tokens_no_spec[:] = 4
        params = SimpleNamespace(structured_outputs=None)
        self.requests = {name: SimpleNamespace(sampling_params=params) for name in "ab"}

    def look_up_early(self, plan: StepPlan, step: Any, rows: torch.Tensor) -> EarlyLookup | None:
        if not self.looks_up:
            return None
        table = DraftTable(torch.tensor([[1, 2], [3, 4]]), is_read=False)
        drafts = {"a": DraftRow(table, 0, 2), "b": DraftRow(table, 1, 1)}
        matches = HostCopy(torch.tensor([True, False]))
        return EarlyLookup("ngram", table, drafts, matches, DraftClock(self.device))

    def propose_early(self, plan: StepPlan, step: Any) -> None:
        self.unread.append(step)

    def propose(self, plan: StepPlan, step: Any) -> tuple[list[list[int]], DraftReport]:
        self.plans.append(plan)
        return [self.drafts.get(row, []) for row in range(ROWS)], DraftReport()


def scheduled(
    tokens: dict[str, int],
    *,
    ended: tuple[str, ...] = (),
    new: tuple[str, ...] = (),
    plan: Any = PLAN,
) -> Any:
    """vLLM's `SchedulerOutput`: a row that reads more than one token has places for drafts."""
    return SimpleNamespace(
        specgate_plan=plan,
        num_scheduled_tokens=dict(tokens),
        total_num_scheduled_tokens=sum(tokens.values()),
        scheduled_spec_decode_tokens={
            name: [-1] * (count - 1) for name, count in tokens.items() if count > 1
        },
        finished_req_ids=set(ended),
        preempted_req_ids=None,
        scheduled_new_reqs=[SimpleNamespace(req_id=name) for name in new],
    )


def verified(plan: Any = PLAN) -> VerifiedStep:
    batch = SimpleNamespace(
        req_ids=["a", "b"],
        idx_mapping_np=np.array([2, 0]),
        idx_mapping=torch.tensor([2, 0]),
        logits_indices=torch.tensor([0, 1]),
        cu_num_logits_np=np.array([0, 2, 3]),
        num_scheduled_tokens=np.array([2, 1]),
    )
    emitted, counts = torch.tensor([[5, 6], [7, 0]]), torch.tensor([2, 1], dtype=torch.int32)
    step = scheduled({"a": 2, "b": 1}, plan=plan)
    rejected = torch.zeros(2, dtype=torch.int32)
    return VerifiedStep(
        step, batch, HostCopy(emitted, counts), torch.zeros(2, 1), emitted, rejected
    )


@pytest.fixture
def runner() -> Runner:
    return Runner({2: [1, 2], 0: []})


@pytest.fixture
def late(runner: Runner) -> LateStepDrafts:
    return LateStepDrafts(runner, CAPACITY)


def test_no_proposer_is_asked_before_the_next_step(late: LateStepDrafts, runner: Runner) -> None:
    assert late.draft_after(verified()).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert runner.plans == []
    assert runner.input_batch.num_tokens_no_spec.tolist() == [4, 4, 4, 4]


def test_models_draft_before_the_tokens_are_read(late: LateStepDrafts, runner: Runner) -> None:
    late.draft_after(verified())
    assert runner.unread == [], "on a CPU nothing runs beside Python"
    late.begin_step(scheduled({"a": 4, "b": 1}))
    late.drafts_early = True
    late.draft_after(verified())
    (unread,) = runner.unread
    assert unread.rows.tolist() == [2, 0]
    assert unread.num_read.tolist() == [2, 1]
    assert unread.num_drafts.tolist() == [1, 0]


def test_no_model_drafts_early_while_the_mirrors_lack_a_step(
    late: LateStepDrafts, runner: Runner
) -> None:
    late.drafts_early = True
    late.draft_after(verified(plan=StepPlan()))
    late.draft_after(verified())
    assert runner.unread == []
    late.begin_step(scheduled({"a": 4, "b": 1}))
    late.draft_after(verified())
    assert len(runner.unread) == 1


@pytest.fixture
def looking_up(late: LateStepDrafts, runner: Runner) -> LateStepDrafts:
    """The device looks up: two drafts for `a`, one for `b`, which has no match."""
    late.drafts_early = runner.looks_up = True
    return late


def test_nothing_waits_for_the_tokens_of_a_step_that_the_device_looks_up(
    looking_up: LateStepDrafts, runner: Runner
) -> None:
    assert looking_up.draft_after(verified()).tolist() == [[1, 2, 0], [3, 4, 0]]
    step = looking_up.begin_step(scheduled({"a": 4, "b": 4}))
    assert step.num_scheduled_tokens == {"a": 3, "b": 2}
    assert step.scheduled_spec_decode_tokens == {"a": [-1, -1], "b": [-1]}
    assert looking_up.report is not None
    assert looking_up.report.drafted == {"a": 2, "b": 1}
    assert runner.input_batch.num_tokens_no_spec.tolist() == [4, 4, 4, 4]
    looking_up.draft_after(verified())
    step = looking_up.begin_step(scheduled({"a": 4, "b": 4}))
    assert step.num_scheduled_tokens == {"a": 3, "b": 1}, "the first lookup is read by now"
    assert looking_up.report.drafted == {"a": 2, "b": 0}
    assert runner.input_batch.num_tokens_no_spec.tolist() == [5, 4, 6, 4]
    assert (runner.plans, runner.unread) == ([], [])


def test_after_a_lookup_a_step_with_other_drafts_is_read_with_it(
    looking_up: LateStepDrafts, runner: Runner
) -> None:
    looking_up.draft_after(verified())
    looking_up.begin_step(scheduled({"a": 4, "b": 4}))
    runner.looks_up = False
    looking_up.draft_after(verified())
    assert runner.unread == [], "the mirrors lack the step before"
    step = looking_up.begin_step(scheduled({"a": 4, "b": 4}))
    assert step.num_scheduled_tokens == {"a": 3, "b": 1}
    assert len(runner.plans) == 1
    assert runner.input_batch.num_tokens_no_spec.tolist() == [6, 4, 8, 4]


def test_a_step_that_runs_nothing_leaves_a_lookup_to_the_next(
    looking_up: LateStepDrafts, runner: Runner
) -> None:
    looking_up.draft_after(verified())
    looking_up.begin_step(scheduled({}, ended=("a",)))
    assert looking_up.report is None
    step = looking_up.begin_step(scheduled({"b": 4}))
    assert step.num_scheduled_tokens == {"b": 2}
    assert looking_up.drafts == {"b": [3]}


def test_ranks_do_not_look_up_on_the_device(runner: Runner) -> None:
    late = LateStepDrafts(runner, CAPACITY, has_ranks=True)
    late.drafts_early = runner.looks_up = True
    assert late.draft_after(verified()).tolist() == [[0, 0, 0], [0, 0, 0]]
    assert len(runner.unread) == 1


def test_places_without_a_draft_are_left_out_and_the_scheduler_keeps_its_own(
    late: LateStepDrafts, runner: Runner
) -> None:
    late.draft_after(verified())
    own = scheduled({"a": 4, "b": 4})
    step = late.begin_step(own)
    assert step.num_scheduled_tokens == {"a": 3, "b": 1}
    assert step.total_num_scheduled_tokens == 4
    assert step.scheduled_spec_decode_tokens == {"a": [-1, -1]}
    assert own.num_scheduled_tokens == {"a": 4, "b": 4}
    assert late.report is not None
    assert late.report.drafted == {"a": 2, "b": 0}
    assert runner.req_states.draft_tokens[[2, 0]].tolist() == [[1, 2, 0], [0, 0, 0]]
    assert runner.input_batch.num_tokens_no_spec.tolist() == [5, 4, 6, 4]
    # vLLM's number, 9, counts drafts that were rejected.
    assert runner.input_batch.num_computed_tokens_cpu[[2, 0]].tolist() == [3, 3]


def test_a_row_with_structured_output_has_all_its_places(
    late: LateStepDrafts, runner: Runner
) -> None:
    params = SimpleNamespace(structured_outputs={})
    runner.requests["a"] = SimpleNamespace(sampling_params=params)
    late.draft_after(verified())
    step = late.begin_step(scheduled({"a": 4, "b": 1}))
    assert step.num_scheduled_tokens == {"a": 4, "b": 1}
    assert late.drafts == {"a": [1, 2]}


@pytest.mark.needs_vllm
def test_the_scheduler_gets_the_drafts_of_rows_with_structured_output_alone(
    late: LateStepDrafts, runner: Runner
) -> None:
    runner.drafts = {2: [1, 2], 0: [7]}
    late.draft_after(verified())
    late.begin_step(scheduled({"a": 4, "b": 4}))
    assert late.drafts == {"a": [1, 2], "b": [7]}
    assert late.take_draft_token_ids() is None
    params = SimpleNamespace(structured_outputs={})
    runner.requests["a"] = SimpleNamespace(sampling_params=params)
    for_scheduler = late.take_draft_token_ids()
    assert (for_scheduler.req_ids, for_scheduler.draft_token_ids) == (["a"], [[1, 2]])


def test_a_row_that_waits_keeps_its_drafts_for_a_later_step(late: LateStepDrafts) -> None:
    late.draft_after(verified())
    late.begin_step(scheduled({"b": 1}))
    assert late.report is not None
    assert late.report.drafted["a"] == 2
    step = late.begin_step(scheduled({"a": 4}))
    assert step.num_scheduled_tokens == {"a": 3}
    assert late.report is None


def test_drafts_of_a_request_that_has_ended_are_dropped(late: LateStepDrafts) -> None:
    late.draft_after(verified())
    late.begin_step(scheduled({"b": 1}))
    late.begin_step(scheduled({}, ended=("a",)))
    assert late.begin_step(scheduled({"a": 4})).num_scheduled_tokens == {"a": 1}


def test_no_proposer_is_asked_for_a_request_that_has_ended(
    late: LateStepDrafts, runner: Runner
) -> None:
    late.draft_after(verified())
    late.begin_step(scheduled({}, ended=("a",)))  # it runs nothing, so it reports nothing
    assert runner.plans == []
    late.begin_step(scheduled({"b": 1}))
    assert [set(plan.drafts) for plan in runner.plans] == [{"b"}]


def test_nothing_waits_for_the_tokens_of_a_step_without_a_plan(
    late: LateStepDrafts, runner: Runner
) -> None:
    late.draft_after(verified(plan=StepPlan()))
    own = scheduled({"a": 1, "b": 1})
    assert late.begin_step(own) is own
    assert runner.input_batch.num_tokens_no_spec.tolist() == [4, 4, 4, 4]
    late.draft_after(verified(plan=StepPlan()))
    late.begin_step(own)  # the first of the two has ended by now
    assert runner.input_batch.num_tokens_no_spec.tolist() == [5, 4, 6, 4]
    assert (runner.plans, late.report) == ([], None)
    late.draft_after(verified())
    late.begin_step(own)
    assert runner.input_batch.num_tokens_no_spec.tolist() == [7, 4, 10, 4]
    assert runner.plans == [PLAN]


@pytest.mark.parametrize("way", ["ended", "new"])
def test_a_row_that_is_another_requests_by_then_gets_no_tokens_of_the_one_before(
    late: LateStepDrafts, runner: Runner, way: str
) -> None:
    late.draft_after(verified(plan=StepPlan()))
    late.begin_step(scheduled({"b": 1}, **{way: ("a",)}))
    late.draft_after(verified(plan=StepPlan()))
    late.begin_step(scheduled({"b": 1}))
    assert runner.input_batch.num_tokens_no_spec.tolist() == [5, 4, 4, 4]


def test_a_plan_loses_all_that_is_for_requests_that_have_ended() -> None:
    plan = StepPlan({"a": NGRAM, "b": NGRAM}, {"a": NGRAM}, {"ngram": ["a", "b"]}, {"a": [0, 1]})
    assert without_requests(plan, {"a"}) == StepPlan({"b": NGRAM}, {}, {"ngram": ["b"]}, {})
    assert without_requests(plan, set()) is plan


def test_drafts_of_models_and_lookups_are_put_together_on_the_device() -> None:
    table = DraftTable(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]))
    first, second = table.rows()
    of_rows = [[9, 9], second[:2], [], first]
    drafts = drafts_on_device(of_rows, CAPACITY, torch.device("cpu"))
    assert drafts.tolist() == [[9, 9, 0], [5, 6, 7], [0, 0, 0], [1, 2, 3]]


def test_a_table_with_all_rows_is_what_the_target_reads() -> None:
    first, second = DraftTable(torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]])).rows()
    drafts = drafts_on_device([first, second[:1]], CAPACITY, torch.device("cpu"))
    assert drafts.tolist() == [[1, 2, 3], [5, 6, 7]]


def test_rows_of_a_table_in_another_order_keep_theirs() -> None:
    first, second = DraftTable(torch.tensor([[1, 2], [5, 6]])).rows()
    drafts = drafts_on_device([second, first], CAPACITY, torch.device("cpu"))
    assert drafts.tolist() == [[5, 6, 0], [1, 2, 0]]


def test_a_table_may_be_narrower_than_the_capacity() -> None:
    (row,) = DraftTable(torch.tensor([[4]])).rows()
    assert drafts_on_device([row], CAPACITY, torch.device("cpu")).tolist() == [[4]]


def test_no_rank_verifies_drafts_that_another_one_lacks(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The drafts of the other rows stay."""
    runner.drafts = {2: [1, 2], 0: [3]}
    asked: list[list[str]] = []

    def drop_unshared(request_ids: list[str]) -> list[str]:
        asked.append(request_ids)
        return ["a"]

    runner.sampled_drafts = SimpleNamespace(drop_unshared=drop_unshared)  # type: ignore[attr-defined]
    monkeypatch.setattr(step_drafts, "share_drafts", lambda drafts: drafts)
    drafting = StepDrafts(runner, CAPACITY, has_ranks=True)
    drafting.draft_after(verified())
    assert asked == [["a", "b"]]
    assert drafting.drafts == {"b": [3]}
