"""The dispatch: the batch of each proposer, the merged drafts, the report and the blocks."""

from importlib import import_module

import numpy as np
import pytest

from tests.engine_adapter.vllm_engine.support.dispatch_harness import (
    BLOCK,
    CONTEXT,
    DispatchHarness,
    cached,
    new,
    output,
    prompt_row,
    row,
)

pytestmark = pytest.mark.needs_vllm


# -- drafting --------------------------------------------------------------------------------


def test_each_of_five_rows_gets_drafts_from_its_own_proposer(harness: DispatchHarness) -> None:
    rows = {name: row(10 + i) for i, name in enumerate(("r0", "r1", "r2", "r3", "r4"))}
    plan = {"r3": ("c", 2), "r0": ("a", 3), "r4": ("a", 1), "r1": ("b", 4)}
    assert harness.propose(rows, plan) == {
        "r0": [110] * 3,
        "r1": [211] * 4,
        "r2": [],
        "r3": [313] * 2,
        "r4": [114],
    }


def test_each_proposer_is_called_once_with_its_own_rows(harness: DispatchHarness) -> None:
    rows = {f"r{i}": row(10 + i, prompt=3 + i) for i in range(4)}
    harness.propose(rows, {"r0": ("a", 3), "r1": ("b", 2), "r2": ("a", 1), "r3": ("a", 2)})
    (batch,) = harness.echoes["a"].batches
    assert list(batch.request_ids) == ["r0", "r2", "r3"]
    assert batch.rows.tolist() == [0, 2, 3]
    assert batch.k.tolist() == [3, 1, 2]
    assert batch.num_tokens.tolist() == [10, 12, 13]
    assert batch.num_prompt_tokens.tolist() == [3, 5, 6]
    assert batch.num_computed.tolist() == [8, 10, 11]
    assert batch.context(1).tolist() == list(range(12))
    assert len(harness.echoes["b"].batches) == 1
    assert not harness.echoes["c"].batches


def test_the_arrays_of_a_batch_have_the_documented_types(harness: DispatchHarness) -> None:
    harness.propose({"r": row(9)}, {"r": ("a", 3)})
    (batch,) = harness.echoes["a"].batches
    for name in ("num_tokens", "num_prompt_tokens", "num_computed", "k"):
        assert getattr(batch, name).dtype == np.int64
    assert batch.token_ids.dtype == np.int32
    assert np.issubdtype(batch.rows.dtype, np.integer)


def test_the_computed_tokens_are_those_before_the_step(harness: DispatchHarness) -> None:
    # 4 drafts were verified and 2 accepted: 3 tokens emitted, 5 computed.
    harness.propose({"r": row(20, sampled=3, scheduled=5)}, {"r": ("a", 2)})
    (batch,) = harness.echoes["a"].batches
    assert (batch.num_tokens.tolist(), batch.num_computed.tolist()) == ([20], [16])


def test_a_row_in_mid_prompt_goes_only_to_proposers_with_kv_and_with_k_0(
    harness: DispatchHarness,
) -> None:
    rows = {name: prompt_row(30, computed=16, scheduled=8) for name in ("kv", "kv0", "plain")}
    drafts = harness.propose(rows, {"kv": ("d", 4), "kv0": ("d", 0), "plain": ("a", 4)})
    assert drafts == {"kv": [], "kv0": [], "plain": []}
    (batch,) = harness.echoes["d"].batches
    assert batch.k.tolist() == [0, 0]
    assert batch.num_tokens.tolist() == [24, 24], "the tokens computed so far, not the whole prompt"
    assert not harness.echoes["a"].batches


def test_a_row_with_k_0_that_emitted_ends_at_its_committed_tokens(
    harness: DispatchHarness,
) -> None:
    """A policy may pause drafting with k = 0: rejected drafts were computed, not committed."""
    harness.propose({"r": row(20, sampled=1, scheduled=5)}, {"r": ("d", 0)})
    (batch,) = harness.echoes["d"].batches
    assert (batch.k.tolist(), batch.num_tokens.tolist()) == ([0], [20])


def test_a_proposer_without_kv_is_not_called_for_rows_with_k_0(harness: DispatchHarness) -> None:
    assert harness.propose({"r": row(9)}, {"r": ("a", 0)}) == {"r": []}
    assert not harness.echoes["a"].batches


@pytest.mark.parametrize("name", ["a", "d"])
@pytest.mark.parametrize(
    ("length", "k"), [(CONTEXT - 5, 4), (CONTEXT - 3, 3), (CONTEXT - 1, 1), (CONTEXT, 0)]
)
def test_near_the_context_limit_k_shrinks_for_that_row_only(
    harness: DispatchHarness, name: str, length: int, k: int
) -> None:
    rows = {"before": row(10), "near": row(length), "after": row(11)}
    drafts = harness.propose(rows, dict.fromkeys(rows, (name, 4)))
    assert [len(drafts[r]) for r in rows] == [4, k, 4]
    without = DispatchHarness(import_module("engine_adapter.vllm_engine.worker.dispatch"))
    del rows["near"]
    neighbours = without.propose(rows, dict.fromkeys(rows, (name, 4)))
    assert neighbours == {r: drafts[r] for r in rows}


def test_a_draft_models_context_length_limits_only_its_own_rows(harness: DispatchHarness) -> None:
    harness.draft_model.max_model_len = 20
    rows = {"in": row(18), "at": row(20), "over": row(30), "other": row(30)}
    plan = {"in": ("d", 4), "at": ("d", 4), "over": ("d", 4), "other": ("a", 4)}
    drafts = harness.propose(rows, plan)
    assert [len(drafts[r]) for r in rows] == [2, 0, 0, 4]


def test_a_draft_model_does_not_get_a_prompt_beyond_its_context(
    harness: DispatchHarness,
) -> None:
    harness.draft_model.max_model_len = 20
    rows = {"fits": prompt_row(40, 16, 4), "beyond": prompt_row(40, 16, 5)}
    harness.propose(rows, dict.fromkeys(rows, ("d", 4)))
    (batch,) = harness.echoes["d"].batches
    assert list(batch.request_ids) == ["fits"]


def test_a_proposer_whose_rows_are_all_too_long_is_not_called(harness: DispatchHarness) -> None:
    assert harness.propose({"r": row(CONTEXT)}, {"r": ("a", 4)}) == {"r": []}
    assert not harness.echoes["a"].batches


def test_drafts_are_lists_of_their_own(harness: DispatchHarness) -> None:
    drafts = harness.propose({"r": row(9), "s": row(9)}, {"r": ("a", 2)})
    drafts["s"].append(1)
    assert drafts["r"] == [109, 109]
    assert harness.propose({"r": row(9)}, {}) == {"r": []}


def test_only_heads_get_the_hidden_state_of_each_rows_newest_token(
    harness: DispatchHarness,
) -> None:
    rows = {"r": row(9), "s": row(12, sampled=3), "t": row(9), "u": prompt_row(9, 0, 4)}
    harness.propose(rows, {"r": ("a", 2), "s": ("c", 2), "t": ("c", 1), "u": ("c", 0)})
    assert harness.echoes["a"].batches[0].hidden is None
    assert harness.echoes["c"].batches[0].hidden.tolist() == [[12.0, 1.0], [20.0, 2.0]]


def test_a_plan_for_an_unloaded_proposer_is_ignored(harness: DispatchHarness) -> None:
    drafts = harness.propose({"r": row(9), "s": row(9)}, {"r": ("gone", 2), "s": ("b", 2)})
    assert drafts == {"r": [], "s": [209, 209]}


# -- the report ------------------------------------------------------------------------------


def test_the_report_has_drafts_catch_up_and_time_of_each_proposer(
    harness: DispatchHarness,
) -> None:
    harness.echoes["b"].catchup_tokens = 17
    harness.propose(
        {"r": row(9), "s": row(9), "t": row(9)}, {"r": ("a", 3), "s": ("b", 2), "t": ("a", 1)}
    )
    report = harness.report
    assert report.proposed == {"a": 4, "b": 2}
    assert report.catchup == {"b": 17}
    assert set(report.seconds) == {"a", "b"}
    assert all(0 <= seconds < 5 for seconds in report.seconds.values())


def test_the_report_has_the_times_of_constraints(
    harness: DispatchHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"r": (0.25, 3)}
    monkeypatch.setattr(harness.dispatch.host.constraints, "take_times", lambda: times)
    harness.propose({"r": row(10)}, {"r": ("a", 4)})
    assert harness.report.constraint_times == times


def test_a_report_covers_one_step_only(harness: DispatchHarness) -> None:
    harness.propose({"r": row(9)}, {"r": ("a", 3)})
    harness.propose({"r": row(9)}, {"r": ("b", 3)})
    assert set(harness.report.proposed) == {"b"}


# -- following the batch ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("computed", "fresh"),
    [
        (0, [[7, 8, 9], [4, 5]]),
        (BLOCK, [[8, 9], [5]]),
        (2 * BLOCK, [[9], [5]]),
        (2 * BLOCK + 1, [[], []]),
    ],
    ids=["none", "one block", "two blocks", "and one token"],
)
def test_a_new_request_has_fresh_blocks_after_its_prefix_hit(
    harness: DispatchHarness, computed: int, fresh: list[list[int]]
) -> None:
    harness.dispatch.observe(output(scheduled_new_reqs=[new(([7, 8, 9], [4, 5]), computed)]))
    assert harness.draft_model.fresh == fresh


def test_every_new_block_of_a_running_request_is_fresh(harness: DispatchHarness) -> None:
    rows = cached(("r", ([5], [])), ("s", None), ("t", ([6, 3], [2])))
    harness.dispatch.observe(output(scheduled_cached_reqs=rows))
    assert harness.draft_model.fresh == [[5, 6, 3], [2]]
    assert harness.draft_model.forgotten == []


def test_a_preempted_request_loses_its_drafts_and_comes_again_with_fresh_blocks(
    harness: DispatchHarness,
) -> None:
    harness.dispatch.observe(output(preempted_req_ids={"r"}))
    assert harness.draft_model.forgotten == ["r"]
    assert harness.echoes["a"].forgotten == [], "it continues; only its KV is gone"
    again = new(([1, 2, 3, 4], [6, 7]), 2 * BLOCK)
    running = cached(("s", ([9], [])))
    harness.dispatch.observe(output(scheduled_new_reqs=[again], scheduled_cached_reqs=running))
    assert harness.draft_model.fresh == [[3, 4, 9], [7]]
    assert harness.draft_model.forgotten == ["r"]


def test_copies_are_passed_on_without_fresh_blocks_too(harness: DispatchHarness) -> None:
    harness.dispatch.observe(output(kv_cache_block_copies=[(3, 4)]))
    assert (harness.draft_model.fresh, harness.draft_model.copies) == ([[], []], [(3, 4)])


def test_ended_requests_are_forgotten_by_every_proposer(harness: DispatchHarness) -> None:
    harness.dispatch.observe(output(finished_req_ids={"r"}))
    assert all(echo.forgotten == ["r"] for echo in harness.echoes.values())
    assert harness.draft_model.forgotten == ["r"]


def test_without_draft_models_blocks_are_not_followed(harness: DispatchHarness) -> None:
    harness.dispatch.host.draft_models = {}
    harness.dispatch.observe(output(finished_req_ids={"r"}, scheduled_new_reqs=[None]))
    assert harness.echoes["a"].forgotten == ["r"]


# -- loading ---------------------------------------------------------------------------------


def test_every_configured_proposer_is_created_by_its_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paged = import_module("tests.engine_adapter.vllm_engine.support.paged_world")
    world = paged.World(monkeypatch)
    assert list(world.dispatch.host.proposers) == ["twin", "stranger", "ngram"]
    assert list(world.dispatch.host.draft_models) == ["twin", "stranger"]
    assert world.toy("twin").seed != world.toy("stranger").seed
