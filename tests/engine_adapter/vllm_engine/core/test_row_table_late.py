"""Asynchronous scheduling: a step is planned before the outputs of the one before arrive.

Its drafts are made late, so the report on them comes with the outputs of the step that verifies
them.
"""

import time
from types import SimpleNamespace

import pytest

from engine_adapter.policies.contract import DraftTime, StepPlan
from engine_adapter.vllm_engine.core import row_table
from engine_adapter.vllm_engine.wire import DraftReport
from tests.engine_adapter.vllm_engine.support.row_steps import (
    DRAFT,
    NGRAM,
    RowSteps,
    planner,
)
from tests.engine_adapter.vllm_engine.support.scripted_rows import BOTH, ScriptedPlanner, scripted


def rows_of(*plans: StepPlan) -> tuple[RowSteps, ScriptedPlanner]:
    return scripted(*plans, drafts_late=True)


def drafted(count: int, **fields: object) -> DraftReport:
    """A report on the drafts of `r`."""
    return DraftReport(drafted={"r": count}, **fields)  # type: ignore[arg-type]


def test_a_draft_is_credited_to_the_proposer_of_its_own_plan() -> None:
    rows, used = rows_of(StepPlan({"r": NGRAM}), StepPlan({"r": DRAFT}))
    rows.plan("r")
    rows.plan("r", verified=("r",))
    rows.count({"r": (0, 0)})
    rows.plan("r", verified=("r",))
    rows.count({"r": (4, 2)}, report=drafted(4))
    assert used.seen() == [("r", "ngram", 5, 4, 4, 2)]
    rows.count({"r": (3, 3)}, report=drafted(3))
    assert used.seen() == [("r", "small", 4, 3, 3, 3)]
    assert rows.end("r").by_proposer.keys() == {"ngram", "small"}


def test_places_that_got_no_draft_are_a_miss_and_no_verification() -> None:
    rows, used = rows_of(StepPlan({"r": NGRAM}))
    rows.plan("r")
    rows.plan("r", verified=("r",))
    rows.count({"r": (0, 0)})
    rows.count({"r": (0, 0)}, report=drafted(0))
    assert used.seen() == [("r", "ngram", 5, 0, 0, 0)]
    assert rows.end("r").by_proposer == {}


def test_a_draft_that_waits_is_counted_in_the_step_that_verifies_it() -> None:
    """The step after its plan has no room for the row, but the draft is made in it."""
    rows, used = rows_of(StepPlan({"r": NGRAM}))
    rows.admit("s")
    rows.plan("r", "s")
    rows.plan("s")
    rows.count({"r": (0, 0), "s": (0, 0)})
    rows.plan("r", "s", verified=("r",))
    rows.count({"s": (0, 0)}, report=drafted(4))
    assert used.seen() == []
    rows.count({"r": (4, 1), "s": (0, 0)})
    assert used.seen() == [("r", "ngram", 5, 4, 4, 1)]


def test_a_step_that_runs_nothing_does_not_lose_the_drafts_before_it() -> None:
    rows, used = rows_of(StepPlan({"r": NGRAM}))
    rows.plan("r")
    rows.plan()
    rows.count({"r": (0, 0)})
    rows.plan("r", verified=("r",))
    rows.count({})
    rows.count({"r": (4, 1)}, report=drafted(4))
    assert used.seen() == [("r", "ngram", 5, 4, 4, 1)]


def test_a_fallback_owns_the_drafts_of_its_own_plan() -> None:
    rows, used = rows_of(BOTH, StepPlan({"r": NGRAM}))
    rows.plan("r")
    assert rows.table.draft_places("r") == 5
    rows.plan("r", verified=("r",))
    rows.count({"r": (0, 0)})
    rows.count({"r": (4, 1)}, report=drafted(4, fallbacks=["r"]))
    assert used.seen() == [("r", "ngram", 5, 0, 0, 0), ("r", "small", 4, 4, 4, 1)]


def test_the_work_of_drafting_is_learned_with_the_notes_of_its_own_plan() -> None:
    used = planner()
    rows = RowSteps(used, drafts_late=True)
    rows.admit("s", DRAFT, prompt=30)
    rows.plan("s")
    first = used.notes
    assert first.lag.sum() == 30
    rows.plan("s", verified=("s",))
    assert used.notes is not first
    assert rows.table._scheduled[1].reported.notes is first


def test_a_step_begins_when_the_one_before_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((10.0, 10.1, 11.0, 11.4))
    clocks = SimpleNamespace(perf_counter=lambda: next(clock), monotonic=time.monotonic)
    monkeypatch.setattr(row_table, "time", clocks)
    rows, used = rows_of(BOTH, BOTH)
    rows.plan("r")
    rows.plan("r", verified=("r",))
    rows.count({"r": (0, 0)})
    work = [("ngram", DraftTime(0.1, 1, 5, 5, 0))]
    rows.count({"r": (5, 0)}, report=drafted(5, work=work))
    assert [outcome.seconds for outcome in used.outcomes] == pytest.approx([1.0, 0.3])
