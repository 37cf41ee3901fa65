"""Proposers that come and go while a policy uses them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from engine_adapter.policies.contract import DraftOutcome, DraftTime, ProposerTraits, StepPlan
from engine_adapter.policies.measurements import PROVEN_DRAFTS
from engine_adapter.policies.names import POLICY_NAMES
from engine_adapter.policies.planner import Planner
from engine_adapter.seam.counts import ProposerCounts
from engine_adapter.seam.types import NONE, SpecMethod
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
    AUTO,
)

FELL_BACK = DraftReport(fallbacks=["r"])


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
    seen = [DraftOutcome("r", name, k, k, k, k) for name, k in (("ngram", 5), ("small", 4))]
    used.measurements.observe_drafts(seen * PROVEN_DRAFTS)
    return rows


@pytest.mark.parametrize("name", POLICY_NAMES)
@pytest.mark.parametrize("how", ["unloaded", "quarantined"])
@pytest.mark.filterwarnings("error")
def test_a_proposer_that_goes_and_comes_back_under_a_policy_breaks_nothing(
    name: str, how: str
) -> None:
    rows = under_policy(name)
    table, measurements = rows.table, rows.table.planner.measurements
    planned = {m.proposer for plan in run(rows, "rs", 80) for m in plan.drafts.values()}
    assert planned, "the policy drafted"
    for gone in sorted(planned):
        if how == "unloaded":
            measurements.remove_proposer(gone)
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
        measurements.add_proposer(next(traits for traits in TRAITS if traits.name == gone))
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
    rows.admit("r", AUTO)
    rows.admit("s", AUTO)
    used = rows.table.planner
    chosen = StepPlan({"r": NGRAM, "s": NGRAM}, {"r": DRAFT})
    used._active["auto"].policy.plan = lambda view: chosen  # type: ignore[method-assign]
    used.measurements.remove_proposer("ngram")
    plan = rows.step(r=(0, 0), s=(0, 0))
    assert (plan.drafts, plan.fallbacks) == ({"r": DRAFT}, {})
    step = rows.sent().policy
    assert step is not None
    assert step.decisions == {"auto": {"small": 1, NONE: 1}}
    rows.step(r=(4, 1), s=(0, 0))
    assert rows.end("r").by_proposer == {"small": ProposerCounts(1, 4, 1, (1,), 2)}


def test_a_proposer_that_is_loaded_later_is_tried() -> None:
    rows = under_policy("auto")
    list(run(rows, "rs", 10))
    rows.table.planner.measurements.add_proposer(ProposerTraits("new", 3, lookup=True))
    plans = list(run(rows, "rs", 100))
    tried = {m.proposer for plan in plans for m in plan.drafts.values()}
    assert "new" in tried
