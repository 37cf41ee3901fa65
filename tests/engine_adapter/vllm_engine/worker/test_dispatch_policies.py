"""Fallbacks and shadows: which proposers are called for a row, and what the report says of them."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from engine_adapter.proposers.batch import DraftBatch, Drafts
from tests.engine_adapter.vllm_engine.support.dispatch_harness import (
    CONTEXT,
    DispatchHarness,
    output,
    prompt_row,
    row,
)

pytestmark = pytest.mark.needs_vllm

ONE = {"r": row(9)}


def calls(harness: DispatchHarness, name: str) -> list[list[str]]:
    """The rows of each call of a proposer."""
    return [list(batch.request_ids) for batch in harness.echoes[name].batches]


def work(harness: DispatchHarness) -> list[tuple[str, int, int, int]]:
    """The report's calls: proposer, rows, longest k and tokens."""
    return [(name, one.rows, one.longest, one.tokens) for name, one in harness.report.work]


# -- fallbacks -------------------------------------------------------------------------------


def test_a_fallback_is_not_called_where_the_first_proposer_finds_something(
    harness: DispatchHarness,
) -> None:
    assert harness.propose(ONE, {"r": ("a", 2)}, {"r": ("b", 3)}) == {"r": [109] * 2}
    assert calls(harness, "b") == []
    assert harness.report.fallbacks == []
    assert work(harness) == [("a", 1, 2, 2)]


def test_where_it_finds_nothing_the_fallback_drafts_with_its_own_k(
    harness: DispatchHarness,
) -> None:
    harness.finds_nothing("a", "r")
    rows = {"r": row(9), "s": row(9), "t": row(9)}
    drafts = harness.propose(
        rows, dict.fromkeys(rows, ("a", 2)), {"r": ("b", 3), "s": ("b", 3), "t": ("d", 1)}
    )
    assert drafts == {"r": [209] * 3, "s": [109] * 2, "t": [109] * 2}
    assert calls(harness, "b") == [["r"]]
    assert calls(harness, "d") == []
    assert harness.report.fallbacks == ["r"]
    assert harness.report.proposed == {"a": 4, "b": 3}
    assert work(harness) == [("a", 3, 2, 4), ("b", 1, 3, 3)]


def test_a_row_for_which_both_find_nothing_gets_no_drafts(harness: DispatchHarness) -> None:
    harness.finds_nothing("a")
    harness.finds_nothing("b")
    assert harness.propose(ONE, {"r": ("a", 2)}, {"r": ("b", 3)}) == {"r": []}
    assert harness.report.fallbacks == ["r"], "it was called"
    assert harness.report.proposed == {"a": 0, "b": 0}


def test_rows_of_one_fallback_share_its_call(harness: DispatchHarness) -> None:
    harness.finds_nothing("a")
    harness.finds_nothing("b")
    rows = {"r": row(9), "s": row(12), "t": row(9), "u": row(9)}
    plan = {"r": ("a", 2), "s": ("b", 2), "t": ("d", 2), "u": ("a", 2)}
    drafts = harness.propose(rows, plan, {"r": ("d", 1), "s": ("d", 3)})
    assert drafts == {"r": [409], "s": [412] * 3, "t": [409] * 2, "u": []}
    assert calls(harness, "d") == [["t"], ["r", "s"]]
    assert harness.report.fallbacks == ["r", "s"]


def test_an_unloaded_fallback_is_ignored(harness: DispatchHarness) -> None:
    harness.finds_nothing("a")
    assert harness.propose(ONE, {"r": ("a", 2)}, {"r": ("gone", 3)}) == {"r": []}
    assert harness.report.fallbacks == []
    assert set(harness.report.proposed) == {"a"}


def test_the_fallback_of_an_unloaded_proposer_drafts(harness: DispatchHarness) -> None:
    assert harness.propose(ONE, {"r": ("gone", 2)}, {"r": ("b", 1)}) == {"r": [209]}
    assert harness.report.fallbacks == ["r"]


def explode(batch: DraftBatch) -> Drafts:
    raise ZeroDivisionError("its own mistake")


def test_a_fault_of_the_first_proposer_calls_the_fallback(harness: DispatchHarness) -> None:
    harness.echoes["a"].propose = explode  # type: ignore[method-assign]
    assert harness.propose(ONE, {"r": ("a", 2)}, {"r": ("b", 1)}) == {"r": [209]}
    assert list(harness.report.faults) == ["a"]
    assert harness.report.fallbacks == ["r"]


def test_a_fault_of_the_fallback_costs_its_rows_only(harness: DispatchHarness) -> None:
    harness.finds_nothing("a", "r")
    harness.echoes["b"].propose = explode  # type: ignore[method-assign]
    rows = {"r": row(9), "s": row(9)}
    drafts = harness.propose(rows, dict.fromkeys(rows, ("a", 2)), dict.fromkeys(rows, ("b", 1)))
    assert drafts == {"r": [], "s": [109] * 2}
    assert list(harness.report.faults) == ["b"]


@pytest.mark.parametrize("quarantined", ["a", "b"])
def test_a_quarantined_proposer_is_not_called_and_its_time_not_measured(
    harness: DispatchHarness, quarantined: str
) -> None:
    if quarantined == "b":
        harness.finds_nothing("a")
    harness.dispatch.observe(output(specgate_quarantined={quarantined}))
    drafts = harness.propose(ONE, {"r": ("a", 2)}, {"r": ("b", 1)})
    assert drafts == {"r": [209] if quarantined == "a" else []}
    assert calls(harness, quarantined) == []
    assert quarantined not in {name for name, _ in harness.report.work}


def test_a_row_in_mid_prompt_falls_back_to_nothing_but_a_reader(harness: DispatchHarness) -> None:
    rows = {"kv": prompt_row(30, 16, 8), "plain": prompt_row(30, 16, 8)}
    plan = dict.fromkeys(rows, ("a", 2))
    assert harness.propose(rows, plan, {"kv": ("d", 2), "plain": ("b", 2)}) == {
        "kv": [],
        "plain": [],
    }
    assert [batch.k.tolist() for batch in harness.echoes["d"].batches] == [[0]]
    assert calls(harness, "a") == calls(harness, "b") == []


# -- shadows ---------------------------------------------------------------------------------


def test_shadow_drafts_are_never_verified_and_never_counted(harness: DispatchHarness) -> None:
    rows = {"r": row(9), "s": row(9)}
    drafts = harness.propose(rows, {"r": ("a", 2)}, shadows={"b": ["r", "s"]})
    assert drafts == {"r": [109] * 2, "s": []}
    report = harness.report
    assert report.proposed == {"a": 2}
    assert set(report.seconds) == {"a"}
    assert report.catchup == {}
    assert work(harness) == [("a", 1, 2, 2), ("b", 2, 4, 8)], "the policies learn the time"
    assert report.outcomes == []


def test_a_plan_of_shadows_only_is_followed(harness: DispatchHarness) -> None:
    assert harness.propose(ONE, {}, shadows={"a": ["r"]}) == {"r": []}
    assert calls(harness, "a") == [["r"]]


def test_a_shadow_drafts_again_when_its_fate_is_known(harness: DispatchHarness) -> None:
    """The rows of this world write token i at position i; an echo drafts its tag plus a length."""
    shadows = {"a": ["r"]}
    harness.propose({"r": row(9)}, {}, shadows=shadows)
    assert harness.report.outcomes == []
    harness.propose({"r": row(9)}, {}, shadows=shadows)
    assert len(calls(harness, "a")) == 1, "one draft waits already"
    harness.propose({"r": row(10)}, {}, shadows=shadows)
    assert harness.report.outcomes == [("r", "a", 4, 4, 4, 0)]
    assert len(calls(harness, "a")) == 2
    harness.echoes["a"].tag = 0
    harness.propose({"r": row(11)}, {}, shadows={})
    harness.propose({"r": row(11)}, {}, shadows=shadows)
    harness.propose({"r": row(15)}, {})
    assert harness.report.outcomes == [("r", "a", 4, 4, 4, 1)], "it drafted 11 four times"


def test_a_shadow_that_finds_nothing_is_reported_at_once(harness: DispatchHarness) -> None:
    harness.finds_nothing("a")
    harness.propose(ONE, {}, shadows={"a": ["r"]})
    assert harness.report.outcomes == [("r", "a", 4, 0, 0, 0)]


@pytest.mark.parametrize("how", ["finished_req_ids", "preempted_req_ids"])
def test_a_row_that_ends_or_is_preempted_has_no_outcome(harness: DispatchHarness, how: str) -> None:
    harness.propose(ONE, {}, shadows={"a": ["r"]})
    harness.dispatch.observe(output(**{how: {"r"}}))
    harness.propose({"r": row(20)}, {}, shadows={"a": []})
    assert harness.report.outcomes == []


def test_a_shadow_of_a_row_outside_the_batch_or_of_an_unloaded_proposer_is_ignored(
    harness: DispatchHarness,
) -> None:
    assert harness.propose(ONE, {}, shadows={"a": ["gone"], "gone": ["r"]}) == {"r": []}
    assert calls(harness, "a") == []


def test_a_fault_in_the_shadow_costs_no_row_its_drafts(harness: DispatchHarness) -> None:
    harness.echoes["b"].propose = explode  # type: ignore[method-assign]
    assert harness.propose(ONE, {"r": ("a", 2)}, shadows={"b": ["r"]}) == {"r": [109] * 2}
    assert list(harness.report.faults) == ["b"]


def test_a_quarantined_shadow_is_not_called(harness: DispatchHarness) -> None:
    harness.dispatch.observe(output(specgate_quarantined={"b"}))
    harness.propose(ONE, {"r": ("a", 2)}, shadows={"b": ["r"]})
    assert calls(harness, "b") == []
    assert harness.report.outcomes == []


def test_near_the_context_limit_a_shadow_shrinks(harness: DispatchHarness) -> None:
    harness.propose({"r": row(CONTEXT - 1), "s": row(CONTEXT)}, {}, shadows={"a": ["r", "s"]})
    (batch,) = harness.echoes["a"].batches
    assert (list(batch.request_ids), batch.k.tolist()) == (["r"], [1])


def test_a_shadow_neither_samples_nor_replaces_the_distributions_of_the_rows_own_drafts(
    harness: DispatchHarness,
) -> None:
    """Verification would take them for those of the drafts it verifies: another distribution."""
    used: list[str] = []

    def with_sampler(name: str, batch: DraftBatch, *, greedy: bool) -> DraftBatch:
        used.append(f"{'limits' if greedy else 'samples'} {name}")
        return batch

    harness.dispatch.sampled_drafts = SimpleNamespace(  # type: ignore[assignment]
        with_sampler=with_sampler,
        cut=lambda batch, drafts: drafts,
        store=lambda name, batch, drafts: used.append(f"stores {name}"),
    )
    harness.propose(ONE, {"r": ("a", 2)}, shadows={"b": ["r"]})
    assert used == ["samples a", "stores a", "limits b"]


# -- drafts that are cut ---------------------------------------------------------------------


def test_a_draft_that_is_cut_is_asked_for_whole_and_its_length_reported(
    harness: DispatchHarness,
) -> None:
    drafts = harness.propose(ONE, {"r": ("a", 2)}, verify_caps={"r": (0, 1, 2, 3, 2)})
    assert drafts == {"r": [109] * 2}
    assert [batch.k.tolist() for batch in harness.echoes["a"].batches] == [[4]]
    assert harness.report.full_lengths == {"r": 4}


def test_k_limits_what_is_kept(harness: DispatchHarness) -> None:
    assert harness.propose(ONE, {"r": ("a", 1)}, verify_caps={"r": (0, 1, 2, 3, 4)}) == {"r": [109]}


def test_the_length_of_a_draft_that_is_kept_whole_is_reported(harness: DispatchHarness) -> None:
    """A grammar may shorten it before it is verified."""
    harness.propose(ONE, {"r": ("a", 4)}, verify_caps={"r": (0, 0, 0, 0, 4)})
    assert harness.report.full_lengths == {"r": 4}


def test_a_draft_that_is_dropped_gives_way_to_the_fallback_and_its_fate_is_told_later(
    harness: DispatchHarness,
) -> None:
    rows = {"r": row(9), "s": row(9)}
    plan, second = dict.fromkeys(rows, ("a", 4)), dict.fromkeys(rows, ("b", 1))
    drafts = harness.propose(rows, plan, second, verify_caps={"r": (0, 1, 2, 3, 0)})
    assert drafts == {"r": [209], "s": [109] * 4}
    assert harness.report.full_lengths == {}
    assert harness.report.dropped == ["r"]
    assert harness.report.fallbacks == ["r"]
    assert harness.report.outcomes == []
    harness.propose({"r": row(10), "s": row(10)}, {})
    assert harness.report.outcomes == [("r", "a", 4, 4, 4, 0)]


def test_a_draft_that_is_dropped_while_another_waits_tells_its_length_only(
    harness: DispatchHarness,
) -> None:
    harness.propose(ONE, {"r": ("a", 4)}, verify_caps={"r": (0,) * 5})
    harness.propose(ONE, {"r": ("a", 4)}, verify_caps={"r": (0,) * 5})
    assert harness.report.outcomes == [("r", "a", 4, 4, 0, 0)]


def test_a_sampled_draft_is_not_dropped(harness: DispatchHarness) -> None:
    """Its length may depend on its tokens; dropping it for them would change the distribution."""
    echo = harness.echoes["a"]
    whole = echo.propose

    def sampled(batch: DraftBatch) -> Drafts:
        drafts = whole(batch)
        return replace(drafts, probabilities=[torch.full((4, 1000), 1e-3)])

    echo.propose = sampled  # type: ignore[method-assign]
    drafts = harness.propose(ONE, {"r": ("a", 2)}, verify_caps={"r": (0,) * 5})
    assert drafts == {"r": [109] * 2}
