"""Drafts before the CPU has the tokens of a step: they are those that would be made after it.

The world is that of `test_paged_model` and `test_paged_head`, which checks each draft against a run
without switches, and each KV slot that is read.
"""

from importlib import import_module
from typing import Any

import pytest

from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.support.paged_cases import (
    kinds_of_worlds,
    prompt,
    world_of_heads,
)

pytestmark = pytest.mark.needs_vllm

TWIN, STRANGER = SpecMethod("twin", 4), SpecMethod("stranger", 3)
WORLDS = ("drafts", "heads", "lean")
"""Draft models; heads; heads for some of which the target's states are not kept."""


@pytest.fixture(params=proved_beyond(["drafts", "heads"], WORLDS))
def make(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param != "drafts":
        return world_of_heads(monkeypatch, lean=request.param == "lean")
    paged = import_module("tests.engine_adapter.vllm_engine.support.paged_world")
    return lambda **how: paged.World(monkeypatch, **how)


@pytest.mark.parametrize(("how", "pressure"), kinds_of_worlds({"twin": 50}))
def test_switches_preemption_chunks_and_prefix_hits_do_not_change_early_drafts(
    make: Any, how: dict[str, Any], pressure: bool
) -> None:
    world = make(**how, early=True, seed=5)
    counts = world.run_random([TWIN, TWIN, STRANGER, PLAIN], 305)
    assert counts["early"] > 50
    assert counts["accepted"] > 20
    assert counts["hits"] > 100
    assert counts["preempted"] > 5 or not pressure


def test_a_row_in_steady_state_drafts_early_in_every_step(make: Any) -> None:
    world = make(early=True)
    request = world.add("r", prompt(10), TWIN)
    accepted = 0
    for _ in range(15):
        result = world.step()
        assert world.num_early == 1
        accepted += result.emitted["r"] - 1
    assert accepted > 5
    request.method = PLAIN
    world.step()
    assert world.num_early == 0


def test_rows_that_end_between_the_two_calls_leave_nothing(make: Any) -> None:
    world = make(early=True)
    world.add("r", prompt(10), TWIN)
    world.step()
    toy = world.toy("twin")
    toy.forget(["r"])
    assert len(toy._early) == 0
