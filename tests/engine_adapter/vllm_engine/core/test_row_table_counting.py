"""The counts of each request and step, and their way out."""

import pytest

from engine_adapter.seam.counts import ProposerCounts, StepKind
from engine_adapter.seam.types import NONE, PLAIN
from engine_adapter.vllm_engine.wire import decode_request
from tests.engine_adapter.vllm_engine.support.row_steps import DRAFT, RowSteps, output


@pytest.fixture
def rows() -> RowSteps:
    """An empty table."""
    return RowSteps()


def test_verified_drafts_are_credited_to_the_proposer_that_drafted_them(rows: RowSteps) -> None:
    rows.admit("r")
    rows.step(r=(0, 0))
    rows.step(r=(5, 3))
    stats = rows.end("r")
    assert stats.by_proposer == {"ngram": ProposerCounts(1, 5, 3, (1, 1, 1), 4)}
    assert (stats.decode_steps, stats.decode_tokens) == (1, 4)


def test_a_switch_before_verification_still_credits_the_drafter(rows: RowSteps) -> None:
    rows.admit("r")
    rows.step(r=(0, 0))  # ngram is planned to draft at its end
    rows.switch(DRAFT, 1)
    rows.step(r=(5, 2))  # verifies ngram's, plans the draft model
    rows.step(r=(4, 4))
    assert rows.end("r").by_proposer == {
        "ngram": ProposerCounts(1, 5, 2, (1, 1), 3),
        "small": ProposerCounts(1, 4, 4, (1, 1, 1, 1), 5),
    }


def test_a_switch_to_none_still_credits_the_drafter(rows: RowSteps) -> None:
    rows.admit("r")
    rows.step(r=(0, 0))
    rows.switch(PLAIN, 1)
    rows.step(r=(5, 1))
    rows.step(r=(0, 0))
    stats = rows.end("r")
    assert stats.by_proposer == {"ngram": ProposerCounts(1, 5, 1, (1,), 2)}
    assert (stats.decode_steps, stats.decode_tokens) == (2, 3)


def test_a_step_without_drafts_is_not_credited_to_the_proposer(rows: RowSteps) -> None:
    rows.admit("r")
    for _ in range(3):
        rows.step(r=(0, 0))
        report = rows.sent()
        assert report.verified == {NONE: ProposerCounts(emitted=1)}
    assert rows.end("r").by_proposer == {}


def test_rows_of_one_step_are_counted_separately_and_summed(rows: RowSteps) -> None:
    rows.admit("a")
    rows.admit("b", DRAFT)
    rows.admit("c", PLAIN)
    rows.admit("d")
    rows.step(a=(0, 0), b=(0, 0), c=(0, 0), d=(0, 0))
    rows.step(a=(5, 2), b=(4, 0), c=(0, 0), d=(3, 3))
    report = rows.sent()
    assert report.verified == {
        "ngram": ProposerCounts(2, 8, 5, (2, 2, 1), 7),
        "small": ProposerCounts(1, 4, 0, (), 1),
        NONE: ProposerCounts(emitted=1),
    }
    assert rows.end("a").by_proposer["ngram"].accepted == 2
    assert rows.end("d").by_proposer["ngram"].accepted == 3


def test_a_request_that_ends_takes_its_statistics_and_its_row_along(rows: RowSteps) -> None:
    rows.admit("r")
    rows.step(r=(0, 0))
    rows.step(r=(5, 5))
    rows.plan("r", verified=("r",))
    rows.count({"r": (5, 5)}, ends=["r"])
    stats = decode_request(rows.outputs[0].kv_transfer_params)
    assert stats is not None
    assert stats.by_proposer["ngram"] == ProposerCounts(2, 10, 10, (2,) * 5, 12)
    assert stats.decode_tokens == 12
    late = output("r", 1)
    rows.table.count_outputs([late])
    assert late.kv_transfer_params is None


def test_a_request_without_a_row_ends_without_statistics(rows: RowSteps) -> None:
    rows.table.free("unknown")
    last = output("unknown", 1)
    rows.table.count_outputs([last])
    assert last.kv_transfer_params is None


def test_only_rows_that_stream_their_statistics_have_them_on_every_output(rows: RowSteps) -> None:
    rows.admit("plain")
    rows.admit("stops", streams_stats=True)
    rows.step(plain=(0, 0), stops=(0, 0))
    assert [last.kv_transfer_params is not None for last in rows.outputs] == [False, True]


def test_a_steps_report_exists_when_its_outputs_have_arrived(rows: RowSteps) -> None:
    rows.admit("r")
    rows.plan("r")
    rows.count({"r": (0, 0)})
    report = rows.sent()
    assert report.kind is StepKind.DECODE
    assert 0 < report.seconds < 60


def test_a_request_that_may_not_draft_has_no_plan(rows: RowSteps) -> None:
    rows.admit("r")
    rows.admit("s")
    rows.plan("r", "s")
    rows.count({"r": (0, 0), "s": (0, 0)})
    rows.table.start_step()
    plan = rows.table.plan(["r", "s"], (), rows.requests, 0, (), {"r"})
    assert set(plan.drafts) == {"s"}
