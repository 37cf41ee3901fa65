"""Checkpoints in every published form, and the errors for those that cannot be read."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine_adapter.proposers.checkpoint import Checkpoint, CheckpointError
from engine_adapter.seam.text import MAX_ECHO, truncate

TENSORS = {
    "a": torch.arange(6.0).reshape(2, 3),
    "b": torch.ones(4, dtype=torch.bfloat16),
    "c": torch.tensor([7]),
}
SHAPES = {"a": (2, 3), "b": (4,), "c": (1,)}


def save(path: Path, tensors: dict[str, torch.Tensor]) -> None:
    if path.suffix == ".safetensors":
        save_file(tensors, path)
    else:
        torch.save(tensors, path)


def whole(folder: Path, name: str) -> None:
    (folder / "config.json").write_text('{"n": 3}')
    save(folder / name, TENSORS)


def sharded(folder: Path, kind: str, stem: str) -> None:
    (folder / "config.json").write_text('{"n": 3}')
    shards = {f"{stem}-1-of-2.{kind}": ["a"], f"{stem}-2-of-2.{kind}": ["b", "c"]}
    for shard, names in shards.items():
        save(folder / shard, {name: TENSORS[name] for name in names})
    file_of = {name: shard for shard, names in shards.items() for name in names}
    (folder / f"{stem}.{kind}.index.json").write_text(json.dumps({"weight_map": file_of}))


def check_read(checkpoint: Checkpoint) -> None:
    assert checkpoint.shapes == SHAPES
    read = checkpoint.read(["c", "a", "b"])
    assert read.keys() == TENSORS.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in TENSORS.items())
    assert checkpoint.read(["b"]).keys() == {"b"}


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "mine.pt"])
def test_one_file_is_read(tmp_path: Path, name: str) -> None:
    whole(tmp_path, name)
    checkpoint = Checkpoint(str(tmp_path), ["mine.pt"])
    check_read(checkpoint)
    assert checkpoint.path_of("a") == tmp_path / name


def test_a_pickle_of_the_old_format_is_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save(TENSORS, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    check_read(Checkpoint(str(tmp_path)))


@pytest.mark.parametrize(("kind", "stem"), [("safetensors", "model"), ("bin", "pytorch_model")])
def test_shards_are_read_as_one(tmp_path: Path, kind: str, stem: str) -> None:
    sharded(tmp_path, kind, stem)
    checkpoint = Checkpoint(str(tmp_path))
    check_read(checkpoint)
    assert checkpoint.path_of("a").name == f"{stem}-1-of-2.{kind}"
    assert checkpoint.path_of("c").name == f"{stem}-2-of-2.{kind}"


def test_a_folder_in_the_home_directory_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "heads").mkdir()
    whole(tmp_path / "heads", "model.safetensors")
    check_read(Checkpoint("~/heads"))


def test_the_methods_file_names_come_first_then_safetensors(tmp_path: Path) -> None:
    for name in ("model.safetensors", "pytorch_model.bin", "own.pt"):
        whole(tmp_path, name)
    assert Checkpoint(str(tmp_path)).path_of("a").name == "model.safetensors"
    assert Checkpoint(str(tmp_path), ["own.pt"]).path_of("a").name == "own.pt"


# -- errors ----------------------------------------------------------------------------------


def refusal(model: str | Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        _ = Checkpoint(str(model)).shapes
    return str(caught.value)


@pytest.mark.parametrize("path", ["/no/such/folder", "./no-such-folder", "~/no-such-folder"])
def test_a_missing_folder_is_named(path: str) -> None:
    assert refusal(path) == f"the folder {path} does not exist"


def test_a_missing_configuration_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path) == f"{tmp_path}/config.json is missing"


@pytest.mark.parametrize("text", ["{", "[]", "7", "\xff"])
def test_a_configuration_that_is_not_a_json_object_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_bytes(text.encode("latin-1"))
    assert refusal(tmp_path).startswith(f"{tmp_path}/config.json: ")


def test_the_error_for_missing_weights_lists_the_file_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    message = refusal(tmp_path)
    assert message.startswith(f"{tmp_path}: there is none of ")
    assert "model.safetensors" in message
    assert "pytorch_model.bin.index.json" in message


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin"])
@pytest.mark.parametrize("size", [0, 4, 60, -1])
def test_a_truncated_file_is_named(tmp_path: Path, name: str, size: int) -> None:
    whole(tmp_path, name)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[:size])
    assert refusal(tmp_path).startswith(f"{tmp_path}/{name}: cannot be read: ")


@pytest.mark.parametrize("content", [[1, 2], {"a": 3}, torch.ones(2)], ids=str)
def test_a_pickle_of_something_else_is_named(tmp_path: Path, content: object) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save(content, tmp_path / "pytorch_model.bin")
    assert refusal(tmp_path) == f"{tmp_path}/pytorch_model.bin: must hold tensors by name"


def test_a_pickle_with_code_is_refused_and_the_code_does_not_run(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    torch.save({"a": Touch(tmp_path / "ran")}, tmp_path / "pytorch_model.bin")
    assert refusal(tmp_path).startswith(f"{tmp_path}/pytorch_model.bin: cannot be read: ")
    assert not (tmp_path / "ran").exists()


class Touch:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    sharded(tmp_path, "safetensors", "model")
    (tmp_path / "model-2-of-2.safetensors").unlink()
    assert refusal(tmp_path) == f"{tmp_path}/model-2-of-2.safetensors is missing"


@pytest.mark.parametrize("index", [{}, {"weight_map": []}, {"weight_map": {"a": 3}}], ids=str)
def test_an_index_without_shards_is_named(tmp_path: Path, index: object) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert refusal(tmp_path).startswith(f"{tmp_path}/model.safetensors.index.json: weight_map ")


@pytest.mark.parametrize(
    "shard",
    [
        *("../other/model.safetensors", "/etc/shadow", "sub/model.safetensors", "..", "", "."),
        *("shadow", "config.json", "model.safetensors/", "a\x00.bin/../b.bin"),
    ],
)
def test_an_index_names_only_files_beside_it(tmp_path: Path, shard: str) -> None:
    folder = tmp_path / "heads"
    (folder / "sub").mkdir(parents=True)
    (tmp_path / "other").mkdir()
    for place in (tmp_path / "other", folder / "sub"):
        save(place / "model.safetensors", TENSORS)
    (folder / "config.json").write_text("{}")
    index = {"weight_map": dict.fromkeys(TENSORS, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "weight_map must name files beside it" in refusal(folder)


def test_a_configuration_that_is_nested_too_deeply_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a":' + "[" * 200_000 + "]" * 200_000 + "}")
    assert refusal(tmp_path).startswith(f"{tmp_path}/config.json: ")


def test_a_configuration_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_adapter.proposers.checkpoint.MAX_JSON_BYTES", 10)
    (tmp_path / "config.json").write_text('{"a": "bcdefgh"}')
    assert "is larger than 10 bytes" in refusal(tmp_path)


@pytest.mark.parametrize("value", [10**30, 2**31, 0, -1, 1.0, True, "8", [8]], ids=repr)
def test_a_size_that_no_model_has_is_named(tmp_path: Path, value: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": value}))
    with pytest.raises(CheckpointError, match="hidden_size must be a"):
        Checkpoint(str(tmp_path)).integer("hidden_size")


@pytest.mark.parametrize("value", [5, "Other", {"Other": 1}, [5]], ids=repr)
def test_an_architecture_of_any_type_is_named(tmp_path: Path, value: object) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": value}))
    with pytest.raises(CheckpointError, match="architectures must be"):
        Checkpoint(str(tmp_path)).require_architecture("Mine", "mine")


def test_a_message_repeats_little_of_a_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": "x" * 1_000_000}))
    with pytest.raises(CheckpointError) as caught:
        Checkpoint(str(tmp_path)).integer("hidden_size")
    assert len(str(caught.value)) < 500


# -- hub ids ---------------------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The snapshot of `someone/heads` in an otherwise empty cache, offline."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    repository = tmp_path / "models--someone--heads"
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    return snapshot


@pytest.mark.parametrize("kind", ["whole", "sharded"])
def test_a_hub_id_is_found_in_the_cache(hub: Path, kind: str) -> None:
    if kind == "whole":
        whole(hub, "pytorch_model.bin")
    else:
        sharded(hub, "safetensors", "model")
    check_read(Checkpoint("someone/heads"))


@pytest.mark.parametrize("model", ["someone/others", "not a repository", "a/b/c"])
def test_a_hub_id_that_cannot_be_loaded_is_named(hub: Path, model: str) -> None:
    message = refusal(model)
    assert message.startswith(f"{model}: config.json: ")
    assert len(message) > len(f"{model}: config.json: ")


@pytest.mark.parametrize("model", ["0" * 4096, "/" + "0" * 300, "~nobody-of-this-name/heads"])
def test_a_path_that_the_system_refuses_is_named(model: str) -> None:
    message = refusal(model)
    assert message.startswith(f"{truncate(model)}: ")
    assert len(message) <= 2 * MAX_ECHO + len(": ")
