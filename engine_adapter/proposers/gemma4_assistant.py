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

_KINDS, _WINDOW = "layer_types", "sliding_window"
_SLIDING = "sliding_attention"


def kv_sources(target_text: Mapping[str, Any]) -> dict[str, int]:
    """The target's layer whose KV an assistant's layer of each kind reads.

    Args:
        target_text: the fields of the target's text model.
    """
    kinds = list(map(str, target_text[_KINDS]))
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
    sources, kinds = kv_sources(_with_kinds(target_text).config), _with_kinds(text).config[_KINDS]
    if not {str(kind) for kind in kinds} <= sources.keys():
        kinds_of_target = ", ".join(sorted(sources))
        raise text.field_error(_KINDS, f"must name kinds of the target: {kinds_of_target}")
    if _SLIDING in kinds:
        text.require(_WINDOW, target_text.integer(_WINDOW), "the target's")
    hidden, backbone = text.integer("hidden_size"), target.hidden_size
    needed: dict[str, Shape] = {
        "pre_projection.weight": (hidden, 2 * backbone),
        "post_projection.weight": (backbone, hidden),
        "model.embed_tokens.weight": (target.vocab_size, hidden),
    }
    checkpoint.check_tensors(needed, checkpoint.shapes)


def _with_kinds(text: Checkpoint) -> Checkpoint:
    """A text model whose configuration names the kind of each layer."""
    if not isinstance(text.config.get(_KINDS), list):
        raise text.field_error(_KINDS, "must name the kind of attention of each layer")
    return text
