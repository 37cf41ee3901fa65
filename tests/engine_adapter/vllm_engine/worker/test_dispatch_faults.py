"""Faults and their effects: broken proposers, members of cascades, the quarantine."""

from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.proposers.batch import DraftBatch, Drafts
from engine_adapter.proposers.cascade import CascadeProposer
from engine_adapter.proposers.contract import Capabilities
from tests.engine_adapter.vllm_engine.support.dispatch_harness import (
    CONTEXT,
    VOCABULARY,
    DispatchHarness,
    output,
    prompt_row,
    row,
)

pytestmark = pytest.mark.needs_vllm

NAN: Any = float("nan")
"""Not a token id."""


# -- faults ----------------------------------------------------------------------------------


def break_proposer(harness: DispatchHarness, name: str, how: Any) -> None:
    """Replaces a proposer's `propose` by `how`."""
    harness.echoes[name].propose = how  # type: ignore[method-assign]


def explode(batch: DraftBatch) -> Drafts:
    raise ZeroDivisionError("its own mistake")


def overwrite(batch: DraftBatch) -> Drafts:
    batch.token_ids[:] = 0
    return Drafts([[1]])


@pytest.mark.parametrize(
    ("how", "why"),
    [
        (explode, "ZeroDivisionError: its own mistake"),
        (lambda batch: Drafts([[VOCABULARY]]), "BadDrafts"),
        (lambda batch: Drafts([[1, 2, 3, 4]]), "BadDrafts"),
        (lambda batch: None, "BadDrafts"),
        (lambda batch: Drafts([[NAN]]), "BadDrafts"),
        (overwrite, "ValueError"),
    ],
)
def test_a_fault_costs_the_proposers_own_rows_their_drafts(
    harness: DispatchHarness, how: Any, why: str
) -> None:
    break_proposer(harness, "b", how)
    drafts = harness.propose(
        {"r": row(9), "s": row(9), "t": row(9)}, {"r": ("a", 2), "s": ("b", 3), "t": ("d", 2)}
    )
    assert drafts == {"r": [109, 109], "s": [], "t": [409, 409]}
    assert (harness.runner.input_batch.token_ids_cpu == np.arange(CONTEXT)).all()
    report = harness.report
    assert list(report.faults) == ["b"]
    assert report.faults["b"].startswith(why)
    assert report.proposed == {"a": 2, "b": 0, "d": 2}


def test_a_device_failure_is_not_contained(harness: DispatchHarness) -> None:
    def fail(batch: DraftBatch) -> Drafts:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    break_proposer(harness, "a", fail)
    with pytest.raises(torch.AcceleratorError):
        harness.propose({"r": row(9)}, {"r": ("a", 2)})


def test_a_repeated_fault_is_logged_once_until_another_one_occurs(
    harness: DispatchHarness, caplog: pytest.LogCaptureFixture
) -> None:
    break_proposer(harness, "a", explode)
    for _ in range(3):
        harness.propose({"r": row(9)}, {"r": ("a", 2)})
    (record,) = caplog.records
    assert "proposer a failed" in record.getMessage()
    assert record.exc_info is not None
    break_proposer(harness, "a", lambda batch: None)
    harness.propose({"r": row(9)}, {"r": ("a", 2)})
    assert len(caplog.records) == 2


# -- cascades --------------------------------------------------------------------------------


def cascade(harness: DispatchHarness, *names: str, is_chain: bool = False) -> None:
    """Loads a cascade `e` of the given members, or a chain."""
    host = harness.dispatch.host
    members = [host.member(name) for name in names]
    host.proposers["e"] = CascadeProposer(members, is_chain=is_chain)
    harness.dispatch.host.capabilities["e"] = Capabilities(members=True, draft_kv="d" in names)


def test_after_a_members_fault_the_next_member_drafts(harness: DispatchHarness) -> None:
    cascade(harness, "b", "d")
    break_proposer(harness, "b", explode)
    plan = {"r": ("e", 3), "s": ("a", 1), "t": ("e", 3)}
    drafts = harness.propose({"r": row(9), "s": row(9), "t": prompt_row(30, 16, 8)}, plan)
    assert drafts == {"r": [409] * 3, "s": [109], "t": []}
    report = harness.report
    assert list(report.faults) == ["b"]
    assert report.proposed == {"e": 3, "a": 1}


def test_a_quarantined_member_is_skipped(harness: DispatchHarness) -> None:
    cascade(harness, "b", "c")
    harness.dispatch.observe(output(specgate_quarantined={"b"}))
    assert harness.propose({"r": row(9)}, {"r": ("e", 2)}) == {"r": [309, 309]}
    assert not harness.echoes["b"].batches


def test_a_chains_member_continues_drafts_behind_the_rows_text(harness: DispatchHarness) -> None:
    cascade(harness, "b", "a", is_chain=True)
    rows = {"r": row(9), "s": row(30), "t": prompt_row(30, 16, 8)}
    plan = {"r": ("e", 6), "s": ("e", 4), "t": ("e", 6)}
    assert harness.propose(rows, plan) == {"r": [209] * 4 + [109] * 2, "s": [230] * 4, "t": []}
    (batch,) = harness.echoes["a"].batches
    assert batch.request_ids == ["r"]
    assert batch.prefix(0).tolist() == [*range(9), *[209] * 4]
    assert batch.context(0).tolist() == [*range(9)]
    expected = np.tile(np.arange(CONTEXT), (3, 1))
    expected[0, 9:13] = 209
    np.testing.assert_array_equal(harness.runner.input_batch.token_ids_cpu, expected)


def test_a_chains_drafts_end_with_the_context(harness: DispatchHarness) -> None:
    cascade(harness, "b", "a", is_chain=True)
    drafts = harness.propose({"r": row(CONTEXT - 5)}, {"r": ("e", 8)})
    assert drafts == {"r": [259] * 4 + [159]}


def test_a_members_context_length_limits_only_its_own_rows(harness: DispatchHarness) -> None:
    cascade(harness, "d", "b")
    harness.draft_model.max_model_len = 20
    rows = {"in": row(18), "over": row(30)}
    assert harness.propose(rows, dict.fromkeys(rows, ("e", 3))) == {
        "in": [418] * 2,
        "over": [230] * 3,
    }


# -- quarantine ------------------------------------------------------------------------------


def test_a_quarantined_proposer_is_not_called(harness: DispatchHarness) -> None:
    harness.dispatch.observe(output(specgate_quarantined={"a"}))
    drafts = harness.propose({"r": row(9), "s": row(9)}, {"r": ("a", 2), "s": ("b", 2)})
    assert drafts == {"r": [], "s": [209, 209]}
    assert not harness.echoes["a"].batches
