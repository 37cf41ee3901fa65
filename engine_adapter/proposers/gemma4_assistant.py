"""The checkpoint of an assistant of Gemma 4, which drafts with the target's KV.

Source: `google/gemma-4-*-assistant`, and `Gemma4AssistantForCausalLM` in transformers. Each of its
layers reads the KV of the target's last layer of the same kind that computes its own.
"""

from collections.abc import Mapping
from typing import Any

from engine_adapter.proposers.checkpoint import Checkpoint, Shape
from engine_adapter.proposers.contract import TargetSizes

MODEL_TYPES = "gemma4_assistant", "gemma4_unified_assistant"
"""The `model_type` of its configuration."""

_TARGETS = "gemma4"
"""How the `model_type` of its targets begins."""

_SLIDING, _WINDOW = "sliding_attention", "sliding_window"


def kv_sources(target_text: Mapping[str, Any]) -> dict[str, int]:
    """The target's layer whose KV an assistant's layer of each kind reads.

    Args:
        target_text: the fields of the target's text model.
    """
    kinds = list(target_text["layer_types"])
    num_own = len(kinds) - (target_text.get("num_kv_shared_layers") or 0)
    return {kind: index for index, kind in enumerate(kinds[:num_own])}


def check(checkpoint: Checkpoint, target: TargetSizes) -> None:
    """Raises `CheckpointError` unless the assistant can draft for this target."""
    assert target.model is not None
    target_text = Checkpoint(target.model, revision=target.revision).text_part()
    text = checkpoint.text_part()
    if not str(target_text.config.get("model_type")).startswith(_TARGETS):
        raise target_text.field_error("model_type", "must be Gemma 4's: the assistant reads its KV")
    checkpoint.require("backbone_hidden_size", target.hidden_size, "the target's hidden_size")
    text.require("vocab_size", target.vocab_size, "the target's")
    sources, kinds = kv_sources(target_text.config), text.config.get("layer_types")
    if not isinstance(kinds, list) or not set(kinds) <= sources.keys():
        kinds_of_target = ", ".join(sorted(sources))
        raise text.field_error("layer_types", f"must name kinds of the target: {kinds_of_target}")
    if _SLIDING in kinds:
        text.require(_WINDOW, target_text.integer(_WINDOW), "the target's")
    hidden, backbone = text.integer("hidden_size"), target.hidden_size
    needed: dict[str, Shape] = {
        "pre_projection.weight": (hidden, 2 * backbone),
        "post_projection.weight": (backbone, hidden),
        "model.embed_tokens.weight": (target.vocab_size, hidden),
    }
    checkpoint.check_tensors(needed, checkpoint.shapes)
