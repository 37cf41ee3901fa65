"""The rules for every policy, and the plans of the fixed one."""

import pytest

from engine_adapter.policies.contract import Policy, RowView, StepView
from engine_adapter.policies.fixed import FixedPolicy
from engine_adapter.seam.types import SpecMethod

POLICIES: tuple[type[Policy], ...] = (FixedPolicy,)
"""Every policy; a new one is added here and inherits the tests below."""

NGRAM, DRAFT = SpecMethod("ngram", 5), SpecMethod("small", 3)
ROWS = [
    RowView("large budget", NGRAM, 100),
    RowView("tight", NGRAM, 2),
    RowView("exact", DRAFT, 3),
    RowView("mid-prompt", DRAFT, 0),
]


@pytest.fixture(params=POLICIES, ids=lambda policy: policy.__name__)
def policy(request: pytest.FixtureRequest) -> Policy:
    """Each policy in turn."""
    made: Policy = request.param()
    return made


def test_an_empty_step_has_an_empty_plan(policy: Policy) -> None:
    assert not policy.plan(StepView([]))


def test_only_rows_of_the_step_are_planned(policy: Policy) -> None:
    assert set(policy.plan(StepView(ROWS)).drafts) <= {row.request_id for row in ROWS}


def test_no_row_gets_more_than_its_draft_budget_or_its_methods_k(policy: Policy) -> None:
    plan = policy.plan(StepView(ROWS)).drafts
    for row in ROWS:
        if chosen := plan.get(row.request_id):
            allowed = min(row.draft_budget, row.spec_method.num_speculative_tokens)
            assert 0 <= chosen.num_speculative_tokens <= allowed


def test_planning_does_not_change_the_rows(policy: Policy) -> None:
    before = list(ROWS)
    policy.plan(StepView(ROWS))
    assert before == ROWS


def test_fixed_follows_each_rows_method_and_cuts_k_to_the_draft_budget() -> None:
    assert FixedPolicy().plan(StepView(ROWS)).drafts == {
        "large budget": NGRAM,
        "tight": SpecMethod("ngram", 2),
        "exact": DRAFT,
        "mid-prompt": SpecMethod("small", 0),
    }
