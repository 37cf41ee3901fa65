"""Parameters of policies are set at all engines or at none."""

from typing import Any

import pytest

from engine_adapter.policies.parameters import PolicyError
from engine_adapter.seam.errors import EngineError
from tests.engine_adapter.data_parallel.conftest import StartFleet
from tests.engine_adapter.data_parallel.fleet import Fleet, back, fails_once, kills


def parameters(fleet: Fleet, index: int, policy: str) -> Any:
    return next(p.parameters for p in fleet.ranks[index].policies if p.name == policy)


async def test_a_policy_is_set_everywhere(start: StartFleet) -> None:
    fleet = await start()
    info = await fleet.engine.set_policy("auto", {"min_gain": 0.5})
    assert info.parameters["min_gain"] == 0.5
    assert parameters(fleet, 0, "auto") == parameters(fleet, 1, "auto") == info.parameters


async def test_a_policy_that_one_engine_does_not_take_stays(start: StartFleet) -> None:
    fleet = await start()
    await fleet.engine.set_policy("auto", {"min_gain": 0.25})
    before = parameters(fleet, 0, "auto")
    fails_once(fleet.ranks[1], "set_policy", EngineError("broken"))
    with pytest.raises(EngineError, match="broken"):
        await fleet.engine.set_policy("auto", {"min_gain": 0.5})
    assert parameters(fleet, 0, "auto") == parameters(fleet, 1, "auto") == before


async def test_parameters_that_cannot_work_are_refused(start: StartFleet) -> None:
    fleet = await start()
    with pytest.raises(PolicyError, match="min_gain"):
        await fleet.engine.set_policy("auto", {"min_gain": 7})


async def test_an_engine_that_is_back_has_the_parameters(start: StartFleet) -> None:
    fleet = await start()
    kills(fleet, 0)
    await fleet.engine.set_policy("auto", {"min_gain": 0.5})
    await back(fleet, 0)
    assert parameters(fleet, 0, "auto")["min_gain"] == 0.5
