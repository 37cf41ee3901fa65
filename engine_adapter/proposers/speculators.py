"""Checkpoints of heads that name their target, so that one path or id is enough to serve both.

The format of the library `speculators` (github.com/vllm-project/speculators) has the target, the
algorithm and k in its `config.json`; FasterDecoding's Medusa heads have the target.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine_adapter.proposers.checkpoint import Checkpoint

CONFIG, KIND, LAYER = "speculators_config", "speculators_model_type", "transformer_layer_config"
"""The fields of the format."""

METHODS = ("eagle3",)
"""The algorithms of the format that are methods here, under the same name."""

_BASE = "base_model_name_or_path"


@dataclass(frozen=True, slots=True)
class Speculator:
    """A head and its target.

    Attributes:
        target: path or id of the target.
        proposer: the fields of a proposer that drafts with the head, as in `--proposer`.
    """

    target: str
    proposer: Mapping[str, Any]


def read_speculator(model: str) -> Speculator | None:
    """The head and its target, if the checkpoint names one; `None` for any other checkpoint.

    Args:
        model: a folder or a hub id.

    Raises:
        CheckpointError: `config.json` is missing, cannot be read, or lacks a field.
    """
    checkpoint = Checkpoint(model)
    config = checkpoint.config
    if CONFIG in config:
        method = config.get(KIND)
        if method not in METHODS:
            raise checkpoint.field_error(KIND, f"must be {' or '.join(METHODS)}")
        target, k = _verifier(config), _k(config)
        if target is None or k is None:
            raise checkpoint.field_error(
                CONFIG,
                "must have the target's path or id in verifier.name_or_path and an integer of at "
                "least 1 in proposal_methods[0].speculative_tokens",
            )
        more = {"num_speculative_tokens": k}
        return Speculator(target, {"name": method, "method": method, "model": model, **more})
    base = config.get(_BASE)
    if "medusa_num_heads" in config and isinstance(base, str) and base:
        return Speculator(base, {"name": "medusa", "method": "medusa", "model": model})
    return None


def _verifier(config: Mapping[str, Any]) -> str | None:
    try:
        name = config[CONFIG]["verifier"]["name_or_path"]
    except (KeyError, TypeError):
        return None
    return name if isinstance(name, str) and name else None


def _k(config: Mapping[str, Any]) -> int | None:
    """k of the first proposal method: vLLM too uses no other."""
    try:
        k = config[CONFIG]["proposal_methods"][0]["speculative_tokens"]
    except (IndexError, KeyError, TypeError):
        return None
    return k if type(k) is int and k >= 1 else None
