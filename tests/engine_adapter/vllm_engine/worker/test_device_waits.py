"""How often a step waits for the device, and what it copies: at most what the budget allows.

The steps run on a pretend device (`support.pretend_device`). A wait is what keeps the CPU from
preparing the next work while the device computes. `pytest -s` prints each with its line. vLLM's own
part of the step is printed too; it waits for nothing.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.seam.types import NONE
from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.support.device_cases import (
    DRAWING,
    GATED,
    GREEDY,
    HEADS,
    LIMITED,
    LOOKUPS,
    PROPOSERS,
    SAMPLED,
    SEEDED,
    UNKEPT,
    budget,
)
from tests.engine_adapter.vllm_engine.support.pretend_device import (
    VALUE,
    PretendDevice,
    pretend_device,
)

pytestmark = pytest.mark.needs_vllm

CASES = [
    *((method, GREEDY, False) for method in (NONE, *PROPOSERS)),
    *((method, asks, False) for method in LOOKUPS for asks in (SAMPLED, SEEDED, LIMITED)),
    *((method, asks, False) for method in DRAWING for asks in (SAMPLED, SEEDED, LIMITED, GATED)),
    *((method, UNKEPT, False) for method in HEADS),
    *((method, GREEDY, True) for method in (NONE, *PROPOSERS)),
    *((method, SAMPLED, True) for method in (NONE, "ngram", *DRAWING)),
]
"""Method, what its rows ask for, and whether the drafts are late: see `DeviceSteps`."""
QUICK = [
    case for case in CASES if not case[2] or case[0] in (NONE, "ngram", "draft_model", "eagle3")
]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendDevice]:
    from tests.engine_adapter.vllm_engine.support.device_steps import models_on_the_device

    with pretend_device(monkeypatch) as made, models_on_the_device(monkeypatch, made):
        yield made


def started(
    device: PretendDevice, method: str, asks: str, folder: Path, *, late: bool = False
) -> Any:
    """The steps of a proposer after three of them, with an empty log."""
    from tests.engine_adapter.vllm_engine.support.device_steps import DeviceSteps

    steps = DeviceSteps(device, method, asks, folder, late=late)
    for _ in range(3):
        steps.step()
    assert any(steps.drafts) == (method != NONE), "nothing is drafted, so nothing is verified"
    steps.log.events.clear()
    return steps


@pytest.mark.parametrize(("method", "asks", "late"), proved_beyond(QUICK, CASES))
def test_a_step_waits_as_often_as_its_budget_allows(
    device: PretendDevice, method: str, asks: str, late: bool, tmp_path: Path
) -> None:
    steps = started(device, method, asks, tmp_path, late=late)
    steps.step()
    assert not steps.faults
    assert any(steps.drafts) == (method != NONE)
    when = "late" if late else ""
    print(f"\n{method} {asks} {when}: {steps.log.counts}\n{steps.log.table()}")
    assert steps.log.counts == budget(method, asks, late=late), "\n" + steps.log.table()
    assert steps.log.waits_of_vllm == []


@pytest.mark.parametrize(("method", "name"), [("draft_model", "logits"), ("medusa", "_logits")])
def test_a_model_that_fails_to_draw_is_reported_without_a_wait(
    device: PretendDevice, method: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = started(device, method, SAMPLED, tmp_path)
    proposer = steps.drafter.host.proposers["it"]
    logits = getattr(proposer, name)
    monkeypatch.setattr(proposer, name, lambda states: logits(states) * float("nan"))
    steps.step()
    assert steps.log.counts == budget(method, SAMPLED)
    assert "sum to 1" in steps.faults["it"]
    steps.step()  # verifies them


def test_one_more_wait_exceeds_the_budget(
    device: PretendDevice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = started(device, "medusa", GREEDY, tmp_path)
    heads = steps.drafter.host.proposers["it"]
    logits = heads._logits

    def asked_for_a_value(states: Any) -> Any:
        made = logits(states)
        return made if made.isfinite().all() else states

    monkeypatch.setattr(heads, "_logits", asked_for_a_value)
    steps.step()
    assert steps.log.counts == {**budget("medusa", GREEDY), VALUE: 1}
