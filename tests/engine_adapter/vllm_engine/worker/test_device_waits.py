"""How often a step waits for the device, and what it copies: at most what the budget allows.

The steps run on a pretend device (`support.pretend_device`). A wait is what keeps the CPU from
preparing the next work while the device computes. `pytest -s` prints each with its line.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

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
    *((method, GREEDY) for method in PROPOSERS),
    *((method, asks) for method in LOOKUPS for asks in (SAMPLED, SEEDED, LIMITED)),
    *((method, asks) for method in DRAWING for asks in (SAMPLED, SEEDED, LIMITED, GATED)),
    *((method, UNKEPT) for method in HEADS),
]


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendDevice]:
    from tests.engine_adapter.vllm_engine.support.device_steps import models_on_the_device

    with pretend_device(monkeypatch) as made, models_on_the_device(monkeypatch):
        yield made


def started(device: PretendDevice, method: str, asks: str, folder: Path) -> Any:
    """The steps of a proposer after three of them, with an empty log."""
    from tests.engine_adapter.vllm_engine.support.device_steps import DeviceSteps

    steps = DeviceSteps(device, method, asks, folder)
    for _ in range(3):
        steps.step()
    assert any(steps.drafts), "nothing is drafted, so nothing is verified"
    steps.log.events.clear()
    steps.rejection_sampler._layout = None  # as if the counts were others than a step before
    return steps


@pytest.mark.parametrize(("method", "asks"), CASES)
def test_a_step_waits_as_often_as_its_budget_allows(
    device: PretendDevice, method: str, asks: str, tmp_path: Path
) -> None:
    steps = started(device, method, asks, tmp_path)
    steps.step()
    assert not steps._step.draft_report.faults
    assert any(steps.drafts)
    print(f"\n{method} {asks}: {steps.log.counts}\n{steps.log.table()}")
    assert steps.log.counts == budget(method, asks), "\n" + steps.log.table()


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
