"""Admin requests load from allowed folders and hub ids only, however a path is written."""

import os
from pathlib import Path

import pytest

from engine_adapter.seam.errors import EngineConfigError
from server.control.admin.allowed_models import AllowedModels, refuse_pickled_adapter


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Allowed: `models` and `cache`. `secret` is not; links lead to and fro."""
    for name in ("models/heads", "models/linked", "cache/blobs", "secret/heads", "models-2"):
        (tmp_path / name).mkdir(parents=True)
    for folder in ("models/heads", "secret/heads", "models-2"):
        (tmp_path / folder / "config.json").write_text("{}")
    (tmp_path / "models" / "out").symlink_to(tmp_path / "secret" / "heads")
    (tmp_path / "secret" / "in").symlink_to(tmp_path / "models" / "heads")
    (tmp_path / "models" / "linked" / "config.json").symlink_to(
        tmp_path / "secret/heads/config.json"
    )
    (tmp_path / "cache" / "snapshot").mkdir()
    (tmp_path / "cache" / "blobs" / "0123").write_text("{}")
    (tmp_path / "cache" / "snapshot" / "config.json").symlink_to("../blobs/0123")
    return tmp_path


def allowed(root: Path) -> AllowedModels:
    folders = [str(root / "models"), str(root / "cache")]
    return AllowedModels(folders, ["org/heads", "team/*", str(root / "named")])


async def message_for(models: AllowedModels, model: str) -> str | None:
    """The refusal of a model, or `None`."""
    try:
        await models.check(model, "proposer", "model")
    except EngineConfigError as error:
        return f"{error.setting} {error.field} {error.code}: {error.message}"
    return None


@pytest.mark.parametrize(
    "path",
    [
        *("models", "models/heads", "models/heads/", "models//heads", "models/./heads"),
        *("models/heads/../heads", "secret/../models/heads", "secret/in", "models/no-such"),
        "cache/snapshot",
    ],
)
async def test_a_folder_in_an_allowed_one_is_allowed(path: str, root: Path) -> None:
    assert await message_for(allowed(root), f"{root}/{path}") is None


@pytest.mark.parametrize(
    "path",
    [
        *(
            "secret/heads",
            "secret/no-such",
            "models/out",
            "models/linked",
            "models/../secret/heads",
        ),
        *("models/heads/../../secret/heads", "models-2", "models/..", "", "models/out/../heads"),
        *(
            "models\0",
            "models/\udcff/../../secret",
            "models/\ud800",
            f"models/{'a/' * 5000}",
            "models/" + "a" * 5000,
        ),
    ],
)
async def test_what_leads_out_of_it_is_refused(path: str, root: Path) -> None:
    assert await message_for(allowed(root), f"{root}/{path}") is not None


async def test_a_refusal_does_not_tell_what_exists(root: Path) -> None:
    models = allowed(root)
    tried = [
        *(f"{root}/secret/heads", f"{root}/secret/no-such", "/etc/shadow", "/no/such", "~root/x"),
        *("org/other", "nobody/nothing", "../../etc", "file:///etc/passwd", "s3://bucket/x"),
    ]
    messages = {await message_for(models, model) for model in tried}
    assert len(messages) == 1
    (message,) = messages
    assert message is not None
    assert message.startswith("proposer model model_not_allowed: model: must be in a folder")
    assert "--allowed-local-path" in message


@pytest.mark.parametrize("model", ["org/heads", "team/a", "team/b.c-d_e"])
async def test_an_allowed_hub_id_is_allowed(model: str, root: Path) -> None:
    assert await message_for(allowed(root), model) is None


@pytest.mark.parametrize(
    "model",
    ["org/heads2", "org", "team", "team/", "team/a/b", "team/..", "team/../x", "team/a ", "Team/a"],
)
async def test_another_hub_id_is_refused(model: str, root: Path) -> None:
    assert await message_for(allowed(root), model) is not None


async def test_a_folder_with_the_name_of_a_hub_id_is_a_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "secret" / "team" / "a").mkdir(parents=True)
    monkeypatch.chdir(root / "secret")
    assert await message_for(allowed(root), "team/a") is not None
    monkeypatch.chdir(root / "models")
    assert await message_for(allowed(root), "heads") is None
    # Not a folder here, so it would be looked for on the hub.
    assert await message_for(allowed(root), "missing/heads") is not None


async def test_a_folder_that_cannot_be_read_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Path) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "iterdir", refuse)
    assert await message_for(allowed(root), f"{root}/models/heads") is not None


async def test_home_is_expanded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(root / "models"))
    assert await message_for(allowed(root), "~/heads") is None
    monkeypatch.setenv("HOME", str(root / "secret"))
    assert await message_for(allowed(root), "~/heads") is not None


async def test_nothing_is_allowed_by_default(root: Path) -> None:
    for model in (f"{root}/models", "org/heads", ".", os.sep):
        assert await message_for(AllowedModels([], []), model) is not None


@pytest.mark.parametrize("name", ["adapter_model.bin", "adapter_model.pt"])
async def test_an_adapter_must_not_be_a_pickle(name: str, tmp_path: Path) -> None:
    await refuse_pickled_adapter(str(tmp_path))
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(EngineConfigError, match=f"has {name}, which is a pickle"):
        await refuse_pickled_adapter(str(tmp_path))
    # The engine reads this file first.
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    await refuse_pickled_adapter(str(tmp_path))
