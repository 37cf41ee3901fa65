"""Heads over paged KV: their drafts are those of a run without switches, in every case.

The world is that of `test_paged_model`, with three heads instead of its draft models. Every step
checks each draft against such a run, and each KV slot that is read against the committed tokens
and the target's hidden states.
"""

from typing import Any

import pytest

from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.vllm_engine.support.paged_cases import (
    SEEDS,
    check_random_run,
    kinds_of_worlds,
    prompt,
    world_of_heads,
)

pytestmark = pytest.mark.needs_vllm

TWIN, STRANGER, THIRD = SpecMethod("twin", 4), SpecMethod("stranger", 3), SpecMethod("third", 5)
NGRAM = SpecMethod("ngram", 4)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    return world_of_heads(monkeypatch)


# -- random runs -----------------------------------------------------------------------------


@pytest.mark.parametrize(("how", "pressure"), kinds_of_worlds({"twin": 50}))
@SEEDS
def test_switches_preemption_chunks_and_prefix_hits_do_not_change_drafts(
    make: Any, how: dict[str, Any], pressure: bool, seed: int
) -> None:
    methods = [TWIN, STRANGER, THIRD, NGRAM, PLAIN]
    check_random_run(make(**how, seed=seed), methods, seed + 200, pressure=pressure)


# -- which positions are run -----------------------------------------------------------------


def test_the_first_pass_runs_all_positions_with_a_known_next_token(make: Any) -> None:
    world = make()
    world.add("r", prompt(10), TWIN)
    result = world.step()
    assert result.fed["twin"]["r"] == list(range(10))
    assert result.report.catchup == {}
    assert result.report.proposed == {"twin": 4}


def test_a_chunked_prompt_is_run_chunk_by_chunk(make: Any) -> None:
    world = make(chunk=4)
    world.add("r", prompt(10), STRANGER)
    steps = [world.step() for _ in range(3)]
    assert [result.fed["stranger"]["r"] for result in steps] == [
        [0, 1, 2, 3],
        [4, 5, 6, 7],
        [8, 9],
    ]
    assert all(not result.report.catchup for result in steps)


def test_a_prompt_of_one_token_gets_drafts(make: Any) -> None:
    world = make()
    world.add("r", [7], TWIN)
    assert world.step().fed["twin"]["r"] == [0]


def test_drafted_positions_are_run_again_with_the_targets_states(make: Any) -> None:
    world = make()
    request = world.add("r", prompt(6), TWIN)
    world.step()
    accepted = 0
    for _ in range(20):
        before = len(request.tokens)
        result = world.step()
        assert result.fed["twin"]["r"] == list(range(before - 1, len(request.tokens) - 1))
        assert result.report.catchup == {}
        accepted += result.emitted["r"] - 1
    assert accepted > 5


@pytest.mark.parametrize("method", [TWIN, STRANGER], ids=["final state", "two layers"])
def test_missed_positions_are_caught_up_once(make: Any, method: SpecMethod) -> None:
    world = make()
    request = world.add("r", prompt(6), method)
    world.step()
    known = len(request.tokens) - 1
    request.method = PLAIN
    for _ in range(5):
        assert world.step().fed[method.proposer] == {}
    request.method = method
    result = world.step()
    assert result.fed[method.proposer]["r"] == list(range(known, len(request.tokens) - 1))
    assert result.report.catchup == {method.proposer: 5}
    assert world.step().report.catchup == {}


def test_cached_blocks_that_were_filled_while_idle_are_caught_up(make: Any) -> None:
    world = make()
    world.add("first", prompt(14), NGRAM, max_tokens=1)
    world.step()
    world.add("second", prompt(14), TWIN)
    result = world.step()
    assert result.hits == {"second": 12}
    assert result.report.catchup == {"twin": 12}
    world.add("third", prompt(14), TWIN)
    assert world.step().fed["twin"]["third"] == [12, 13], "caught up only once"


def test_the_target_outputs_each_layer_of_all_heads_once(make: Any) -> None:
    assert make().dispatch.host.aux_layers == (0, 1, 2, 3, 4)


# -- the last slot of a shared block ---------------------------------------------------------


def diverging(make: Any) -> Any:
    """Two rows that share two blocks and differ from the next token on."""
    world = make()
    stem = prompt(8)
    world.add("a", [*stem, 1, 2, 3], TWIN)
    world.step()
    world.add("b", [*stem, 4, 5, 6], TWIN)
    return world


def test_a_row_that_diverges_after_a_block_runs_its_last_slot_again(make: Any) -> None:
    world = diverging(make)
    world.requests["a"].method = PLAIN
    result = world.step()
    assert result.hits == {"b": 8}
    assert result.fed["twin"]["b"] == [7, 8, 9, 10]
    assert result.report.catchup == {"twin": 1}


def test_rows_that_conflict_over_a_slot_both_get_exact_drafts(make: Any) -> None:
    world = diverging(make)
    world.step()
    for _ in range(10):
        result = world.step()  # checks the drafts and the KV of both
        taken = [fed for fed in result.fed["twin"].values() if fed[0] == 7]
        assert len(taken) == 2, "they rewrite the slot in turn"
    assert all(len(drafts) == 4 for drafts in result.drafts.values())


def test_rows_that_diverge_within_a_block_do_not_wait(make: Any) -> None:
    world = make()
    world.add("a", [*prompt(10), 1, 2], TWIN)
    world.step()
    world.add("b", [*prompt(10), 3, 4], TWIN)
    before = world.toy("twin").passes
    result = world.step()
    assert result.hits == {"b": 8}
    assert world.toy("twin").passes - before == 4, "one pass for the prompts, three to draft"


# -- depth -----------------------------------------------------------------------------------


def test_a_row_gets_no_passes_beyond_its_own_k(make: Any) -> None:
    world = make()
    world.add("deep", prompt(9), SpecMethod("twin", 6))
    world.add("shallow", prompt(9, seed=3), SpecMethod("twin", 2))
    result = world.step()
    assert {name: len(drafts) for name, drafts in result.drafts.items()} == {
        "deep": 6,
        "shallow": 2,
    }
    fed = [request_id for request_id, position, _ in world.toy("twin").fed if position >= 9]
    assert (fed.count("deep"), fed.count("shallow")) == (5, 1)


@pytest.mark.parametrize("length", range(90, 96))
def test_a_row_near_the_context_limit_does_not_affect_its_neighbour(make: Any, length: int) -> None:
    world = make()
    world.add("near", prompt(length, seed=4), TWIN)
    world.add("far", prompt(8), SpecMethod("twin", 6))
    for _ in range(4):
        assert len(world.step().drafts["far"]) == 6


# -- blocks ----------------------------------------------------------------------------------


def test_copied_blocks_stay_valid(make: Any) -> None:
    world = make()
    request = world.add("r", prompt(10), TWIN)
    world.step()
    head, moved, last = world.toy("twin"), world.free.pop(), request.blocks[1]
    head.store[moved * 4 : moved * 4 + 4] = head.store[last * 4 : last * 4 + 4]
    cache = head._states.kv_cache  # vLLM copies the blocks of all layers
    cache[moved] = cache[last]
    head.blocks_changed([[]], [(last, moved)])
    request.blocks[1] = moved
    result = world.step()
    assert len(result.fed["twin"]["r"]) == result.emitted["r"]


# -- the target's states ---------------------------------------------------------------------


def test_heads_that_read_the_same_states_share_them(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.engine_adapter.vllm_engine.support.paged_world import World

    heads: list[dict[str, Any]] = [
        {"name": "one", "method": "eagle", "model": "toy/5"},
        {"name": "two", "method": "eagle", "model": "toy/6"},
        {"name": "three", "method": "eagle3", "model": "toy/7/0,4"},
        {"name": "four", "method": "eagle3", "model": "toy/7/0,4", "num_speculative_tokens": 3},
        {"name": "five", "method": "eagle3", "model": "toy/8/0,4"},
    ]
    world = World(monkeypatch, proposers=heads)
    one, two, three, four, five = world.dispatch.host.heads
    assert one._states is two._states
    assert three._states is four._states
    assert len({id(head._states) for head in (one, three, five)}) == 3
    assert one.kv_bytes > 0
    assert two.kv_bytes == four.kv_bytes == 0
    for head in heads:
        world.add(head["name"], prompt(10), SpecMethod(head["name"], 3))
    for _ in range(5):
        assert all(world.step().drafts.values())
