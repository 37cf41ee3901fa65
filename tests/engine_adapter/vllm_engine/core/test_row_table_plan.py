"""The proposer that is planned for each row, and the rows that a switch changes."""

import pytest

from engine_adapter.seam.types import PLAIN, SpecMethod
from engine_adapter.vllm_engine.core.quarantine import MAX_FAULTS
from engine_adapter.vllm_engine.core.row_table import draft_budget
from tests.engine_adapter.vllm_engine.support.row_steps import (
    CONTEXT,
    DRAFT,
    NGRAM,
    RowSteps,
    request,
)


@pytest.fixture
def rows() -> RowSteps:
    """An empty table."""
    return RowSteps()


# -- draft budget ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("prompt", "output", "max_tokens", "budget"),
    [
        (10, 0, 50, 48),  # 49 tokens may follow the first one: 48 drafts and a bonus token
        (10, 47, 50, 1),
        (10, 48, 50, 0),  # one token may follow, and the target gives it without drafts
        (10, 49, 50, 0),
        (90, 0, 50, 8),  # 91 tokens after the step; of 9 positions left the last is the bonus's
        (97, 0, 50, 1),
        (98, 0, 50, 0),
        (99, 0, 50, 0),
        (1, 0, 1, 0),
    ],
)
def test_the_draft_budget_is_what_could_still_be_emitted(
    prompt: int, output: int, max_tokens: int, budget: int
) -> None:
    one = request(prompt, output, max_tokens)
    assert draft_budget(one, one.num_tokens, CONTEXT) == budget


# -- plan ------------------------------------------------------------------------------------


def test_the_plan_gives_each_row_its_own_method(rows: RowSteps) -> None:
    rows.admit("a")
    rows.admit("b", DRAFT)
    rows.admit("c", PLAIN)
    assert rows.plan("a", "b", "c").drafts == {"a": NGRAM, "b": DRAFT}


def test_only_rows_of_the_step_are_planned(rows: RowSteps) -> None:
    rows.admit("a")
    rows.admit("waits")
    assert set(rows.plan("a").drafts) == {"a"}


def test_k_is_reduced_to_the_draft_budget_and_zero_leaves_the_row_out(rows: RowSteps) -> None:
    rows.admit("tight", output=46)
    rows.admit("full", output=48)
    assert rows.plan("tight", "full").drafts == {"tight": SpecMethod("ngram", 2)}


def test_a_row_in_mid_prompt_is_planned_with_k_zero(rows: RowSteps) -> None:
    rows.admit("r", DRAFT, in_prompt=True)
    assert rows.plan("r").drafts == {"r": SpecMethod("small", 0)}


def test_without_a_drafting_request_the_plan_is_empty(rows: RowSteps) -> None:
    rows.admit("a", PLAIN)
    rows.admit("b", PLAIN)
    assert rows.plan("a", "b").drafts == {}


def test_planning_starts_with_a_drafting_request_and_ends_with_it(rows: RowSteps) -> None:
    rows.admit("a", PLAIN)
    rows.admit("b")
    assert rows.plan("a", "b")
    rows.end("b")
    assert rows.table.num_drafting == 0
    assert rows.plan("a").drafts == {}


def test_a_proposer_that_fails_repeatedly_is_no_longer_planned(rows: RowSteps) -> None:
    rows.admit("a")
    rows.admit("b", DRAFT)
    for _ in range(MAX_FAULTS - 1):
        assert set(rows.plan("a", "b").drafts) == {"a", "b"}
        rows.count({}, faults=("ngram",))
        report = rows.sent()
        assert (report.faults, report.quarantined) == ({"ngram": "broken"}, ())
    assert set(rows.plan("a", "b").drafts) == {"a", "b"}
    rows.count({}, faults=("ngram",))
    assert rows.sent().quarantined == ("ngram",)
    assert set(rows.plan("a", "b").drafts) == {"b"}
    assert rows.table.quarantine.names == {"ngram"}


# -- switch ----------------------------------------------------------------------------------


def test_a_switch_changes_all_rows_but_the_pinned(rows: RowSteps) -> None:
    rows.admit("free")
    rows.admit("pinned", pinned=True)
    rows.admit("plain", PLAIN)
    rows.admit("pinned plain", PLAIN, pinned=True)
    rows.switch(DRAFT, 1)
    plan = rows.plan("free", "pinned", "plain", "pinned plain")
    assert plan.drafts == {"free": DRAFT, "pinned": NGRAM, "plain": DRAFT}


def test_a_switch_to_none_and_back_is_followed(rows: RowSteps) -> None:
    rows.admit("r")
    rows.switch(PLAIN, 1)
    assert rows.plan("r").drafts == {}
    rows.switch(NGRAM, 2)
    assert rows.plan("r").drafts == {"r": NGRAM}


@pytest.mark.parametrize(
    ("epoch", "pinned", "expected"),
    [(4, False, DRAFT), (5, False, NGRAM), (6, False, NGRAM), (4, True, NGRAM)],
)
def test_a_request_that_a_switch_overtook_gets_the_new_method(
    rows: RowSteps, epoch: int, pinned: bool, expected: SpecMethod
) -> None:
    rows.switch(DRAFT, 5)
    rows.admit("r", NGRAM, pinned=pinned, epoch=epoch)
    assert rows.plan("r").drafts == {"r": expected}


def test_a_request_overtaken_by_a_switch_to_none_gets_no_drafts(rows: RowSteps) -> None:
    rows.switch(PLAIN, 5)
    rows.admit("r", NGRAM, epoch=4)
    assert rows.table.num_drafting == 0
    assert rows.plan("r").drafts == {}


def test_the_number_of_drafting_requests_is_always_right(rows: RowSteps) -> None:
    live: dict[str, tuple[SpecMethod, bool]] = {}
    for i in range(60):
        if i % 3 == 2 and live:
            ended = next(iter(live))
            rows.end(ended)
            del live[ended]
        elif i % 7 == 6:
            method = (NGRAM, PLAIN, DRAFT)[i % 3]
            rows.switch(method, i)
            live = {name: (m if pin else method, pin) for name, (m, pin) in live.items()}
        else:
            live[f"r{i}"] = (NGRAM, PLAIN)[i % 2], not i % 5
            rows.admit(f"r{i}", live[f"r{i}"][0], pinned=live[f"r{i}"][1], epoch=i)
        drafting = {name: m for name, (m, _) in live.items() if m.num_speculative_tokens}
        assert rows.table.num_drafting == len(drafting)
        assert rows.plan(*live).drafts == drafting


def test_a_request_added_again_keeps_its_row(rows: RowSteps) -> None:
    """A streaming session sends the next input under the same id; it is one row."""
    rows.admit("r")
    rows.switch(DRAFT, 1)
    rows.admit("r")
    assert rows.table.num_drafting == 1
    assert rows.plan("r").drafts == {"r": DRAFT}
