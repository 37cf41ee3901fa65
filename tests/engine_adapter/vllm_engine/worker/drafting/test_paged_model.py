"""A draft model over paged KV: its drafts are those of a run without switches, in every case.

Every step of `paged_world` checks each draft against such a run, each KV slot that is read against
the committed tokens, the number of tokens run in the steady state, and the reported catch-up.
"""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.vllm_engine.support.paged_cases import (
    SEEDS,
    check_random_run,
    kinds_of_worlds,
    prompt,
)

pytestmark = pytest.mark.needs_vllm

TWIN, STRANGER = SpecMethod("twin", 4), SpecMethod("stranger", 3)
NGRAM = SpecMethod("ngram", 4)


@pytest.fixture
def paged() -> Any:
    """The simulation; importing it imports vLLM."""
    return import_module("tests.engine_adapter.vllm_engine.support.paged_world")


@pytest.fixture
def make(paged: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Creates a world."""
    return lambda **how: paged.World(monkeypatch, **how)


# -- random runs -----------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "pressure"), kinds_of_worlds({"twin": 50, "stranger": 96}))
@SEEDS
def test_switches_preemption_chunks_and_prefix_hits_do_not_change_drafts(
    make: Any, how: dict[str, Any], pressure: bool, seed: int
) -> None:
    methods = [TWIN, STRANGER, NGRAM, PLAIN]
    check_random_run(make(**how, seed=seed), methods, seed + 100, pressure=pressure)


def test_outputs_are_the_targets_with_every_proposer(make: Any, paged: Any) -> None:
    world = make()
    world.add("r", prompt(11), TWIN)
    switches = [TWIN, NGRAM, STRANGER, PLAIN, TWIN, STRANGER]
    for method in switches * 3:
        if "r" in world.requests:
            request = world.requests["r"]
            request.method = method
            world.step()
    for length in range(11, len(request.tokens)):
        assert request.tokens[length] == paged.target_next(request.tokens[:length])


# -- which positions are run -----------------------------------------------------------------


def test_the_first_pass_runs_the_prompt_and_is_not_catch_up(make: Any) -> None:
    world = make()
    world.add("r", prompt(10), TWIN)
    result = world.step()
    assert result.fed["twin"]["r"] == list(range(11))
    assert result.report.catchup == {}
    assert result.report.proposed == {"twin": 4}


def test_a_chunked_prompt_is_run_chunk_by_chunk(make: Any) -> None:
    world = make(chunk=4)
    world.add("r", prompt(10), TWIN)
    steps = [world.step() for _ in range(3)]
    assert [result.fed["twin"]["r"] for result in steps] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9, 10],
    ]
    assert [result.drafts["r"] != [] for result in steps] == [False, False, True]
    assert all(not result.report.catchup for result in steps)


def test_a_row_without_lag_runs_the_bonus_token_and_at_most_one_draft(make: Any) -> None:
    world = make()
    request = world.add("r", prompt(6), TWIN)
    world.step()
    seen = set()
    for _ in range(12):
        drafted = len(request.pending)
        result = world.step()
        all_accepted = result.emitted["r"] == drafted + 1
        # The KV of every draft but the last was written while drafting.
        assert len(result.fed["twin"]["r"]) == (2 if all_accepted else 1)
        assert result.report.catchup == {}
        seen.add(all_accepted)
    assert seen == {True, False}


def test_missed_positions_are_caught_up_once(make: Any) -> None:
    world = make()
    request = world.add("r", prompt(6), STRANGER)
    world.step()
    known = len(request.tokens)
    request.method = PLAIN
    for _ in range(5):
        assert world.step().fed["stranger"] == {}
    request.method = STRANGER
    result = world.step()
    missed = result.fed["stranger"]["r"]
    assert missed[-1] == len(request.tokens) - 1
    assert missed[0] in (known, known + 1)
    # All that the target had computed before this step: all but the two newest tokens.
    assert result.report.catchup == {"stranger": len(request.tokens) - 2 - missed[0]}
    assert world.step().report.catchup == {}


def test_a_proposer_that_never_ran_runs_the_whole_row(make: Any) -> None:
    world = make()
    request = world.add("r", prompt(9), PLAIN)
    for _ in range(4):
        world.step()
    request.method = TWIN
    result = world.step()
    assert result.fed["twin"]["r"] == list(range(len(request.tokens)))
    assert result.report.catchup == {"twin": len(request.tokens) - 2}


def test_blocks_of_the_prefix_cache_are_not_run_again(make: Any) -> None:
    world = make()
    world.add("first", prompt(14), TWIN)
    world.step()
    world.add("second", prompt(14), TWIN)
    result = world.step()
    assert result.hits == {"second": 12}
    assert result.fed["twin"]["second"] == [12, 13, 14]
    assert result.report.catchup == {}


def test_cached_blocks_that_were_filled_while_idle_are_caught_up(make: Any) -> None:
    world = make()
    world.add("first", prompt(14), NGRAM, max_tokens=1)
    world.step()
    world.add("second", prompt(14), TWIN)
    result = world.step()
    assert result.hits == {"second": 12}
    assert result.report.catchup == {"twin": 12}
    world.add("third", prompt(14), TWIN)
    assert world.step().fed["twin"]["third"] == [12, 13, 14], "caught up only once"


def test_a_preempted_row_does_not_reuse_the_kv_of_its_drafts(make: Any) -> None:
    """It resumes with its cached blocks, which end where drafting began. After them it has another
    block, and the KV of its drafts is in a block that another row owns.
    """
    world = make()
    request = world.add("r", prompt(7), TWIN)
    drafts = world.step().drafts["r"]
    assert len(request.tokens) == 8, "the drafts begin with a new block"
    request.method = PLAIN
    while len(request.tokens) < 10:
        world.step()
    assert request.tokens[8] == drafts[0], "a draft was accepted, so its KV might be reused"
    assert len(request.tokens) <= 12
    reused = request.blocks[2]
    world.preempt("r")
    world.waiting.remove("r")
    world.free.remove(reused)
    world.free.insert(0, reused)
    world.add("other", prompt(20, seed=5), TWIN)
    world.step()
    assert world.toy("twin").store[reused * 4, 0] == prompt(20, seed=5)[0]
    request.method = TWIN
    world.waiting.append("r")
    result = world.step()
    assert result.hits["r"] == 8
    assert result.fed["twin"]["r"] == list(range(8, len(request.tokens)))


def test_a_reused_request_id_does_not_inherit_drafts(make: Any) -> None:
    world = make()
    world.add("r", prompt(7), TWIN)
    world.step()
    world.finish("r")
    world.add("r", prompt(7, seed=3), TWIN)
    assert world.step().fed["twin"]["r"] == list(range(8))


def test_two_draft_models_do_not_share_kv(make: Any) -> None:
    world = make()
    world.add("a", prompt(8), TWIN)
    world.add("b", prompt(8), STRANGER)
    result = world.step()
    assert set(result.fed["twin"]) == {"a"}
    assert set(result.fed["stranger"]) == {"b"}
    assert result.drafts["a"] != result.drafts["b"][:4]


def test_a_small_budget_takes_more_passes_for_the_same_drafts(make: Any) -> None:
    results = []
    for budget in (1000, 5):
        world = make(budget=budget)
        for i in range(4):
            world.add(f"r{i}", prompt(13, seed=i), TWIN)
        result = world.step()
        results.append((result.drafts, world.toy("twin").passes))
    assert results[0][0] == results[1][0]
    # 4 rows of 14 tokens: one pass, or twelve of at most 5; then 3 drafting passes.
    assert [passes for _, passes in results] == [1 + 3, 12 + 3]


# -- context limits --------------------------------------------------------------------------


@pytest.mark.parametrize("length", range(88, 96))
def test_a_row_near_the_context_limit_does_not_affect_its_neighbour(make: Any, length: int) -> None:
    world = make()
    world.add("near", prompt(length, seed=4), TWIN)
    world.add("far", prompt(8), SpecMethod("twin", 6))
    for _ in range(6):
        result = world.step()  # checks the drafts of both
        assert len(result.drafts["far"]) == 6


def test_beyond_the_draft_models_context_a_row_gets_no_drafts(make: Any) -> None:
    world = make(draft_contexts={"twin": 20})
    request = world.add("r", prompt(16), TWIN)
    lengths = []
    while len(request.tokens) < 30:
        result = world.step()
        lengths.append((len(request.tokens), len(result.drafts["r"])))
    assert all(drafts == min(4, max(20 - length, 0)) for length, drafts in lengths)
    assert {drafts for _, drafts in lengths} > {0}


@pytest.mark.parametrize("length", range(14, 20))
def test_a_row_near_the_draft_models_limit_does_not_affect_its_neighbour(
    make: Any, length: int
) -> None:
    world = make(draft_contexts={"twin": 20})
    world.add("near", prompt(length, seed=4), TWIN)
    world.add("far", prompt(8), SpecMethod("twin", 6))
    assert len(world.step().drafts["far"]) == 6


def test_copied_blocks_stay_valid(make: Any) -> None:
    world = make()
    request = world.add("r", prompt(10), TWIN)
    world.step()
    model, moved = world.toy("twin"), world.free.pop()
    last = request.blocks[2]
    model.store[moved * 4 : moved * 4 + 4] = model.store[last * 4 : last * 4 + 4]
    model.blocks_changed([[]], [(last, moved)])
    request.blocks[2] = moved
    assert len(world.step().fed["twin"]["r"]) <= 2


# -- memory ----------------------------------------------------------------------------------


def test_memory_counts_weights_and_kv_of_its_own_layers(make: Any) -> None:
    """Its layer `c` reads the KV of `a`."""
    world = make()
    model = world.toy("twin")
    model._loaded.weights_bytes = 132
    group = SimpleNamespace(
        kv_cache_spec=SimpleNamespace(page_size_bytes=1000), layer_names=["a", "b", "c"]
    )
    model._loaded.draft_attn_groups = (group, group)
    model._loaded.layers_with_kv = {"a", "b"}
    kv_cache = SimpleNamespace(
        num_blocks=7, kv_cache_groups=[SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=4))]
    )
    model.bind_kv_cache(kv_cache, [4])
    assert (model.weights_bytes, model.kv_bytes) == (132, 7 * 2 * 2 * 1000)
