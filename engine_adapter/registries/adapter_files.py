"""Finds the files of a LoRA adapter, on this machine or on the hub.

The engine gets a folder only: vLLM would ask the hub within a step, and all requests would wait for
the answer.
"""

import os
from pathlib import Path

from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.text import short_repr

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"

_PATH_STARTS = ("/", ".", "~")


def adapter_folder(name: str, path: str) -> str:
    """The absolute path of the folder with an adapter's files. Blocks while they are downloaded.

    Of a hub id only the configuration and the weights as safetensors are downloaded: an adapter
    that is a pickle is never fetched.

    Args:
        name: of the adapter, for the message of an error.
        path: a folder, or a hub id.

    Raises:
        EngineConfigError: `path` does not lead to an adapter.
    """
    folder = Path(path)
    try:
        if path.startswith(_PATH_STARTS) or folder.exists():
            folder = folder.expanduser()
            if not (folder / CONFIG_FILE).is_file():
                raise _unusable(
                    name, f"{short_repr(path)} is not a folder with a file {CONFIG_FILE}"
                )
            return os.path.abspath(folder)
    # A name that is too long, a folder that must not be read, "~" before a name that no user has.
    except (OSError, RuntimeError) as error:
        raise _unusable(name, f"{short_repr(path)}: {error}") from error
    return _downloaded(name, path)


def _downloaded(name: str, hub_id: str) -> str:
    from huggingface_hub import snapshot_download

    try:
        folder = snapshot_download(hub_id, allow_patterns=[CONFIG_FILE, WEIGHTS_FILE])
    except Exception as error:  # of the hub's library and of its HTTP client, which have no base
        reason = f"{type(error).__name__}: {error}"
        message = f"{short_repr(hub_id)} cannot be read from the hub or its cache: {reason}"
        raise _unusable(name, message) from error
    for file in (CONFIG_FILE, WEIGHTS_FILE):
        if not (Path(folder) / file).is_file():
            raise _unusable(name, f"{short_repr(hub_id)} has no {file}")
    return folder


def _unusable(name: str, message: str) -> EngineConfigError:
    return EngineConfigError("lora_modules", f"{name}: {message}", "lora_path")
