"""The CPU time of a step: order of the turns and profiles, without an engine."""

import os
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks.sides import Side
from benchmarks.step import cost
from benchmarks.step.cost import (
    STEPS,
    WARM_UP,
    EngineSetup,
    StepPlan,
    measure_steps,
)
from benchmarks.step.times import StepTime
from tests.benchmarks.fake_systems import HEADS, NGRAM

STEP_MS = {Side.STOCK: 4.0, Side.STOCK_V2: 4.0, Side.ONE: 4.5, Side.ALL: 5.0}
MODELS_MS = 3.0


class FakePipe:
    """The pipe to an engine with steps of constant CPU time."""

    def __init__(self, side: Side, turns: list[tuple[Side, int, int]]) -> None:
        self._side = side
        self._turns = turns

    def send(self, turn: tuple[int, int]) -> None:
        self._turns.append((self._side, *turn))

    def recv(self) -> list[StepTime]:
        return [StepTime(STEP_MS[self._side], MODELS_MS)] * self._turns[-1][1]


@pytest.fixture
def engines(
    monkeypatch: pytest.MonkeyPatch,
) -> tuple[list[dict[Side, EngineSetup]], list[tuple[Side, int, int]]]:
    """The setups of each comparison, and the turns (side, steps, streams) of all of them."""
    started: list[dict[Side, EngineSetup]] = []
    turns: list[tuple[Side, int, int]] = []

    @contextmanager
    def fake(setups: dict[Side, EngineSetup]) -> Any:
        started.append(setups)
        yield {side: FakePipe(side, turns) for side in setups}

    monkeypatch.setattr(cost, "_engines", fake)
    monkeypatch.setattr(os, "environ", {"OMP_NUM_THREADS": "2"})
    return started, turns


def printed(plan: StepPlan) -> list[str]:
    """The lines of a measurement."""
    lines: list[str] = []
    measure_steps(plan, lines.append)
    return lines


def test_sides_take_turns_after_the_warm_up(engines: Any) -> None:
    plan = StepPlan("t", [NGRAM], ["none"], (Side.STOCK, Side.ONE), streams=8, rounds=2)
    assert printed(plan) == [
        "| `none` | 8 | stock | 4.00 |  | 1.00 |  |",
        "| `none` | 8 | one | 4.50 | +0.50 (+0.50 to +0.50) | 1.50 | +0.50 (+0.50 to +0.50) |",
    ]
    _, turns = engines
    order = [Side.STOCK, Side.ONE]
    assert turns[:2] == [(side, WARM_UP, 8) for side in order]
    assert turns[2:] == [(side, STEPS, 8) for side in (*reversed(order), *order)]


def test_every_second_start_is_in_the_reverse_order(engines: Any) -> None:
    plan = StepPlan("t", [NGRAM], ["none"], (Side.STOCK, Side.ONE), rounds=3, starts=3)
    assert printed(plan)[1].startswith("| `none` | 1 | one | 4.50 | +0.50 (+0.50 to +0.50) |")
    started, turns = engines
    order = [Side.STOCK, Side.ONE]
    assert [list(setups) for setups in started] == [order, order[::-1], order]
    assert sum(steps == WARM_UP for _, steps, _ in turns) == 3 * 2
    assert sum(steps == STEPS for _, steps, _ in turns) == 3 * 3 * 2


def test_each_side_has_its_own_proposers(engines: Any) -> None:
    printed(StepPlan("t", [NGRAM, HEADS], ["look", "heads"], rounds=1))
    look, heads = engines[0]
    assert look == {
        Side.STOCK: EngineSetup("t", NGRAM, None),
        Side.ONE: EngineSetup("t", NGRAM, [NGRAM]),
        Side.ALL: EngineSetup("t", NGRAM, [NGRAM, HEADS]),
    }
    assert list(heads) == [Side.ONE, Side.ALL], "vLLM has no MLP speculator"


def test_stock_vllm_runs_v2_only_without_a_proposer(engines: Any) -> None:
    sides = (Side.STOCK, Side.STOCK_V2)
    printed(StepPlan("t", [NGRAM], ["none", "look"], sides, rounds=1))
    plain, ngram = engines[0]
    assert plain[Side.STOCK_V2] == EngineSetup("t", None, None, runner_v2=True)
    assert list(ngram) == [Side.STOCK]


def test_the_engines_have_one_openmp_thread_unless_set(engines: Any) -> None:
    plan = StepPlan("t", [], ["none"], rounds=1)
    printed(plan)
    assert os.environ["OMP_NUM_THREADS"] == "2"
    del os.environ["OMP_NUM_THREADS"]
    printed(plan)
    assert os.environ["OMP_NUM_THREADS"] == os.environ["NUMBA_NUM_THREADS"] == "1"
    assert os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"


def test_an_unknown_method_is_refused_before_anything_starts(engines: Any) -> None:
    with pytest.raises(ValueError, match="no proposer 'draft'; the proposers are look"):
        printed(StepPlan("t", [NGRAM], ["none", "draft"]))
    assert engines[0] == []


def test_an_engine_that_fails_is_named() -> None:
    class BrokenPipe:
        def send(self, turn: tuple[int, int]) -> None:
            raise BrokenPipeError

    with pytest.raises(RuntimeError, match="the engine of all failed"):
        cost._step(BrokenPipe(), Side.ALL, 1, 1)  # type: ignore[arg-type]
