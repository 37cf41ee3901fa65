"""DFlash and DSpark heads over paged KV: they draft as in a run without switches, in every case.

The world is that of `test_paged_head`. Its head `block` reads six masks, the draft capacity;
`spark` reads five, and its drafts depend on the drafts before them.
"""

from importlib import import_module
from itertools import pairwise
from typing import Any

import numpy as np
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

BLOCK, TWIN, NGRAM = SpecMethod("block", 5), SpecMethod("twin", 4), SpecMethod("ngram", 4)
HEADS = pytest.mark.parametrize("name", ["block", "spark"])


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    return world_of_heads(monkeypatch)


@pytest.mark.parametrize(("how", "pressure"), kinds_of_worlds({"block": 50, "spark": 50}))
@SEEDS
def test_switches_preemption_chunks_and_prefix_hits_do_not_change_drafts(
    make: Any, how: dict[str, Any], pressure: bool, seed: int
) -> None:
    methods = [BLOCK, SpecMethod("spark", 6), BLOCK, TWIN, NGRAM, PLAIN]
    check_random_run(make(**how, seed=seed), methods, seed + 300, pressure=pressure)


@HEADS
def test_one_pass_drafts_for_all_rows(make: Any, name: str) -> None:
    world = make()
    for i in range(3):
        world.add(f"r{i}", prompt(10 + i, i), SpecMethod(name, 2 + i))
    before = world.toy(name).passes
    result = world.step()
    assert world.toy(name).passes == before + 1
    assert {name: len(drafts) for name, drafts in result.drafts.items()} == {
        "r0": 2,
        "r1": 3,
        "r2": 4,
    }


def test_rows_that_do_not_fit_into_one_pass_draft_in_turn(make: Any) -> None:
    world = make(budget=15, chunk=8)
    for i in range(3):
        world.add(f"r{i}", prompt(4, i), BLOCK)
    before = world.toy("block").passes
    result = world.step()
    assert all(len(drafts) == 5 for drafts in result.drafts.values())
    assert world.toy("block").passes == before + 2


def test_a_row_in_the_middle_of_its_prompt_is_only_read(make: Any) -> None:
    world = make(chunk=4)
    world.add("r", prompt(10), BLOCK)
    steps = [world.step() for _ in range(3)]
    assert [result.fed["block"]["r"] for result in steps] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [len(result.drafts["r"]) for result in steps] == [0, 0, 5]


def test_rows_that_diverge_after_a_shared_block_share_its_kv(make: Any) -> None:
    world = make()
    stem = prompt(8)
    world.add("a", [*stem, 1, 2, 3], BLOCK)
    world.step()
    world.add("b", [*stem, 4, 5, 6], BLOCK)
    result = world.step()
    assert result.hits == {"b": 8}
    assert result.fed["block"]["b"] == [8, 9, 10]


@HEADS
def test_near_the_end_of_the_context_a_block_has_fewer_masks(make: Any, name: str) -> None:
    world = make(max_model_len=24)
    request = world.add("r", prompt(20), SpecMethod(name, 5))
    drafted = {}
    while "r" in world.requests and len(request.tokens) < 24:
        length = len(request.tokens)
        drafted[length] = len(world.step().drafts["r"])
    assert drafted[20] < 5


@HEADS
def test_sampled_drafts_have_their_distributions(make: Any, name: str) -> None:
    world = make()
    head = world.toy(name)
    draws: list[tuple[list[int], int]] = []

    class Least:
        """Draws the least likely token."""

        samples = True

        def draw(self, logits: Any, rows: Any, depth: int) -> Any:
            draws.append((list(rows), depth))
            return logits.argmin(-1), logits.softmax(-1).float()

        def select(self, index: Any) -> "Least":
            return self

    propose = head.propose

    def sampling(batch: Any) -> Any:
        drafts = propose(type(batch)(**{**_fields(batch), "sampling": Least()}))
        for tokens, q in zip(drafts.tokens, drafts.probabilities, strict=True):
            assert q.shape == (len(tokens), 29)
        world.seen = drafts
        return propose(batch)

    head.propose = sampling
    world.add("a", prompt(9), SpecMethod(name, 3))
    world.add("b", prompt(7, 1), SpecMethod(name, 1))
    world.step()
    assert sorted(map(len, world.seen.tokens)) == [1, 3]
    assert [depth for _, depth in draws] == [0, 1, 2]
    assert [len(rows) for rows, _ in draws] == [2, 1, 1]


def _fields(batch: Any) -> dict[str, Any]:
    return {name: getattr(batch, name) for name in batch.__slots__}


def test_a_draft_of_a_sequential_head_depends_on_the_one_before(make: Any) -> None:
    """The bias after a token decides its successor, even against the block's own token there."""
    after = import_module("tests.engine_adapter.vllm_engine.support.toy_models").after
    world, followed = make(), 0
    request = world.add("r", prompt(9), SpecMethod("spark", 6))
    for _ in range(12):
        drafts = world.step().drafts["r"]
        newest = request.tokens[-1]
        for before, token in pairwise([newest, *drafts]):
            if (following := after(before)) is not None:
                assert token == following
                followed += 1
    assert followed > 5


@HEADS
def test_the_kv_of_a_block_is_never_taken_for_that_of_a_position(make: Any, name: str) -> None:
    world = make()
    request = world.add("r", prompt(6), SpecMethod(name, 5))
    world.step()
    for _ in range(15):
        before = len(request.tokens)
        result = world.step()
        assert result.fed[name]["r"] == list(np.arange(before - 1, len(request.tokens) - 1))
        assert result.report.catchup == {}
