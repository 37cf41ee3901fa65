"""Where the files of a LoRA adapter are found: folders, and the hub's cache on this machine."""

import os
from pathlib import Path

import pytest

from engine_adapter.registries.adapter_files import CONFIG_FILE, WEIGHTS_FILE, adapter_folder
from engine_adapter.seam.errors import EngineConfigError
from tests.engine_adapter.lora import cached_adapter


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The snapshot of `someone/adapter` in the hub's cache; nothing can be downloaded."""
    return cached_adapter(monkeypatch, tmp_path, "someone/adapter")


def refusal(path: str) -> str:
    with pytest.raises(EngineConfigError) as caught:
        adapter_folder("sql", path)
    assert (caught.value.setting, caught.value.field) == ("lora_modules", "lora_path")
    assert caught.value.message.startswith("sql: ")
    return caught.value.message


def test_a_hub_id_is_found_in_the_cache(hub: Path) -> None:
    assert adapter_folder("sql", "someone/adapter") == str(hub)


@pytest.mark.parametrize("name", [CONFIG_FILE, WEIGHTS_FILE])
def test_a_hub_id_without_a_file_of_an_adapter_is_refused(hub: Path, name: str) -> None:
    (hub / name).unlink()
    # A pickle that somebody has downloaded does not take its place.
    (hub / "adapter_model.bin").touch()
    assert f"'someone/adapter' has no {name}" in refusal("someone/adapter")


@pytest.mark.parametrize("path", ["someone/other", "not a repository", "a/b/c", "0" * 200])
def test_a_hub_id_that_cannot_be_read_is_named(hub: Path, path: str) -> None:
    message = refusal(path)
    assert "cannot be read from the hub or its cache: " in message
    assert path[:50] in message


def test_only_the_files_of_an_adapter_are_downloaded(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[tuple[str, list[str]]] = []

    def download(repo_id: str, *, allow_patterns: list[str]) -> str:
        asked.append((repo_id, allow_patterns))
        for name in allow_patterns:
            (tmp_path / name).touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    assert adapter_folder("sql", "someone/adapter") == str(tmp_path)
    assert asked == [("someone/adapter", [CONFIG_FILE, WEIGHTS_FILE])]


def test_a_folder_is_found_by_every_way_to_write_it(
    hub: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(hub.parent))
    monkeypatch.chdir(hub.parent)
    for path in (str(hub), f"~/{hub.name}", f"./{hub.name}", hub.name, f"{hub}/../{hub.name}"):
        assert adapter_folder("sql", path) == str(hub)


@pytest.mark.parametrize(
    "path", ["/no/such/folder", ".", "~nobody-of-this-name/a", "/" + "0" * 300]
)
def test_a_folder_without_an_adapter_is_refused_and_not_asked_for(path: str, hub: Path) -> None:
    assert "hub" not in refusal(path)


def test_a_folder_that_must_not_be_read_is_refused(hub: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root reads every folder")
    hub.chmod(0)
    assert str(hub) in refusal(str(hub))
