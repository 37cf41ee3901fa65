"""An eager model reads its inputs where they are, and may overwrite them: no draft changes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.cases import proved_beyond
from tests.engine_adapter.vllm_engine.support.device_cases import (
    DRAWING,
    GREEDY,
    HEADS,
    SAMPLED,
    UNKEPT,
)
from tests.engine_adapter.vllm_engine.support.pretend_device import PretendDevice, pretend_device

pytestmark = pytest.mark.needs_vllm

WITH_KV = ("draft_model", *HEADS)
CASES = [
    *((method, GREEDY) for method in WITH_KV),
    *((method, SAMPLED) for method in WITH_KV if method in DRAWING),
    *((method, UNKEPT) for method in HEADS),
]
QUICK = [case for case in CASES if case[1] == (SAMPLED if case[0] in DRAWING else GREEDY)]
"""Of each method; sampled drafts read all that greedy ones read."""


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendDevice]:
    from tests.engine_adapter.vllm_engine.support.device_steps import models_on_the_device

    with pretend_device(monkeypatch) as made, models_on_the_device(monkeypatch, made):
        yield made


def drafted(device: PretendDevice, method: str, asks: str, folder: Path) -> list[Any]:
    """The drafts of some steps."""
    from tests.engine_adapter.vllm_engine.support.device_steps import DeviceSteps

    torch.manual_seed(3)
    np.random.seed(3)  # vLLM's, of requests without a seed
    steps = DeviceSteps(device, method, asks, folder)
    drafts = []
    for _ in range(5):
        steps.step()
        assert not steps.faults
        drafts.append(steps.drafts)
    return drafts


@pytest.mark.parametrize(("method", "asks"), proved_beyond(QUICK, CASES))
def test_a_model_that_overwrites_its_inputs_drafts_the_same(
    device: PretendDevice,
    method: str,
    asks: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tests.engine_adapter.vllm_engine.support.device_steps import DeviceLoaded, DeviceModel

    with_buffers = drafted(device, method, asks, tmp_path)
    call, overwritten = DeviceModel.__call__, 0

    def overwriting(self: Any, **inputs: Any) -> Any:
        nonlocal overwritten
        output = call(self, **inputs).clone()
        for tensor in (one for one in inputs.values() if one is not None):
            tensor.fill_(1)
            overwritten += 1
        return output

    monkeypatch.setattr(DeviceModel, "__call__", overwriting)
    monkeypatch.setattr(DeviceLoaded, "_is_eager", True)
    assert drafted(device, method, asks, tmp_path) == with_buffers
    assert overwritten
    assert any(any(row) for row in with_buffers[-1])
