"""A MODEL that is a head and names its target: the settings that serve the target with the head."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_adapter.proposers.speculators import read_speculator
from server.settings.model_paths import is_hub_id


def with_target(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings as written, where `model` is a head: with its target, and the head as proposer.

    A proposer that names the head as its model is used instead, so that its k and its options can
    be set. Other models are left to the engine's own checks.

    Args:
        values: settings by name, before they are validated.

    Raises:
        CheckpointError: the head's configuration does not say what is needed.
    """
    model = values.get("model")
    if not isinstance(model, str) or values.get("engine") == "fake" or not _may_be_read(model):
        return values
    head = read_speculator(model)
    if head is None:
        return values
    proposers = _listed(values.get("proposer", ()))
    if not any(
        isinstance(proposer, Mapping) and proposer.get("model") == model for proposer in proposers
    ):
        proposers = [dict(head.proposer), *proposers]
    return {**values, "model": head.target, "proposer": proposers}


def _may_be_read(model: str) -> bool:
    """Whether there is a configuration. A hub id that cannot be read is reported by the engine."""
    if Path(model).is_dir():
        return (Path(model) / "config.json").is_file()
    if not is_hub_id(model):
        return False
    from huggingface_hub import hf_hub_download

    try:
        hf_hub_download(model, "config.json")
    except (OSError, ValueError):
        return False
    return True


def _listed(value: Any) -> list[Any]:
    """Proposers as flags, variables and YAML have them; what is not valid stays, to be refused."""
    value = _parsed(value)
    return [_parsed(item) for item in value] if isinstance(value, list | tuple) else [value]


def _parsed(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except json.JSONDecodeError:
        return value
