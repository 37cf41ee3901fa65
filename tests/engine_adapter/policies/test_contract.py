"""The rules for every policy of the catalog."""

import copy
import json
import math
from dataclasses import replace

import pytest

from engine_adapter.policies.contract import ProposerTraits, StepPlan, StepView
from engine_adapter.policies.names import LOAD, POLICY_NAMES
from tests.engine_adapter.policies.traffic import PROPOSERS, Traffic, numbers

LEVELS = {"load": {"light": {"max_running": 500, "proposer": "draft"}}}

LEARNING_STEPS = 120


@pytest.fixture(params=POLICY_NAMES)
def policy(request: pytest.FixtureRequest) -> str:
    """Each policy in turn."""
    name: str = request.param
    return name


def learned(policy: str, rows: int = 8, steps: int = LEARNING_STEPS) -> Traffic:
    """Traffic under a policy that has drafted."""
    traffic = Traffic(policy, rows, parameters=LEVELS)
    traffic.steps(steps)
    return traffic


def drafted_names(plans: list[StepPlan]) -> set[str]:
    """Every proposer that the plans name anywhere."""
    return {
        name
        for plan in plans
        for name in (
            *(m.proposer for m in plan.drafts.values()),
            *(m.proposer for m in plan.fallbacks.values()),
            *plan.shadows,
        )
    }


def test_an_empty_step_has_an_empty_plan(policy: str) -> None:
    assert not learned(policy).planner.plan(StepView([]))


def test_a_policy_drafts_when_drafts_are_accepted(policy: str) -> None:
    assert drafted_names(learned(policy).steps(20))


def test_only_rows_of_the_step_are_planned(policy: str) -> None:
    traffic = learned(policy)
    view = traffic.view()
    few = replace(view, rows=view.rows[:3], num_running=3)
    for _ in range(20):
        plan = traffic.planner.plan(few)
        known = {row.request_id for row in few.rows}
        assert set(plan.drafts) <= known
        assert set(plan.fallbacks) <= known
        assert {r for requests in plan.shadows.values() for r in requests} <= known


def test_k_is_within_the_draft_budget_the_rows_cap_and_the_proposers_k(policy: str) -> None:
    traffic = learned(policy)
    for cap in (1, 2, 6):
        traffic.method = replace(traffic.method, num_speculative_tokens=cap)
        for _ in range(20):
            rows = {row.request_id: row for row in traffic.view().rows}
            plan = traffic.step()
            for chosen in (plan.drafts, plan.fallbacks):
                for request_id, method in chosen.items():
                    most = min(cap, rows[request_id].draft_budget, traffic.ks[method.proposer])
                    assert 0 <= method.num_speculative_tokens <= most


def test_a_fallback_belongs_to_a_row_that_drafts_and_is_another_proposer(policy: str) -> None:
    for plan in learned(policy).steps(100):
        for request_id, method in plan.fallbacks.items():
            assert plan.drafts[request_id].proposer != method.proposer


def test_planning_does_not_change_the_view(policy: str) -> None:
    traffic = learned(policy)
    view = traffic.view()
    before = copy.deepcopy(view)
    traffic.planner.plan(view)
    assert view == before


def test_a_row_in_the_middle_of_its_prompt_gets_no_draft_tokens(policy: str) -> None:
    traffic = learned(policy)
    traffic.budget = 0
    for plan in traffic.steps(20):
        drafted = [m.num_speculative_tokens for r, m in plan.drafts.items() if r != "r6"]
        assert not any(drafted)


def test_proposers_that_cannot_be_selected_are_never_chosen(policy: str) -> None:
    traffic = Traffic(policy, 8, parameters=LEVELS)
    assert "cascade" not in drafted_names(traffic.steps(200))


def test_no_proposers_at_all_is_plain_decoding(policy: str) -> None:
    traffic = Traffic(policy, proposers=(), parameters={})
    assert not drafted_names(traffic.steps(50))


def test_an_unloaded_proposer_is_not_planned_and_the_policy_plans_without_it(policy: str) -> None:
    traffic = learned(policy)
    traffic.measurements.remove_proposer("draft")
    assert "draft" not in drafted_names(traffic.steps(100))


def test_every_proposer_may_be_unloaded_while_the_policy_runs(policy: str) -> None:
    traffic = learned(policy)
    for traits in PROPOSERS:
        traffic.measurements.remove_proposer(traits.name)
        traffic.steps(3)
    assert not drafted_names(traffic.steps(20))


def test_quarantined_proposers_are_not_planned(policy: str) -> None:
    traffic = learned(policy)
    traffic.measurements.unavailable = frozenset({"ngram", "draft"})
    assert not drafted_names(traffic.steps(100)) & {"ngram", "draft"}


def test_all_proposers_quarantined_is_plain_decoding_and_they_come_back(policy: str) -> None:
    traffic = learned(policy)
    traffic.measurements.unavailable = frozenset(traits.name for traits in PROPOSERS)
    assert not drafted_names(traffic.steps(50))
    traffic.measurements.unavailable = frozenset()
    assert drafted_names(traffic.steps(200))


@pytest.mark.parametrize("policy", [name for name in POLICY_NAMES if name != LOAD], indirect=True)
def test_a_proposer_loaded_later_is_tried(policy: str) -> None:
    traffic = learned(policy)
    late = ProposerTraits("late", 4)
    traffic.measurements.add_proposer(late)
    traffic.ks["late"] = 4
    assert "late" in drafted_names(traffic.steps(100))


def test_a_proposer_loaded_again_under_its_name_is_planned_within_its_new_k(policy: str) -> None:
    traffic = learned(policy)
    traffic.measurements.remove_proposer("draft")
    traffic.measurements.add_proposer(ProposerTraits("draft", 2))
    for plan in traffic.steps(100):
        ks = [m.num_speculative_tokens for m in plan.drafts.values() if m.proposer == "draft"]
        assert max(ks, default=0) <= 2


def test_256_rows_are_planned(policy: str) -> None:
    traffic = Traffic(policy, 256, parameters=LEVELS)
    assert drafted_names(traffic.steps(60))


def test_rows_that_end_and_begin_are_followed(policy: str) -> None:
    traffic = learned(policy)
    for number in range(60):
        traffic.replace_row(next(iter(traffic.lengths)), f"later-{number}")
        assert set(traffic.step().drafts) <= set(traffic.lengths)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf, 93.0, 1e-9])
def test_no_figure_becomes_nan_when_the_clock_jumps(policy: str, seconds: float) -> None:
    traffic = learned(policy)
    for number in range(40):
        traffic.step(seconds if number % 4 == 0 else None)
    snapshot = traffic.planner.snapshot()
    assert all(math.isfinite(number) for number in numbers(snapshot))


def test_the_snapshot_is_json_and_a_restored_planner_chooses_alike(policy: str) -> None:
    traffic = learned(policy, rows=6, steps=400)
    told = json.loads(json.dumps(traffic.planner.snapshot()))
    again = Traffic(policy, 6, parameters=LEVELS)
    again.planner.restore(told)
    mine = most_used(traffic.steps(40))
    assert most_used(again.steps(40)) == mine


def most_used(plans: list[StepPlan]) -> str:
    """The proposer of most rows over all plans."""
    names = [m.proposer for plan in plans for m in plan.drafts.values()]
    return max(sorted(set(names)), key=names.count) if names else "none"


def test_equal_traffic_has_equal_plans(policy: str) -> None:
    first, second = Traffic(policy, 5, parameters=LEVELS), Traffic(policy, 5, parameters=LEVELS)
    for _ in range(150):
        assert first.step() == second.step()


def test_a_restored_snapshot_of_other_proposers_is_ignored(policy: str) -> None:
    traffic = learned(policy)
    other = Traffic(policy, 3, proposers=(ProposerTraits("draft", 3),), parameters={})
    other.planner.restore(traffic.planner.snapshot())
    other.steps(50)
    assert all(math.isfinite(n) for n in numbers(other.planner.snapshot()))
