"""LoRA adapters are loaded and unloaded at all engines or at none."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.seam.errors import EngineConfigError, InvalidRequest, LoraRefused
from tests.engine_adapter.data_parallel.conftest import StartFleet
from tests.engine_adapter.data_parallel.fleet import (
    ENDLESS,
    SLOW,
    Fleet,
    back,
    end,
    fails_once,
    kills,
)
from tests.engine_adapter.fake.harness import make_request, text
from tests.server.gateway import eventually


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """A folder that the fake engine accepts as an adapter."""
    (tmp_path / "adapter_config.json").write_text("{}")
    return str(tmp_path)


async def answer(fleet: Fleet, request_id: str, adapter: Any) -> str:
    request = replace(make_request(request_id, max_tokens=12), lora_adapter=adapter)
    return text(await fleet.run(request))


async def test_an_adapter_is_loaded_everywhere_and_answers_alike(
    start: StartFleet, folder: str
) -> None:
    fleet = await start(enable_lora=True)
    # The engines number adapters themselves, and one has counted a load that failed.
    with pytest.raises(EngineConfigError):
        await fleet.ranks[1].load_lora_adapter("broken", f"{folder}/none")
    adapter = await fleet.engine.load_lora_adapter("mine", folder)
    assert fleet.engine.lora_adapters == (adapter,)
    texts = {await answer(fleet, f"r{i}", adapter) for i in range(4)}
    assert len(texts) == 1
    assert texts != {await answer(fleet, "plain", None)}
    await fleet.engine.unload_lora_adapter("mine")
    assert fleet.engine.lora_adapters == ()
    assert not fleet.ranks[0].lora_adapters + fleet.ranks[1].lora_adapters
    with pytest.raises(InvalidRequest, match="was unloaded"):
        await answer(fleet, "late", adapter)


async def test_an_adapter_of_an_earlier_load_is_not_the_new_one(
    start: StartFleet, folder: str
) -> None:
    fleet = await start(enable_lora=True)
    old = await fleet.engine.load_lora_adapter("mine", folder)
    await fleet.engine.unload_lora_adapter("mine")
    new = await fleet.engine.load_lora_adapter("mine", folder)
    assert old != new
    with pytest.raises(InvalidRequest, match="was unloaded"):
        await answer(fleet, "late", old)


async def test_an_adapter_that_one_engine_refuses_is_loaded_nowhere(
    start: StartFleet, folder: str
) -> None:
    fleet = await start(enable_lora=True)
    fails_once(fleet.ranks[0], "load_lora_adapter", LoraRefused("no_room", "full"))
    with pytest.raises(LoraRefused, match="full"):
        await fleet.engine.load_lora_adapter("mine", folder)
    assert not fleet.ranks[0].lora_adapters + fleet.ranks[1].lora_adapters
    assert fleet.engine.lora_adapters == ()


async def test_an_adapter_in_use_at_one_engine_stays_at_all(start: StartFleet, folder: str) -> None:
    fleet = await start(enable_lora=True, **SLOW)
    adapter = await fleet.engine.load_lora_adapter("mine", folder)
    task = fleet.begin(replace(make_request(max_tokens=ENDLESS), lora_adapter=adapter))
    await eventually(lambda: sum(fleet.running) == 1)
    with pytest.raises(LoraRefused) as caught:
        await fleet.engine.unload_lora_adapter("mine")
    assert caught.value.code == "adapter_in_use"
    assert len(fleet.ranks[0].lora_adapters) == len(fleet.ranks[1].lora_adapters) == 1
    await end([task])


async def test_an_unload_of_an_adapter_that_one_engine_refuses_is_undone(
    start: StartFleet, folder: str
) -> None:
    fleet = await start(enable_lora=True)
    adapter = await fleet.engine.load_lora_adapter("mine", folder)
    fails_once(fleet.ranks[1], "unload_lora_adapter", LoraRefused("adapter_in_use", "busy"))
    with pytest.raises(LoraRefused, match="busy"):
        await fleet.engine.unload_lora_adapter("mine")
    assert fleet.engine.lora_adapters == (adapter,)
    assert {await answer(fleet, f"r{i}", adapter) for i in range(4)} != {""}


async def test_an_engine_that_is_back_gets_adapters(start: StartFleet, folder: str) -> None:
    fleet = await start(enable_lora=True, lora_modules=None)
    kills(fleet, 1)
    adapter = await fleet.engine.load_lora_adapter("mine", folder)
    await back(fleet, 1)
    assert [known.name for known in fleet.ranks[1].lora_adapters] == ["mine"]
    assert len({await answer(fleet, f"r{i}", adapter) for i in range(4)}) == 1


async def test_requests_go_to_the_engines_that_have_their_adapter(
    start: StartFleet, folder: str
) -> None:
    fleet = await start(enable_lora=True)
    adapter = await fleet.engine.load_lora_adapter("mine", folder)
    # As after a restart that could not read the adapter's files any more.
    await fleet.ranks[1].unload_lora_adapter("mine")
    assert len({await answer(fleet, f"r{i}", adapter) for i in range(4)}) == 1
    await fleet.ranks[0].unload_lora_adapter("mine")
    with pytest.raises(InvalidRequest, match="was unloaded"):
        await answer(fleet, "late", adapter)
