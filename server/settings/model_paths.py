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
    in_a_folder = path.parent != Path(".") and path.parent.is_dir()
    if in_a_folder or not _HUB_ID.fullmatch(model):
        raise SettingError(setting, f"{prefix}there is no folder {model!r}")
