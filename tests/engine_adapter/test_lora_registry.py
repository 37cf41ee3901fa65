"""Which adapters an engine holds, and who uses them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.errors import EngineConfigError, InvalidRequest, LoraRefused
from engine_adapter.lora_registry import DEFAULT_MAX_LOADED, LoraRegistry, max_loaded
from engine_adapter.types import LoraAdapter


def holding(names: Sequence[str], **arguments: Any) -> LoraRegistry:
    adapters = LoraRegistry({"enable_lora": True, **arguments})
    for name in names:
        load(adapters, name)
    return adapters


def load(adapters: LoraRegistry, name: str, path: str = "org/adapter") -> LoraAdapter:
    with adapters.loading(name, path) as adapter:
        return adapter


def refusal(adapters: LoraRegistry, name: str) -> str:
    with pytest.raises(LoraRefused) as caught:
        load(adapters, name)
    return caught.value.code


def test_each_loading_has_an_id_of_its_own() -> None:
    adapters = holding(["a", "b"])
    assert [adapter.name for adapter in adapters.loaded] == ["a", "b"]
    first = adapters.remove("a")
    assert load(adapters, "a").id not in {first.id, adapters.loaded[0].id}


def test_an_adapter_that_failed_to_load_is_not_held() -> None:
    adapters = holding([])
    with pytest.raises(ValueError, match="bad"), adapters.loading("a", "org/adapter"):
        raise ValueError("bad")
    assert adapters.loaded == ()
    load(adapters, "a")


def test_what_cannot_be_loaded_is_refused_by_code() -> None:
    assert refusal(LoraRegistry({}), "a") == "lora_disabled"
    assert refusal(holding(["a"]), "a") == "adapter_exists"
    assert refusal(holding(["a", "b"], max_cpu_loras=2), "c") == "no_room"
    adapters = holding([], max_cpu_loras=1)
    with adapters.loading("a", "org/adapter"):
        assert refusal(adapters, "a") == "adapter_exists"
        assert refusal(adapters, "b") == "no_room"


def test_a_folder_without_an_adapter_is_refused(tmp_path: Path) -> None:
    adapters = holding([])
    with pytest.raises(EngineConfigError) as caught:
        load(adapters, "a", str(tmp_path))
    assert caught.value.field == "lora_path"
    assert "adapter_config.json" in str(caught.value)
    (tmp_path / "adapter_config.json").touch()
    load(adapters, "a", str(tmp_path))


def test_one_in_use_is_not_removed() -> None:
    adapters = holding(["a", "b"])
    a, _ = adapters.loaded
    with adapters.used(a), adapters.used(None):
        with pytest.raises(LoraRefused) as caught:
            adapters.remove("a")
        assert caught.value.code == "adapter_in_use"
        adapters.remove("b")
    adapters.remove("a")
    with pytest.raises(LoraRefused) as caught:
        adapters.remove("a")
    assert caught.value.code == "adapter_not_found"


def test_a_request_whose_adapter_is_gone_is_refused() -> None:
    adapters = holding(["a"])
    (a,) = adapters.loaded
    adapters.drop(a)
    load(adapters, "a")
    with pytest.raises(InvalidRequest) as caught, adapters.used(a):
        pass
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


@pytest.mark.parametrize(
    ("arguments", "most"),
    [({}, DEFAULT_MAX_LOADED), ({"max_loras": 40}, 40), ({"max_loras": 2, "max_cpu_loras": 3}, 3)],
)
def test_room_is_what_vllm_keeps(arguments: dict[str, int], most: int) -> None:
    assert max_loaded(arguments) == most
