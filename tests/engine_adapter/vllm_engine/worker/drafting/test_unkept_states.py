"""Heads for which the target's states are not kept: `keep_states` false.

The world is that of `test_paged_head`. It checks that a draft is that of a run without switches;
here a row may have none instead, unless the same head drafted for it in the step before. `third`
keeps its states.
"""

from typing import Any

import pytest

from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.vllm_engine.support.paged_cases import (
    SEEDS,
    kinds_of_worlds,
    prompt,
    world_of_heads,
)

pytestmark = pytest.mark.needs_vllm

TWIN, STRANGER, THIRD = SpecMethod("twin", 4), SpecMethod("stranger", 3), SpecMethod("third", 5)
BLOCK, SPARK, NGRAM = SpecMethod("block", 5), SpecMethod("spark", 5), SpecMethod("ngram", 4)
LEAN = pytest.mark.parametrize("method", [TWIN, STRANGER, BLOCK, SPARK], ids=lambda m: m.proposer)


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    return world_of_heads(monkeypatch, lean=True)


@pytest.mark.parametrize(("how", "pressure"), kinds_of_worlds({"twin": 50}))
@SEEDS
def test_a_draft_is_that_of_a_run_without_switches_or_is_missing(
    make: Any, how: dict[str, Any], pressure: bool, seed: int
) -> None:
    methods = [TWIN, STRANGER, BLOCK, THIRD, NGRAM, PLAIN]
    counts = make(**how, seed=seed).run_random(methods, seed + 400)
    assert counts["drafted"] > 200
    assert counts["hits"] > 100
    assert counts["preempted"] > 5 or not pressure


@LEAN
def test_a_row_that_begins_with_the_head_is_drafted_for_to_its_end(
    make: Any, method: SpecMethod
) -> None:
    world = make(chunk=4)
    world.add("r", prompt(10), method)
    results = [world.step() for _ in range(20)]
    assert all(result.drafts["r"] for result in results[2:])
    assert sum(result.emitted["r"] - 1 for result in results[2:]) > 5
    assert all(not result.report.catchup for result in results)


@LEAN
def test_after_a_switch_only_later_rows_are_drafted_for(make: Any, method: SpecMethod) -> None:
    world = make()
    request = world.add("old", prompt(10), PLAIN)
    world.step()
    request.method = method
    world.add("new", prompt(9, seed=3), method)
    for _ in range(5):
        result = world.step()
        assert result.drafts["old"] == []
        assert len(result.drafts["new"]) == method.num_speculative_tokens
        assert result.report.catchup == {}


@LEAN
def test_a_row_that_was_away_for_a_step_is_drafted_for_again_after_a_preemption(
    make: Any, method: SpecMethod
) -> None:
    world = make()
    request = world.add("r", prompt(10), method)
    assert world.step().drafts["r"]
    request.method = PLAIN
    world.step()
    request.method = method
    assert world.step().drafts["r"] == []
    world.preempt("r")
    world.scheduler._pool._cached.clear()
    world.scheduler._pool._key_of.clear()
    assert world.step().drafts["r"], "the target reads the whole row again"


@LEAN
def test_cached_blocks_count_only_if_the_head_has_read_them(make: Any, method: SpecMethod) -> None:
    world = make()
    world.add("idle", prompt(14), NGRAM)
    world.add("read", prompt(14, seed=5), method)
    world.step()
    world.add("unknown", prompt(14), method)
    world.add("known", prompt(14, seed=5), method)
    result = world.step()
    assert result.hits == {"unknown": 12, "known": 12}
    assert result.drafts["unknown"] == []
    assert result.drafts["known"]


@pytest.mark.parametrize(("method", "drafts"), [(TWIN, False), (STRANGER, False), (BLOCK, True)])
def test_a_row_that_diverges_after_a_block_needs_the_state_of_its_last_slot(
    make: Any, method: SpecMethod, drafts: bool
) -> None:
    world = make()
    world.add("a", [*prompt(8), 1, 2, 3], method)
    world.step()
    world.add("b", [*prompt(8), 4, 5, 6], method)
    for _ in range(5):
        result = world.step()  # checks the drafts and the KV of both
        assert result.drafts["a"]
        assert bool(result.drafts["b"]) == drafts


@LEAN
def test_rows_that_share_blocks_of_one_step_are_drafted_for(make: Any, method: SpecMethod) -> None:
    world = make(shares_at_once=True)
    for name in "abc":
        world.add(name, prompt(14), method)
    result = world.step()
    assert result.hits == {"a": 0, "b": 12, "c": 12}
    assert all(result.drafts.values())


def test_nothing_is_computed_or_reserved_for_an_idle_head(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make()
    combined: list[str] = []

    def count(name: str) -> None:
        loaded = world.toy(name)._loaded
        combine = loaded.combine_hidden_states

        def counted(joined: Any) -> Any:
            combined.append(name)
            return combine(joined)

        monkeypatch.setattr(loaded, "combine_hidden_states", counted)

    for name in ("twin", "stranger", "block", "third"):
        count(name)
    layers = world.toy("twin")._vllm_config.compilation_config.static_forward_context
    assert list(layers) == ["draft:third.target_states.0"]
    request = world.add("r", prompt(10), PLAIN)
    world.step()
    assert combined == ["third"]
    request.method = STRANGER
    world.add("new", prompt(9, seed=1), STRANGER)
    world.step()
    assert combined == ["third", "third", "stranger"]


def test_the_states_of_a_step_are_freed_before_the_next_one(make: Any) -> None:
    world = make()
    world.add("r", prompt(10), TWIN)
    world.step()
    head = world.toy("twin")
    assert head._step_states._states
    _, output = world.scheduler.schedule()
    world.dispatch.observe(output)
    assert not head._step_states._states
