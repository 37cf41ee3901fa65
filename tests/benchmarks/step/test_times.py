"""The times of a step: rows of a table, and the part in the models."""

import time
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.sides import Side
from benchmarks.step.times import ModelTime, StepTime, table_rows


def test_differences_are_paired_by_round() -> None:
    one = [StepTime(total, total - 1) for total in (2.0, 9.0, 5.0)]
    more = [StepTime(total + 0.5, total - 1) for total in (2.0, 9.0, 5.0)]
    assert list(table_rows("look", 1, {Side.ONE: one, Side.ALL: more})) == [
        "| `look` | 1 | one | 5.00 |  | 1.00 |  |",
        "| `look` | 1 | all | 5.50 | +0.50 (+0.50 to +0.50) | 1.50 | +0.50 (+0.50 to +0.50) |",
    ]


def test_a_process_that_is_slower_in_all_parts_adds_nothing_outside_the_models() -> None:
    base = [StepTime(4.0, 3.0)] * 3
    rows = table_rows("look", 1, {Side.STOCK: base, Side.ONE: [StepTime(8.0, 6.0)] * 3})
    assert list(rows)[1] == (
        "| `look` | 1 | one | 8.00 | +4.00 (+4.00 to +4.00) | 1.00 | +0.00 (+0.00 to +0.00) |"
    )


class BusyModel:
    """A model whose calls take CPU time."""

    def __init__(self, ms: float) -> None:
        self._ms = ms

    def forward(self) -> str:
        end = time.thread_time() + self._ms / 1e3
        while time.thread_time() < end:
            pass
        return "states"


@pytest.mark.needs_vllm
@pytest.mark.parametrize("side", [Side.STOCK, Side.ONE])
def test_the_time_in_the_target_and_in_draft_models_is_counted(side: Side) -> None:
    from engine_adapter.vllm_engine.worker.dispatch import ProposerDispatch

    target, draft = BusyModel(10), BusyModel(20)
    drafter: Any
    if side == Side.STOCK:
        drafter = type("EagleProposer", (), {"model": draft})()
    else:
        drafter = ProposerDispatch.__new__(ProposerDispatch)
        loaded = SimpleNamespace(_loaded=SimpleNamespace(model=draft))
        drafter.host = SimpleNamespace(draft_models={"eagle3": loaded})
    runner = SimpleNamespace(model=target, drafter=drafter)
    worker = SimpleNamespace(worker=SimpleNamespace(model_runner=runner))
    core = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))
    spent = ModelTime(SimpleNamespace(engine_core=SimpleNamespace(engine_core=core)))
    assert (target.forward(), draft.forward()) == ("states", "states")
    assert spent.take_ms() >= 30
    assert spent.take_ms() == 0
