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

METHODS: Mapping[str, str] = {
    "dflash": "dflash",
    "dflash2": "dflash",
    "dspark": "dspark",
    "eagle3": "eagle3",
}
"""Algorithm of the format -> the method that drafts with its heads."""

_OF_HEAD = (
    *("aux_hidden_state_layer_ids", "draft_vocab_size", "mask_token_id", "sample_from_anchor"),
    *("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"),
    *("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k"),
)
"""The fields that are read beside `LAYER` only: vLLM ignores them in it, for some methods."""

_OF_EITHER = (
    *("target_hidden_size", "block_size", "eagle_aux_hidden_state_layer_ids"),
    *("markov_rank", "markov_head_type"),
    *("enable_confidence_head", "confidence_head_with_markov"),
)
"""The fields that stand beside `LAYER`. If one is missing there, vLLM takes that of the layers."""

*_FIRST, _LAST = METHODS
_ALGORITHM = f"must be {', '.join(_FIRST)} or {_LAST}"

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
        method = METHODS.get(str(config.get(KIND)))
        if method is None:
            message = f"{_ALGORITHM}: no method drafts with other heads of the format speculators"
            raise checkpoint.field_error(KIND, message)
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


def usual_fields(checkpoint: Checkpoint, method: str) -> Mapping[str, Any]:
    """The fields of a head in the format, with those of its layers beside them as elsewhere.

    Each is read where vLLM reads it. All other fields are those of the layers.

    Args:
        method: the one that the head is to draft with.

    Raises:
        CheckpointError: the head is of another algorithm, or its layers are not described.
    """
    fields: Mapping[str, Any] = checkpoint.config
    if METHODS.get(str(fields.get(KIND))) != method:
        message = f"{_ALGORITHM}, of the proposer's method, which is {method}"
        raise checkpoint.field_error(KIND, message)
    layer: Any = fields.get(LAYER)
    if not isinstance(layer, dict):
        raise checkpoint.field_error(LAYER, "must be an object")
    beside = (*_OF_HEAD, *_OF_EITHER, CONFIG, KIND, LAYER)
    layer_fields = {name: value for name, value in layer.items() if name not in _OF_HEAD}
    return layer_fields | {name: fields[name] for name in beside if fields.get(name) is not None}


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
