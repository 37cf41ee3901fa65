"""Rows under policies: what the planner learns of each draft, and what stays right around it."""

import time
from types import SimpleNamespace

import pytest

from engine_adapter.policies.contract import DraftOutcome, DraftTime, StepPlan
from engine_adapter.seam.counts import ProposerCounts, StepKind
from engine_adapter.seam.types import NONE, PLAIN, SpecMethod
from engine_adapter.vllm_engine.core import row_table
from engine_adapter.vllm_engine.wire import DraftReport
from tests.engine_adapter.vllm_engine.support.row_steps import (
    DRAFT,
    NGRAM,
    RowSteps,
    request,
)
from tests.engine_adapter.vllm_engine.support.scripted_rows import (
    AUTO,
    BOTH,
    ScriptedPlanner,
    scripted,
)

FELL_BACK = DraftReport(fallbacks=["r"])


# -- what the planner learns -----------------------------------------------------------------


def test_verified_drafts_reach_the_planner_with_the_k_that_was_asked_for() -> None:
    rows, used = scripted(BOTH)
    rows.step(r=(0, 0))
    assert used.seen() == []
    rows.step(r=(3, 2))
    assert used.seen() == [("r", "ngram", 5, 3, 3, 2)]


def test_a_miss_is_noted_once() -> None:
    rows, used = scripted(StepPlan({"r": NGRAM}))
    rows.step(r=(0, 0))
    rows.step(r=(0, 0))
    assert used.seen() == [("r", "ngram", 5, 0, 0, 0)]
    rows.step(r=(0, 0))
    assert used.seen() == []


def test_a_row_that_was_only_read_is_not_a_miss() -> None:
    rows, used = scripted(StepPlan({"r": SpecMethod("small", 0)}))
    rows.step(r=(0, 0))
    rows.step(r=(0, 0))
    assert used.seen() == []


def test_a_row_outside_the_step_is_not_a_miss_yet() -> None:
    rows, used = scripted(StepPlan({"r": NGRAM}))
    rows.admit("s", AUTO)
    rows.step(r=(0, 0))
    rows.step(s=(0, 0))
    assert used.seen() == []
    rows.step(r=(4, 1))
    assert used.seen() == [("r", "ngram", 5, 4, 4, 1)]


def test_the_drafts_of_a_preempted_row_are_not_a_miss_and_its_kv_is_unread() -> None:
    rows, used = scripted(StepPlan({"r": DRAFT}))
    rows.step(r=(0, 0))
    used.measurements.mark_read([("r", DRAFT)])
    (view,) = used.views[-1].rows
    proposer = used.measurements.loaded["small"]
    assert used.measurements.forecast([view], [proposer]).lag.tolist() == [[0.0]]
    rows.table.start_step()
    rows.table.plan(["r"], (), rows.requests, 0, {"r"})
    rows.count({"r": (0, 0)})
    assert used.seen() == []
    (view,) = used.views[-1].rows
    assert used.measurements.forecast([view], [proposer]).lag.tolist() == [[view.num_tokens]]


def test_a_fallback_that_drafts_is_a_miss_of_the_first_and_owns_the_drafts() -> None:
    rows, used = scripted(BOTH)
    rows.reported(FELL_BACK, r=(0, 0))
    assert used.seen() == [("r", "ngram", 5, 0, 0, 0)]
    rows.step(r=(4, 3))
    assert used.seen() == [("r", "small", 4, 4, 4, 3)]
    assert rows.sent().verified == {"small": ProposerCounts(1, 4, 3, (1, 1, 1), 4)}
    assert rows.end("r").by_proposer == {"small": ProposerCounts(1, 4, 3, (1, 1, 1), 4)}


def test_a_fallback_that_finds_nothing_is_a_miss_of_both() -> None:
    rows, used = scripted(BOTH)
    rows.reported(FELL_BACK, r=(0, 0))
    rows.step(r=(0, 0))
    assert used.seen() == [("r", "small", 4, 0, 0, 0)]
    assert rows.end("r").by_proposer == {}


def test_a_fallback_reads_the_row() -> None:
    rows, used = scripted(BOTH)
    rows.reported(FELL_BACK, r=(0, 0))
    rows.step(r=(4, 3))
    (view,) = used.views[-1].rows
    lag = used.measurements.forecast([view], [used.measurements.loaded["small"]]).lag
    assert lag.tolist() == [[1.0]], "the token that the step of the draft emitted"


def test_a_fallback_of_a_plan_before_is_forgotten() -> None:
    rows, used = scripted(BOTH, StepPlan({}, {"r": DRAFT}))
    rows.step(r=(0, 0))
    rows.reported(FELL_BACK, r=(5, 5))
    assert used.seen() == [("r", "ngram", 5, 5, 5, 5)]
    rows.step(r=(0, 0))
    assert used.seen() == []


def test_a_miss_beside_a_verified_draft_of_the_same_proposer_counts_too() -> None:
    """Both are of one row, one proposer and one step."""
    rows, used = scripted(BOTH, BOTH)
    rows.step(r=(0, 0))
    rows.reported(FELL_BACK, r=(5, 5))
    assert sorted(used.seen()) == [("r", "ngram", 5, 0, 0, 0), ("r", "ngram", 5, 5, 5, 5)]
    counts, proposer = used.measurements.acceptance.drafts, used.measurements.loaded["ngram"]
    assert counts[proposer].sum() == 2


def test_shadows_of_requests_that_ended_are_ignored() -> None:
    rows, used = scripted()
    outcomes = [DraftOutcome(r, "ngram", 5, 5, 5, 5) for r in ("r", "gone")]
    rows.reported(DraftReport(outcomes=outcomes, fallbacks=["gone"]), r=(0, 0))
    assert used.measurements.acceptance.drafts.sum() == 1
    assert rows.sent().verified == {NONE: ProposerCounts(emitted=1)}, "shadows count nowhere else"


def test_the_end_of_a_step_gives_the_planner_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((99.0, 99.5, 100.0, 100.5))
    clocks = SimpleNamespace(perf_counter=lambda: next(clock), monotonic=time.monotonic)
    monkeypatch.setattr(row_table, "time", clocks)
    rows, used = scripted(BOTH)
    rows.step(r=(0, 0))
    rows.requests["r"] = request()
    rows.admit("plain", PLAIN, prompt=20)
    rows.plan("r", "plain", verified=("r",))
    work = [("ngram", DraftTime(0.1, 1, 5, 5, 0)), ("small", DraftTime(0.05, 1, 4, 4, 7))]
    rows.count({"r": (4, 2), "plain": (0, 0)}, report=DraftReport(work=work))
    outcome = used.outcomes[-1]
    assert (outcome.rows, outcome.tokens, outcome.emitted) == (2, 6, 4)
    assert (outcome.verified, outcome.prefill, outcome.context) == (True, False, 30)
    assert outcome.seconds == pytest.approx(0.35), "the step without its proposers"
    assert outcome.work == work
    assert (used.views[-1].num_running, len(used.views[-1].rows)) == (2, 1)


def test_a_step_that_reads_prompts_teaches_nothing_about_the_time_of_steps() -> None:
    rows, used = scripted(BOTH, BOTH)
    rows.plan("r")
    rows.count({"r": (0, 0)}, kind=StepKind.PREFILL)
    assert used.outcomes[-1].prefill
    assert (used.measurements.steps, used.measurements.step_time.fit.samples) == (0, 0)
    rows.step(r=(5, 0))
    assert (used.measurements.steps, used.measurements.step_time.fit.samples) == (1, 1)


def test_the_step_in_which_the_last_request_ends_is_learned_from() -> None:
    rows = RowSteps()
    rows.admit("r", SpecMethod("load", 5))
    assert rows.plan("r").drafts == {"r": NGRAM}
    rows.count({"r": (0, 0)}, ends=["r"])
    step = rows.sent().policy
    assert step is not None
    assert step.decisions == {"load": {"ngram": 1, NONE: 0}}
    rows.admit("pinned", pinned=True)
    rows.step(pinned=(0, 0))
    assert rows.sent().policy is None, "no policy planned this step"


def test_steps_without_a_drafting_request_cost_nothing() -> None:
    used = ScriptedPlanner()
    rows = RowSteps(used)
    rows.admit("r", PLAIN)
    rows.step(r=(0, 0))
    assert (used.views, used.outcomes) == ([], [])
    assert rows.sent().policy is None


def test_drafts_in_flight_at_a_switch_to_none_are_learned_from_without_their_time() -> None:
    rows, used = scripted(BOTH)
    rows.step(r=(0, 0))
    samples = used.measurements.step_time.fit.samples
    rows.switch(PLAIN, 1)
    rows.step(r=(5, 3))
    assert used.seen() == [("r", "ngram", 5, 5, 5, 3)]
    assert used.measurements.step_time.fit.samples == samples


# -- switches between proposers and policies -------------------------------------------------


def test_a_switch_to_a_policy_and_back_credits_the_proposers_that_drafted() -> None:
    rows = RowSteps()
    rows.admit("r")
    rows.step(r=(0, 0))  # ngram drafts
    rows.table.planner.set_policy("load", {"light": {"proposer": "small", "max_running": 8}})
    rows.switch(SpecMethod("load", 3), 1)
    assert rows.step(r=(5, 2)).drafts == {"r": SpecMethod("small", 3)}
    rows.switch(NGRAM, 2)
    assert rows.step(r=(3, 3)).drafts == {"r": NGRAM}
    rows.step(r=(5, 0))
    assert rows.end("r").by_proposer == {
        "ngram": ProposerCounts(2, 10, 2, (1, 1), 4),
        "small": ProposerCounts(1, 3, 3, (1, 1, 1), 4),
    }


def test_pinned_rows_of_policies_and_proposers_share_a_step() -> None:
    rows = RowSteps()
    rows.admit("policy", SpecMethod("load", 2), pinned=True)
    rows.admit("proposer", DRAFT, pinned=True)
    rows.admit("switched")
    rows.switch(PLAIN, 1)
    plan = rows.step(policy=(0, 0), proposer=(0, 0), switched=(0, 0))
    assert plan.drafts == {"policy": SpecMethod("ngram", 2), "proposer": DRAFT}
    step = rows.sent().policy
    assert step is not None
    assert step.decisions == {"load": {"ngram": 1, NONE: 0}}


# -- the report for the gateway --------------------------------------------------------------


def test_the_evidence_leaves_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    clocks = SimpleNamespace(perf_counter=time.perf_counter, monotonic=lambda: now)
    monkeypatch.setattr(row_table, "time", clocks)
    rows = RowSteps()
    rows.admit("r", AUTO)
    sent = []
    for now in (1000.0, 1000.9, 1001.0, 1001.1, 1001.9, 1002.0):  # noqa: B007
        rows.step(r=(0, 0))
        sent.append(rows.sent().evidence is not None)
    assert sent == [False, False, True, False, False, True]
