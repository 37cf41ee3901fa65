"""Prompts and kinds of worlds for the tests of draft models and heads; imports no vLLM."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import numpy as np
import pytest

from engine_adapter.seam.types import SpecMethod
from tests.cases import proved_beyond

SEEDS = pytest.mark.parametrize("seed", proved_beyond([0], range(3)))
"""Random runs of 220 steps, one of them in `make test`.

A fault that shows in one step of a hundred, in one kind of world only, is missed by one run with a
probability of 11 %, by three with 0.1 %. Most faults show in several kinds of worlds.
"""


QUICK = ("small budget", "tight kernel", "tight groups", "short")
"""Kinds of worlds in `make test`. Each property of a world is a property of one of these."""


def prompt(length: int, seed: int = 0) -> list[int]:
    """Random tokens of the toy vocabulary."""
    tokens: list[int] = np.random.default_rng(seed).integers(0, 29, length).tolist()
    return tokens


def kinds_of_worlds(draft_contexts: Mapping[str, int]) -> list[Any]:
    """Arguments of a world, and whether its blocks are so few that it preempts.

    Args:
        draft_contexts: draft model -> its context, for the world in which it is short.
    """
    worlds: list[tuple[str, dict[str, Any], bool]] = [
        ("roomy", {}, False),
        ("chunked", {"chunk": 7}, False),
        ("small budget", {"budget": 9, "chunk": 16}, False),
        (
            "kernel blocks",
            {"block_size": 8, "kernel_size": 4, "chunk": 11, "budget": 16},
            False,
        ),
        ("tight", {"num_blocks": 36, "chunk": 9, "budget": 12}, True),
        (
            "tight kernel",
            {"num_blocks": 30, "block_size": 8, "kernel_size": 2, "chunk": 20},
            True,
        ),
        ("two groups", {"num_blocks": 400, "other_groups": (4,)}, False),
        (
            "tight groups",
            {"num_blocks": 90, "other_groups": (8, 2), "kernel_size": 2, "chunk": 9, "budget": 12},
            True,
        ),
        ("short", {"num_blocks": 40, "draft_contexts": draft_contexts}, True),
    ]
    return [
        pytest.param(how, pressure, id=kind, marks=[] if kind in QUICK else [pytest.mark.prove])
        for kind, how, pressure in worlds
    ]


def world_of_heads(monkeypatch: pytest.MonkeyPatch, *, lean: bool = False) -> Any:
    """What creates a world with heads; importing it imports vLLM.

    Args:
        lean: for some heads, the target's states are not kept.
    """
    paged = import_module("tests.engine_adapter.vllm_engine.support.paged_world")
    heads = paged.LEAN_HEADS if lean else paged.HEADS
    return lambda **how: paged.World(monkeypatch, proposers=heads, **how)


def check_random_run(
    world: Any, methods: Sequence[SpecMethod], seed: int, *, pressure: bool
) -> None:
    """Runs random requests; the world checks each step, and this that all kinds happened."""
    counts = world.run_random(methods, seed)
    # A run in which none of this happened would prove nothing.
    assert counts["drafted"] > 300
    assert counts["accepted"] > 50
    assert counts["caught up"] > 300
    assert counts["hits"] > 100
    assert counts["preempted"] > 5 or not pressure
