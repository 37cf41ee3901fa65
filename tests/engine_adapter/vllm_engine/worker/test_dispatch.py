"""Rows to proposers and back: who is asked for what, and what is noted of it."""

from importlib import import_module

import numpy as np
import pytest

from tests.engine_adapter.vllm_engine.support.dispatch_harness import (
    BLOCK,
    CONTEXT,
    Bench,
    cached,
    new,
    output,
    prompt_row,
    row,
)

pytestmark = pytest.mark.needs_vllm


# -- drafting --------------------------------------------------------------------------------


def test_each_of_five_rows_is_drafted_for_by_its_own_choice(bench: Bench) -> None:
    rows = {name: row(10 + i) for i, name in enumerate(("r0", "r1", "r2", "r3", "r4"))}
    plan = {"r3": ("c", 2), "r0": ("a", 3), "r4": ("a", 1), "r1": ("b", 4)}
    assert bench.propose(rows, plan) == {
        "r0": [110] * 3,
        "r1": [211] * 4,
        "r2": [],
        "r3": [313] * 2,
        "r4": [114],
    }


def test_each_proposer_is_asked_once_with_its_own_rows(bench: Bench) -> None:
    rows = {f"r{i}": row(10 + i, prompt=3 + i) for i in range(4)}
    bench.propose(rows, {"r0": ("a", 3), "r1": ("b", 2), "r2": ("a", 1), "r3": ("a", 2)})
    (batch,) = bench.echoes["a"].batches
    assert list(batch.request_ids) == ["r0", "r2", "r3"]
    assert batch.rows.tolist() == [0, 2, 3]
    assert batch.k.tolist() == [3, 1, 2]
    assert batch.num_tokens.tolist() == [10, 12, 13]
    assert batch.num_prompt_tokens.tolist() == [3, 5, 6]
    assert batch.num_computed.tolist() == [8, 10, 11]
    assert batch.context(1).tolist() == list(range(12))
    assert len(bench.echoes["b"].batches) == 1
    assert not bench.echoes["c"].batches


def test_what_the_proposer_reads_has_the_promised_types(bench: Bench) -> None:
    bench.propose({"r": row(9)}, {"r": ("a", 3)})
    (batch,) = bench.echoes["a"].batches
    for name in ("num_tokens", "num_prompt_tokens", "num_computed", "k"):
        assert getattr(batch, name).dtype == np.int64
    assert batch.token_ids.dtype == np.int32
    assert np.issubdtype(batch.rows.dtype, np.integer)


def test_the_computed_tokens_are_those_before_the_step(bench: Bench) -> None:
    # 4 drafts were verified of which 2 were kept: 3 tokens emitted, 5 read.
    bench.propose({"r": row(20, sampled=3, scheduled=5)}, {"r": ("a", 2)})
    (batch,) = bench.echoes["a"].batches
    assert (batch.num_tokens.tolist(), batch.num_computed.tolist()) == ([20], [16])


def test_a_row_in_mid_prompt_is_only_read_and_only_by_those_with_kv(bench: Bench) -> None:
    rows = {name: prompt_row(30, computed=16, scheduled=8) for name in ("kv", "kv0", "plain")}
    drafts = bench.propose(rows, {"kv": ("d", 4), "kv0": ("d", 0), "plain": ("a", 4)})
    assert drafts == {"kv": [], "kv0": [], "plain": []}
    (batch,) = bench.echoes["d"].batches
    assert batch.k.tolist() == [0, 0]
    assert batch.num_tokens.tolist() == [24, 24], "what was read so far, not the whole prompt"
    assert not bench.echoes["a"].batches


def test_a_row_that_emitted_but_is_only_to_be_read_ends_at_its_committed_tokens(
    bench: Bench,
) -> None:
    """A policy may pause drafting with k = 0: the rejected drafts were read, not committed."""
    bench.propose({"r": row(20, sampled=1, scheduled=5)}, {"r": ("d", 0)})
    (batch,) = bench.echoes["d"].batches
    assert (batch.k.tolist(), batch.num_tokens.tolist()) == ([0], [20])


def test_a_proposer_without_kv_is_not_asked_for_nothing(bench: Bench) -> None:
    assert bench.propose({"r": row(9)}, {"r": ("a", 0)}) == {"r": []}
    assert not bench.echoes["a"].batches


@pytest.mark.parametrize("name", ["a", "d"])
@pytest.mark.parametrize(
    ("length", "k"), [(CONTEXT - 5, 4), (CONTEXT - 3, 3), (CONTEXT - 1, 1), (CONTEXT, 0)]
)
def test_near_the_context_limit_k_shrinks_for_that_row_alone(
    bench: Bench, name: str, length: int, k: int
) -> None:
    rows = {"before": row(10), "near": row(length), "after": row(11)}
    drafts = bench.propose(rows, dict.fromkeys(rows, (name, 4)))
    assert [len(drafts[r]) for r in rows] == [4, k, 4]
    alone = Bench(import_module("engine_adapter.vllm_engine.worker.dispatch"))
    del rows["near"]
    neighbours = alone.propose(rows, dict.fromkeys(rows, (name, 4)))
    assert neighbours == {r: drafts[r] for r in rows}


def test_a_draft_models_own_context_bounds_only_its_rows(bench: Bench) -> None:
    bench.kept.max_model_len = 20
    rows = {"in": row(18), "at": row(20), "over": row(30), "other": row(30)}
    plan = {"in": ("d", 4), "at": ("d", 4), "over": ("d", 4), "other": ("a", 4)}
    drafts = bench.propose(rows, plan)
    assert [len(drafts[r]) for r in rows] == [2, 0, 0, 4]


def test_a_prompt_longer_than_the_draft_models_context_is_not_read_beyond_it(bench: Bench) -> None:
    bench.kept.max_model_len = 20
    rows = {"fits": prompt_row(40, 16, 4), "beyond": prompt_row(40, 16, 5)}
    bench.propose(rows, dict.fromkeys(rows, ("d", 4)))
    (batch,) = bench.echoes["d"].batches
    assert list(batch.request_ids) == ["fits"]


def test_a_proposer_whose_rows_are_all_too_long_is_not_called(bench: Bench) -> None:
    assert bench.propose({"r": row(CONTEXT)}, {"r": ("a", 4)}) == {"r": []}
    assert not bench.echoes["a"].batches


def test_drafts_are_lists_of_their_own(bench: Bench) -> None:
    drafts = bench.propose({"r": row(9), "s": row(9)}, {"r": ("a", 2)})
    drafts["s"].append(1)
    assert drafts["r"] == [109, 109]
    assert bench.propose({"r": row(9)}, {}) == {"r": []}


def test_only_heads_are_given_the_hidden_state_of_each_rows_newest_token(bench: Bench) -> None:
    rows = {"r": row(9), "s": row(12, sampled=3), "t": row(9), "u": prompt_row(9, 0, 4)}
    bench.propose(rows, {"r": ("a", 2), "s": ("c", 2), "t": ("c", 1), "u": ("c", 0)})
    assert bench.echoes["a"].batches[0].hidden is None
    assert bench.echoes["c"].batches[0].hidden.tolist() == [[12.0, 1.0], [20.0, 2.0]]


def test_a_plan_for_who_is_not_there_is_a_plan_for_nobody(bench: Bench) -> None:
    drafts = bench.propose({"r": row(9), "s": row(9)}, {"r": ("gone", 2), "s": ("b", 2)})
    assert drafts == {"r": [], "s": [209, 209]}


# -- the report ------------------------------------------------------------------------------


def test_the_report_says_who_drafted_how_much_and_how_long_it_took(bench: Bench) -> None:
    bench.echoes["b"].catchup_tokens = 17
    bench.propose(
        {"r": row(9), "s": row(9), "t": row(9)}, {"r": ("a", 3), "s": ("b", 2), "t": ("a", 1)}
    )
    report = bench.dispatch.take_report()
    assert report.drafted == {"a": 4, "b": 2}
    assert report.catchup == {"b": 17}
    assert set(report.seconds) == {"a", "b"}
    assert all(0 <= seconds < 5 for seconds in report.seconds.values())


def test_the_report_is_taken_once(bench: Bench) -> None:
    assert bench.dispatch.take_report() is None
    bench.propose({"r": row(9)}, {"r": ("a", 3)})
    assert bench.dispatch.take_report() is not None
    assert bench.dispatch.take_report() is None


def test_a_step_does_not_report_what_the_one_before_did(bench: Bench) -> None:
    bench.propose({"r": row(9)}, {"r": ("a", 3)})
    bench.propose({"r": row(9)}, {"r": ("b", 3)})
    assert set(bench.dispatch.take_report().drafted) == {"b"}


# -- following the batch ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("computed", "fresh"), [(0, [7, 8, 9]), (BLOCK, [8, 9]), (2 * BLOCK, [9]), (2 * BLOCK + 1, [])]
)
def test_a_new_request_brings_fresh_blocks_behind_its_prefix_hit(
    bench: Bench, computed: int, fresh: list[int]
) -> None:
    bench.dispatch.observe(output(scheduled_new_reqs=[new([7, 8, 9], computed)]))
    assert bench.kept.fresh == fresh


def test_a_running_request_brings_every_new_block_as_fresh(bench: Bench) -> None:
    rows = cached(("r", [5], 32), ("s", None, 8), ("t", [6, 3], 16))
    bench.dispatch.observe(output(scheduled_cached_reqs=rows))
    assert bench.kept.fresh == [5, 6, 3]
    assert bench.kept.forgotten == []


def test_a_resumed_request_brings_all_its_blocks_and_loses_its_drafts(bench: Bench) -> None:
    rows = cached(("r", [1, 2, 3, 4], 2 * BLOCK), ("s", [9], 8), resumed={"r"})
    bench.dispatch.observe(output(scheduled_cached_reqs=rows))
    assert bench.kept.fresh == [3, 4, 9]
    assert bench.kept.forgotten == ["r"]
    assert bench.echoes["a"].forgotten == [], "it goes on; only its KV is gone"


def test_copies_are_passed_on_even_without_fresh_blocks(bench: Bench) -> None:
    bench.dispatch.observe(output(kv_cache_block_copies=[(3, 4)]))
    assert (bench.kept.fresh, bench.kept.copies) == ([], [(3, 4)])


def test_ended_requests_are_forgotten_by_every_proposer(bench: Bench) -> None:
    bench.dispatch.observe(output(finished_req_ids={"r"}))
    assert all(echo.forgotten == ["r"] for echo in bench.echoes.values())
    assert bench.kept.forgotten == ["r"]


def test_without_draft_models_blocks_are_nobodys_business(bench: Bench) -> None:
    bench.dispatch._draft_models = {}
    bench.dispatch.observe(output(finished_req_ids={"r"}, scheduled_new_reqs=[None]))
    assert bench.echoes["a"].forgotten == ["r"]


# -- loading ---------------------------------------------------------------------------------


def test_every_configured_proposer_is_created_by_its_method(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    paged = import_module("tests.engine_adapter.vllm_engine.support.paged_world")
    world = paged.World(monkeypatch)
    assert list(world.dispatch._proposers) == ["twin", "stranger", "ngram"]
    assert list(world.dispatch.draft_models) == ["twin", "stranger"]
    assert world.toy("twin").seed != world.toy("stranger").seed
