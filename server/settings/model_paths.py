"""The check of a model's path or id before anything is loaded."""

import re
from pathlib import Path

from server.settings.types import SettingError

_HUB_ID = re.compile(r"\w[\w.-]*(/[\w.:-]+)?")


def check_model(setting: str, model: str, prefix: str = "") -> None:
    """Raises `SettingError` for a path that does not exist. The engine checks an id of the hub."""
    path = Path(model)
    if path.is_dir() and not (path / "config.json").is_file():
        raise SettingError(setting, f"{prefix}the folder {model!r} has no config.json")
    if path.exists() or "://" in model:
        return
    if not is_hub_id(model):
        raise SettingError(setting, f"{prefix}the folder {model!r} does not exist")


def is_hub_id(model: str) -> bool:
    """Whether a model that is not a folder can be a hub id."""
    parent = Path(model).parent
    in_a_folder = parent != Path(".") and parent.is_dir()
    return not in_a_folder and _HUB_ID.fullmatch(model) is not None
