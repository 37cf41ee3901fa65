"""The LoRA adapters of an engine: loading, use and removal."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.registries.lora_registry import DEFAULT_MAX_LOADED, LoraRegistry, max_loaded
from engine_adapter.seam.errors import EngineConfigError, InvalidRequest, LoraRefused
from engine_adapter.seam.types import LoraAdapter
from tests.engine_adapter.lora import cached_adapter


@pytest.fixture(autouse=True)
def snapshot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The files of `org/adapter` in the hub's cache."""
    return cached_adapter(monkeypatch, tmp_path, "org/adapter")


async def loaded_with(names: Sequence[str], **arguments: Any) -> LoraRegistry:
    registry = LoraRegistry({"enable_lora": True, **arguments})
    for name in names:
        await load(registry, name)
    return registry


async def load(registry: LoraRegistry, name: str, path: str = "org/adapter") -> LoraAdapter:
    async with registry.loading(name, path) as adapter:
        return adapter


async def refusal(registry: LoraRegistry, name: str) -> str:
    with pytest.raises(LoraRefused) as caught:
        await load(registry, name)
    return caught.value.code


async def test_each_load_has_its_own_id() -> None:
    registry = await loaded_with(["a", "b"])
    assert [adapter.name for adapter in registry.loaded] == ["a", "b"]
    first = registry.remove("a")
    assert (await load(registry, "a")).id not in {first.id, registry.loaded[0].id}


async def test_an_adapter_that_failed_to_load_is_not_registered() -> None:
    registry = await loaded_with([])
    with pytest.raises(ValueError, match="bad"):
        async with registry.loading("a", "org/adapter"):
            raise ValueError("bad")
    assert registry.loaded == ()
    await load(registry, "a")


async def test_a_load_that_is_not_possible_is_refused_with_a_code() -> None:
    assert await refusal(LoraRegistry({}), "a") == "lora_disabled"
    assert await refusal(await loaded_with(["a"]), "a") == "adapter_exists"
    assert await refusal(await loaded_with(["a", "b"], max_cpu_loras=2), "c") == "no_room"
    registry = await loaded_with([], max_cpu_loras=1)
    async with registry.loading("a", "org/adapter"):
        assert await refusal(registry, "a") == "adapter_exists"
        assert await refusal(registry, "b") == "no_room"


async def test_an_adapter_has_the_folder_of_its_files(snapshot: Path) -> None:
    for path in ("org/adapter", str(snapshot)):
        adapter = await load(await loaded_with([]), "a", path)
        assert (adapter.path, adapter.folder) == (path, str(snapshot))


async def test_what_is_refused_is_not_asked_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_adapter.registries.lora_registry.adapter_folder", None)
    assert await refusal(LoraRegistry({}), "a") == "lora_disabled"


async def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    registry = await loaded_with([])
    with pytest.raises(EngineConfigError) as caught:
        await load(registry, "a", str(tmp_path))
    assert caught.value.field == "lora_path"
    assert "adapter_config.json" in str(caught.value)
    (tmp_path / "adapter_config.json").touch()
    await load(registry, "a", str(tmp_path))


async def test_an_adapter_in_use_is_not_removed() -> None:
    registry = await loaded_with(["a", "b"])
    a, _ = registry.loaded
    with registry.keep_loaded(a), registry.keep_loaded(None):
        with pytest.raises(LoraRefused) as caught:
            registry.remove("a")
        assert caught.value.code == "adapter_in_use"
        registry.remove("b")
    registry.remove("a")
    with pytest.raises(LoraRefused) as caught:
        registry.remove("a")
    assert caught.value.code == "adapter_not_found"


async def test_a_request_for_a_dropped_adapter_is_refused() -> None:
    registry = await loaded_with(["a"])
    (a,) = registry.loaded
    registry.drop(a)
    await load(registry, "a")
    with pytest.raises(InvalidRequest) as caught, registry.keep_loaded(a):
        pass
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [({}, DEFAULT_MAX_LOADED), ({"max_loras": 40}, 40), ({"max_loras": 2, "max_cpu_loras": 3}, 3)],
)
def test_the_limit_comes_from_the_engine_arguments(arguments: dict[str, int], limit: int) -> None:
    assert max_loaded(arguments) == limit
