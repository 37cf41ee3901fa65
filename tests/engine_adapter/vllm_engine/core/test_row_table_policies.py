"""Rows under policies: what the planner learns of each draft, and what stays right around it."""

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from engine_adapter.counts import ProposerCounts, StepKind
from engine_adapter.policies.contract import DraftFate, StepPlan
from engine_adapter.policies.evidence import PROVEN_DRAFTS
from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.policies.planner import Planner
from engine_adapter.policies.proposers import DraftTime, ProposerTraits
from engine_adapter.types import NONE, PLAIN, SpecMethod
from engine_adapter.vllm_engine.core.quarantine import MAX_FAULTS
from engine_adapter.vllm_engine.wire import DraftReport
from tests.engine_adapter.vllm_engine.support.row_steps import (
    DRAFT,
    NGRAM,
    TRAITS,
    RowSteps,
    planner,
)
from tests.engine_adapter.vllm_engine.support.scripted_rows import (
    BOTH,
    GOODPUT,
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


def test_a_row_that_was_only_read_is_no_miss() -> None:
    rows, used = scripted(StepPlan({"r": SpecMethod("small", 0)}))
    rows.step(r=(0, 0))
    rows.step(r=(0, 0))
    assert used.seen() == []


def test_a_row_outside_the_step_is_no_miss_yet() -> None:
    rows, used = scripted(StepPlan({"r": NGRAM}))
    rows.admit("s", GOODPUT)
    rows.step(r=(0, 0))
    rows.step(s=(0, 0))
    assert used.seen() == []
    rows.step(r=(4, 1))
    assert used.seen() == [("r", "ngram", 5, 4, 4, 1)]


def test_the_drafts_of_a_preempted_row_are_no_miss_and_its_kv_is_unread() -> None:
    rows, used = scripted(StepPlan({"r": DRAFT}))
    rows.step(r=(0, 0))
    used.evidence.mark_read([("r", DRAFT)])
    (view,) = used.views[-1].rows
    proposer = used.evidence.loaded["small"]
    assert used.evidence.outlook([view], [proposer]).lag.tolist() == [[0.0]]
    rows.table.start_step()
    rows.table.plan(["r"], (), rows.requests, 0, {"r"})
    rows.count({"r": (0, 0)})
    assert used.seen() == []
    (view,) = used.views[-1].rows
    assert used.evidence.outlook([view], [proposer]).lag.tolist() == [[view.num_tokens]]


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
    lag = used.evidence.outlook([view], [used.evidence.loaded["small"]]).lag
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
    counts, proposer = used.evidence.acceptance.drafts, used.evidence.loaded["ngram"]
    assert counts[proposer].sum() == 2


def test_shadows_of_requests_that_ended_are_ignored() -> None:
    rows, used = scripted()
    fates = [DraftFate(r, "ngram", 5, 5, 5, 5) for r in ("r", "gone")]
    rows.reported(DraftReport(fates=fates, fallbacks=["gone"]), r=(0, 0))
    assert used.evidence.acceptance.drafts.sum() == 1
    assert rows.sent().verified == {NONE: ProposerCounts(emitted=1)}, "shadows count nowhere else"


def test_the_end_of_a_step_gives_the_planner_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((100.0, 100.5))
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    rows, used = scripted(BOTH)
    rows.admit("plain", PLAIN, prompt=20)
    rows.plan("r", "plain")
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
    assert (used.evidence.steps, used.evidence.step_time.fit.samples) == (0, 0)
    rows.step(r=(5, 0))
    assert (used.evidence.steps, used.evidence.step_time.fit.samples) == (1, 1)


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
    samples = used.evidence.step_time.fit.samples
    rows.switch(PLAIN, 1)
    rows.step(r=(5, 3))
    assert used.seen() == [("r", "ngram", 5, 5, 5, 3)]
    assert used.evidence.step_time.fit.samples == samples


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


# -- proposers that come and go while a policy uses them -------------------------------------


def report_of(plan: StepPlan, drafted: Mapping[str, int]) -> DraftReport:
    """The runner's report of a step in which each named row's proposer drafted."""
    report = DraftReport()
    for name in {method.proposer for method in plan.drafts.values()}:
        rows = [r for r, method in plan.drafts.items() if method.proposer == name]
        tokens = sum(drafted.get(r, 0) for r in rows)
        longest = max(plan.drafts[r].num_speculative_tokens for r in rows)
        report.seconds[name] = 1e-5
        report.work.append((name, DraftTime(1e-5, len(rows), longest, tokens, 0)))
    return report


def run(rows: RowSteps, names: Sequence[str], steps: int) -> Iterator[StepPlan]:
    """Steps in which every draft is accepted as a whole; yields each plan."""
    pending: dict[str, int] = {}
    for _ in range(steps):
        plan = rows.plan(*names, verified=tuple(pending))
        drafted = {r: method.num_speculative_tokens for r, method in plan.drafts.items()}
        outcomes = {r: (pending.get(r, 0), pending.get(r, 0)) for r in names}
        rows.count(outcomes, report=report_of(plan, drafted))
        pending = {r: k for r, k in drafted.items() if k}
        yield plan


def assert_finite(value: Any) -> None:
    """Fails on a number in a JSON value that is not one."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for part in value:
            assert_finite(part)
    elif isinstance(value, float):
        assert math.isfinite(value)


def under_policy(name: str) -> RowSteps:
    """Two long rows under a policy, whose proposers are proven."""
    parameters = {"load": {"light": {"proposer": "ngram", "max_running": 8}}}
    used = planner(parameters)
    rows = RowSteps(used)
    rows.table._max_model_len = 100_000
    for request_id in ("r", "s"):
        rows.admit(request_id, SpecMethod(name, 5), max_tokens=50_000)
    seen = [DraftFate("r", name, k, k, k, k) for name, k in (("ngram", 5), ("small", 4))]
    used.evidence.observe_drafts(seen * PROVEN_DRAFTS)
    return rows


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("how", ["unloaded", "quarantined"])
@pytest.mark.filterwarnings("error")
def test_a_proposer_that_goes_and_comes_back_under_a_policy_breaks_nothing(
    name: str, how: str
) -> None:
    rows = under_policy(name)
    table, evidence = rows.table, rows.table.planner.evidence
    planned = {m.proposer for plan in run(rows, "rs", 80) for m in plan.drafts.values()}
    assert planned, "the policy drafted"
    for gone in sorted(planned):
        if how == "unloaded":
            evidence.remove_proposer(gone)
        else:
            for _ in range(MAX_FAULTS):
                table.quarantine.record_faults({gone: "broken"}, 0.0)
    for plan in run(rows, "rs", 80):
        for methods in (plan.drafts, plan.fallbacks):
            assert not planned & {m.proposer for m in methods.values()}
        assert not planned & set(plan.shadows)
        step = rows.sent().policy
        assert step is None or not planned & {
            p for drawn in step.decisions.values() for p, count in drawn.items() if count
        }
    assert_finite(table.planner.snapshot())
    for gone in sorted(planned):
        evidence.add_proposer(next(traits for traits in TRAITS if traits.name == gone))
        table.quarantine.clear_faults(gone)
    again = {m.proposer for plan in run(rows, "rs", 200) for m in plan.drafts.values()}
    assert planned & again, "it is probed, or its level names it"
    assert_finite(table.planner.snapshot())
    assert_finite(rows.end("r").decode_tokens)


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.filterwarnings("error")
def test_a_policy_without_any_proposer_decodes_plainly(name: str) -> None:
    rows = RowSteps(Planner((), 5))
    rows.admit("r", SpecMethod(name, 5))
    for _ in range(3):
        assert not rows.step(r=(0, 0))
    assert_finite(rows.table.planner.snapshot())


def test_the_fallback_takes_the_place_of_a_proposer_that_was_unloaded() -> None:
    """A policy may keep a choice for some steps; the counts name the one that drafts."""
    rows = RowSteps()
    rows.admit("r", GOODPUT)
    rows.admit("s", GOODPUT)
    used = rows.table.planner
    chosen = StepPlan({"r": NGRAM, "s": NGRAM}, {"r": DRAFT})
    used._active["goodput"].policy.plan = lambda view: chosen  # type: ignore[method-assign]
    used.evidence.remove_proposer("ngram")
    plan = rows.step(r=(0, 0), s=(0, 0))
    assert (plan.drafts, plan.fallbacks) == ({"r": DRAFT}, {})
    step = rows.sent().policy
    assert step is not None
    assert step.decisions == {"goodput": {"small": 1, NONE: 1}}
    rows.step(r=(4, 1), s=(0, 0))
    assert rows.end("r").by_proposer == {"small": ProposerCounts(1, 4, 1, (1,), 2)}


def test_a_proposer_that_is_loaded_later_is_tried() -> None:
    rows = under_policy("goodput")
    list(run(rows, "rs", 10))
    rows.table.planner.evidence.add_proposer(ProposerTraits("new", 3, lookup=True))
    plans = list(run(rows, "rs", 100))
    tried = {m.proposer for plan in plans for m in plan.drafts.values()}
    assert "new" in tried


# -- the report for the gateway --------------------------------------------------------------


def test_the_evidence_leaves_every_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    rows = RowSteps()
    rows.admit("r", GOODPUT)
    sent = []
    for now in (1000.0, 1000.9, 1001.0, 1001.1, 1001.9, 1002.0):  # noqa: B007
        rows.step(r=(0, 0))
        sent.append(rows.sent().evidence is not None)
    assert sent == [False, False, True, False, False, True]
