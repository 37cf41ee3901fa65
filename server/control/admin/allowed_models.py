"""Which checkpoints and adapters admin requests may load: folders and hub ids of the operator."""

import asyncio
import os
import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from engine_adapter.seam.errors import EngineConfigError

_MAX_CHARS = 4096
_PATH_STARTS = ("/", ".", "~")
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_SAFE_ADAPTER = "adapter_model.safetensors"
_PICKLED_ADAPTERS = ("adapter_model.bin", "adapter_model.pt")


class ModelNotAllowed(EngineConfigError):
    """The operator has not allowed a model: an attempt, and no fault of the model."""

    def __init__(self, setting: str, message: str, field: str) -> None:
        super().__init__(setting, message, field, "model_not_allowed")


class AllowedModels:
    """The models that may be loaded while the server runs. What is refused is not looked into.

    Args:
        folders: a folder in or below one of these is allowed, if the files that it links to are
            in or below one, too. Links to other folders lead to nothing that is loaded.
        hub_ids: patterns of hub ids, such as `org/name` or `org/*`.
    """

    def __init__(self, folders: Iterable[str], hub_ids: Iterable[str]) -> None:
        self._folders = tuple(Path(_resolved(folder)) for folder in folders)
        self._hub_ids = tuple(hub_ids)

    async def check(self, model: str, setting: str, field: str) -> None:
        """Raises `ModelNotAllowed` unless the model may be loaded.

        The message is the same for all that is not allowed: it does not tell what exists.

        Args:
            model: a path or a hub id.
            setting: the setting that configures such a model at start.
            field: the request's field.
        """
        # A file system can be slow.
        if not await asyncio.to_thread(self._allows, model):
            message = (
                f"{field}: must be in a folder that --allowed-local-path names, or a hub id that "
                "--allowed-hub-id names; the models that the server started with are allowed too"
            )
            raise ModelNotAllowed(setting, message, field)

    def _allows(self, model: str) -> bool:
        if len(model) > _MAX_CHARS:
            return False
        try:
            path = Path(_resolved(model))
            if model.startswith(_PATH_STARTS) or path.is_dir():
                return self._is_below(path) and all(map(self._is_below, _links(path)))
        except (OSError, ValueError):  # a folder that cannot be read; NUL, or a lone surrogate
            return False
        return _HUB_ID.fullmatch(model) is not None and any(
            fnmatchcase(model, pattern) for pattern in self._hub_ids
        )

    def _is_below(self, path: Path) -> bool:
        return any(path.is_relative_to(folder) for folder in self._folders)


async def refuse_pickled_adapter(path: str) -> None:
    """Raises `EngineConfigError` for a folder whose adapter is a pickle, which can hold code."""
    if (name := await asyncio.to_thread(_pickle_in, path)) is not None:
        message = (
            f"lora_path: has {name}, which is a pickle; only {_SAFE_ADAPTER} is loaded while the "
            "server runs"
        )
        raise EngineConfigError("lora_modules", message, "lora_path")


def _pickle_in(path: str) -> str | None:
    folder = Path(_resolved(path))
    if (folder / _SAFE_ADAPTER).is_file():
        return None
    return next((name for name in _PICKLED_ADAPTERS if (folder / name).is_file()), None)


def _resolved(path: str) -> str:
    """The absolute path without links and `..`."""
    return os.path.realpath(os.path.expanduser(path))


def _links(folder: Path) -> list[Path]:
    """Where the links to files in the folder lead, which may be out of it. Folders in it are left
    out: a model's files are beside each other."""
    if not folder.is_dir():
        return []
    links = [entry for entry in folder.iterdir() if entry.is_symlink()]
    return [link.resolve() for link in links if not link.is_dir()]
