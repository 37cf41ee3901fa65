"""The planner: rows under proposers beside rows under policies, and what it learns from both."""

import pytest

from engine_adapter.policies.contract import DraftOutcome, RequestClass, RowView, StepView
from engine_adapter.policies.goodput import GoodputPolicy
from engine_adapter.policies.names import AUTO, LATENCY_FIRST
from engine_adapter.policies.parameters import PolicyError
from engine_adapter.policies.planner import UNPLANNED_EVERY, Planner, StepOutcome
from engine_adapter.seam.types import SpecMethod
from tests.engine_adapter.policies.traffic import MAX_K, PROPOSERS, Traffic


def outcome(planner: Planner, drafts: list[DraftOutcome]) -> None:
    planner.observe(StepOutcome(drafts, [], 2, 2, 100.0, 2, bool(drafts), False, 0.03))


def test_a_pinned_row_keeps_its_proposer_beside_rows_of_a_policy() -> None:
    traffic = Traffic(AUTO)
    traffic.steps(100)
    rows = [*traffic.view().rows, RowView("pinned", SpecMethod("medusa", 3), 2)]
    traffic.measurements.admit("pinned", RequestClass.GREEDY)
    for _ in range(20):
        plan = traffic.planner.plan(StepView(rows, len(rows)))
        assert plan.drafts["pinned"] == SpecMethod("medusa", 2)


def test_rows_under_proposers_alone_are_planned_as_they_say() -> None:
    planner = Planner(PROPOSERS, MAX_K)
    planner.measurements.admit("a", RequestClass.GREEDY)
    planner.measurements.admit("b", RequestClass.SAMPLED)
    rows = [RowView("a", SpecMethod("ngram", 5), 9), RowView("b", SpecMethod("draft", 4), 0)]
    plan = planner.plan(StepView(rows, 2))
    assert plan.drafts == {"a": SpecMethod("ngram", 5), "b": SpecMethod("draft", 0)}
    assert not plan.fallbacks
    assert not plan.shadows


def test_pinned_rows_are_evidence_for_the_policies() -> None:
    planner = Planner(PROPOSERS, MAX_K)
    planner.measurements.admit("a", RequestClass.GREEDY)
    for _ in range(50 * UNPLANNED_EVERY):
        planner.plan(StepView([RowView("a", SpecMethod("ngram", 5), 90, 50)], 1))
        outcome(planner, [DraftOutcome("a", "ngram", 5, 5, 5, 5)])
    index = planner.measurements.loaded["ngram"]
    assert planner.measurements.is_proven(index)
    assert planner.measurements.acceptance.mean_rate(index, RequestClass.GREEDY, 5) > 0.8
    assert planner.measurements.steps == planner.measurements.acceptance.drafts.sum() == 50


def test_every_step_of_a_policy_is_learned_from() -> None:
    traffic = Traffic(AUTO)
    traffic.steps(50)
    assert traffic.measurements.steps == 50


def test_the_catch_up_of_a_step_that_is_not_learned_from_is_not_counted_later() -> None:
    planner = Planner(PROPOSERS, MAX_K)
    planner.measurements.admit("a", RequestClass.GREEDY)
    lags = []
    for i in range(UNPLANNED_EVERY + 1):
        # The first proposer reads 100 tokens in its first step, then 4 in each.
        row = RowView("a", SpecMethod("draft", 4), 90, 100 + 4 * i)
        planner.plan(StepView([row], 1))
        lags.append(int(planner.notes.lag.sum()))
        outcome(planner, [])
    assert lags == [100, *[4] * UNPLANNED_EVERY]


def test_drafts_of_ended_requests_and_unloaded_proposers_are_ignored() -> None:
    planner = Planner(PROPOSERS, MAX_K)
    planner.measurements.admit("a", RequestClass.GREEDY)
    planner.measurements.remove_proposer("draft")
    planner.measurements.free("a")
    seen = ("a", "ngram", 5), ("b", "draft", 4), ("b", "gone", 1)
    outcome(planner, [DraftOutcome(r, name, k, k, k, k) for r, name, k in seen])
    assert planner.measurements.acceptance.drafts.sum() == 0


def test_two_policies_plan_their_own_rows_and_report_their_own_decisions() -> None:
    traffic = Traffic(AUTO, 4)
    traffic.steps(100)
    other = SpecMethod(LATENCY_FIRST, MAX_K)
    rows = [
        RowView(row.request_id, other if i % 2 else row.spec_method, 50, row.num_tokens)
        for i, row in enumerate(traffic.view().rows)
    ]
    traffic.planner.plan(StepView(rows, 4))
    step = traffic.planner.observe(StepOutcome([], [], 4, 4, 400.0, 4, False, False, 0.03))
    assert step is not None
    assert {name: sum(rows.values()) for name, rows in step.decisions.items()} == {
        AUTO: 2,
        LATENCY_FIRST: 2,
    }


def test_a_bad_parameter_leaves_the_old_policy() -> None:
    planner = Planner(PROPOSERS, MAX_K, {AUTO: {"min_gain": 0.5}})
    with pytest.raises(PolicyError, match="min_gain"):
        planner.set_policy(AUTO, {"min_gain": -1})
    assert planner.states()[AUTO]["guard"]["suspensions"] == 0


def test_a_step_with_prefill_says_nothing_of_the_step_time() -> None:
    planner = Planner(PROPOSERS, MAX_K)
    planner.observe(StepOutcome([], [], 1, 900, 900.0, 1, False, True, 0.9))
    assert planner.measurements.step_time.fit.samples == 0


def test_a_fault_in_a_policy_costs_drafts_and_no_request(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    traffic = Traffic(AUTO)
    traffic.steps(100)
    rows = [*traffic.view().rows, RowView("pinned", SpecMethod("medusa", 3), 2)]
    traffic.measurements.admit("pinned", RequestClass.GREEDY)
    with monkeypatch.context() as broken:
        broken.setattr(GoodputPolicy, "plan", lambda *_: 1 / 0)
        plans = [traffic.planner.plan(StepView(rows, len(rows))) for _ in range(5)]
    assert all(set(plan.drafts) == {"pinned"} for plan in plans)
    assert [record.levelname for record in caplog.records] == ["ERROR"], "logged once"
    assert traffic.planner.snapshot()["error"] == "ZeroDivisionError: division by zero"
    assert any(plan.drafts for plan in traffic.steps(200)), "the policy works again"


def test_a_fault_while_learning_is_contained_too(monkeypatch: pytest.MonkeyPatch) -> None:
    traffic = Traffic(AUTO)
    monkeypatch.setattr(GoodputPolicy, "observe", lambda *_: 1 / 0)
    traffic.steps(20)
    assert traffic.planner.snapshot()["error"] is not None
