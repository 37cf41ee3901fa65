"""The counts of each request and step, and their way out."""

from types import SimpleNamespace

import pytest

from engine_adapter.seam.counts import ProposerCounts, StepKind
from engine_adapter.seam.types import NONE, PLAIN
from engine_adapter.vllm_engine.wire import decode_step
from tests.engine_adapter.vllm_engine.support.row_steps import DRAFT, RowSteps


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
        report = decode_step(rows.table.step_stats() or {})
        assert report.verified == {NONE: ProposerCounts(emitted=1)}
    assert rows.end("r").by_proposer == {}


def test_rows_of_one_step_are_counted_separately_and_summed(rows: RowSteps) -> None:
    rows.admit("a")
    rows.admit("b", DRAFT)
    rows.admit("c", PLAIN)
    rows.admit("d")
    rows.step(a=(0, 0), b=(0, 0), c=(0, 0), d=(0, 0))
    rows.step(a=(5, 2), b=(4, 0), c=(0, 0), d=(3, 3))
    report = decode_step(rows.table.step_stats() or {})
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
    assert rows.end("r").by_proposer["ngram"].accepted == 5
    assert rows.table.free("r") is None


def test_a_request_without_a_row_ends_without_statistics(rows: RowSteps) -> None:
    assert rows.table.free("unknown") is None


def test_only_rows_that_stream_their_statistics_have_them_on_every_output(rows: RowSteps) -> None:
    rows.admit("plain")
    rows.admit("stops", streams_stats=True)
    outputs = [
        SimpleNamespace(request_id=name, kv_transfer_params=None)
        for name in ("plain", "stops", "gone")
    ]
    rows.step(plain=(0, 0), stops=(0, 0))
    rows.table.attach_stats(outputs)
    assert [output.kv_transfer_params is not None for output in outputs] == [False, True, False]


def test_a_steps_report_exists_when_its_outputs_have_arrived(rows: RowSteps) -> None:
    rows.admit("r")
    rows.plan("r")
    assert rows.table.step_stats() is None
    rows.count({"r": (0, 0)})
    report = decode_step(rows.table.step_stats() or {})
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
