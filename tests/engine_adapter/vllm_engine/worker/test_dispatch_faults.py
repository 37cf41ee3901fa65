"""Whose fault costs whom what: broken proposers, members of cascades, the quarantine."""

from functools import partial
from types import SimpleNamespace
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
    Bench,
    output,
    prompt_row,
    row,
)

pytestmark = pytest.mark.needs_vllm


# -- faults ----------------------------------------------------------------------------------


def broken(bench: Bench, name: str, how: Any) -> None:
    """Lets a proposer do `how` with its batch in place of drafting."""
    bench.echoes[name].propose = how  # type: ignore[method-assign]


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
        (lambda batch: Drafts([[float("nan")]]), "BadDrafts"),
        (overwrite, "ValueError"),
    ],
)
def test_a_fault_costs_the_proposers_own_rows_their_drafts(
    bench: Bench, how: Any, why: str
) -> None:
    broken(bench, "b", how)
    drafts = bench.propose(
        {"r": row(9), "s": row(9), "t": row(9)}, {"r": ("a", 2), "s": ("b", 3), "t": ("d", 2)}
    )
    assert drafts == {"r": [109, 109], "s": [], "t": [409, 409]}
    assert (bench.runner.input_batch.token_ids_cpu == np.arange(CONTEXT)).all()
    report = bench.dispatch.take_report()
    assert list(report.faults) == ["b"]
    assert report.faults["b"].startswith(why)
    assert report.drafted == {"a": 2, "b": 0, "d": 2}


def test_a_device_that_failed_is_no_proposers_fault(bench: Bench) -> None:
    def fail(batch: DraftBatch) -> Drafts:
        raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")

    broken(bench, "a", fail)
    with pytest.raises(torch.AcceleratorError):
        bench.propose({"r": row(9)}, {"r": ("a", 2)})


def test_the_same_fault_is_logged_once_until_another_one_comes(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    broken(bench, "a", explode)
    for _ in range(3):
        bench.propose({"r": row(9)}, {"r": ("a", 2)})
    (record,) = caplog.records
    assert "proposer a failed" in record.getMessage()
    assert record.exc_info is not None
    broken(bench, "a", lambda batch: None)
    bench.propose({"r": row(9)}, {"r": ("a", 2)})
    assert len(caplog.records) == 2


# -- cascades --------------------------------------------------------------------------------


def cascade(bench: Bench, *names: str) -> None:
    """Loads a cascade `e` of the given members."""
    members = [
        SimpleNamespace(
            num_speculative_tokens=4, draft_kv=n == "d", draft=partial(bench.dispatch.draft, n)
        )
        for n in names
    ]
    bench.dispatch._proposers["e"] = CascadeProposer(members)
    bench.dispatch._capabilities["e"] = Capabilities(members=True, draft_kv="d" in names)


def test_a_members_fault_is_its_own_and_the_next_member_drafts(bench: Bench) -> None:
    cascade(bench, "b", "d")
    broken(bench, "b", explode)
    plan = {"r": ("e", 3), "s": ("a", 1), "t": ("e", 3)}
    drafts = bench.propose({"r": row(9), "s": row(9), "t": prompt_row(30, 16, 8)}, plan)
    assert drafts == {"r": [409] * 3, "s": [109], "t": []}
    report = bench.dispatch.take_report()
    assert list(report.faults) == ["b"]
    assert report.drafted == {"e": 3, "a": 1}


def test_a_quarantined_member_is_passed_over(bench: Bench) -> None:
    cascade(bench, "b", "c")
    bench.dispatch.observe(output(specgate_quarantined={"b"}))
    assert bench.propose({"r": row(9)}, {"r": ("e", 2)}) == {"r": [309, 309]}
    assert not bench.echoes["b"].batches


def test_a_members_own_context_bounds_its_rows_alone(bench: Bench) -> None:
    cascade(bench, "d", "b")
    bench.kept.max_model_len = 20
    rows = {"in": row(18), "over": row(30)}
    assert bench.propose(rows, dict.fromkeys(rows, ("e", 3))) == {
        "in": [418] * 2,
        "over": [230] * 3,
    }


# -- quarantine ------------------------------------------------------------------------------


def test_who_is_quarantined_is_not_asked(bench: Bench) -> None:
    bench.dispatch.observe(output(specgate_quarantined={"a"}))
    drafts = bench.propose({"r": row(9), "s": row(9)}, {"r": ("a", 2), "s": ("b", 2)})
    assert drafts == {"r": [], "s": [209, 209]}
    assert not bench.echoes["a"].batches
