"""Drafts that a plan cuts or drops: their whole length reaches the planner, their outcome too."""

from engine_adapter.policies.contract import DraftOutcome, StepPlan
from engine_adapter.seam.types import SpecMethod
from engine_adapter.vllm_engine.wire import DraftReport
from tests.engine_adapter.vllm_engine.support.row_steps import DRAFT
from tests.engine_adapter.vllm_engine.support.scripted_rows import scripted

CUT = StepPlan({"r": SpecMethod("ngram", 2)}, {"r": DRAFT}, verify_caps={"r": (0, 0, 2, 2, 2, 2)})
"""At most two tokens of a lookup's draft, and none of a single one."""


def test_a_cut_draft_counts_with_its_whole_length_and_what_was_verified() -> None:
    rows, used = scripted(CUT)
    rows.reported(DraftReport(full_lengths={"r": 5}), r=(0, 0))
    rows.step(r=(2, 1))
    assert used.seen() == [DraftOutcome("r", "ngram", 5, 5, 2, 1)]


def test_a_draft_that_is_kept_whole_was_asked_for_the_whole_k() -> None:
    rows, used = scripted(CUT)
    rows.step(r=(0, 0))
    rows.step(r=(2, 2))
    assert used.seen() == [DraftOutcome("r", "ngram", 5, 2, 2, 2)]


def test_a_dropped_draft_is_not_a_miss_and_the_fallback_owns_what_is_verified() -> None:
    rows, used = scripted(CUT)
    rows.reported(DraftReport(dropped=["r"], fallbacks=["r"]), r=(0, 0))
    assert used.seen() == []
    rows.step(r=(4, 3))
    assert used.seen() == [DraftOutcome("r", "small", 4, 4, 4, 3)]


def test_a_dropped_draft_without_a_fallback_is_not_a_miss_either() -> None:
    rows, used = scripted(CUT)
    rows.reported(DraftReport(dropped=["r"]), r=(0, 0))
    rows.step(r=(0, 0))
    assert used.seen() == []


def test_a_draft_that_is_kept_and_not_scheduled_is_a_miss() -> None:
    """A grammar refuses such drafts: they are of no use."""
    rows, used = scripted(CUT)
    rows.reported(DraftReport(full_lengths={"r": 5}), r=(0, 0))
    rows.step(r=(0, 0))
    assert used.seen() == [DraftOutcome("r", "ngram", 5, 0, 0, 0)]


def test_the_length_of_one_draft_is_not_taken_for_the_next() -> None:
    rows, used = scripted(CUT, CUT)
    rows.reported(DraftReport(full_lengths={"r": 5}), r=(0, 0))
    rows.step(r=(2, 2))
    rows.step(r=(2, 2))
    assert used.seen() == [DraftOutcome("r", "ngram", 5, 2, 2, 2)]


def test_the_drafts_of_a_preempted_row_are_forgotten() -> None:
    rows, used = scripted(CUT)
    rows.reported(DraftReport(full_lengths={"r": 1}), r=(0, 0))
    rows.table.start_step()
    rows.table.plan(["r"], (), rows.requests, 0, {"r"})
    rows.count({"r": (0, 0)})
    assert used.seen() == []


def test_a_length_of_a_request_that_ended_is_ignored() -> None:
    rows, used = scripted(CUT)
    rows.reported(DraftReport(full_lengths={"gone": 5}, dropped=["gone"]), r=(0, 0))
    rows.step(r=(2, 2))
    assert used.seen() == [DraftOutcome("r", "ngram", 5, 2, 2, 2)]
