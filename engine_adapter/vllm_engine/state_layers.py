"""Layers that keep a state instead of the KV of each position: which ones a target may have.

vLLM keeps the state after each token of a step that reads drafts, in a block of its own, and
begins the next step at the one after the last accepted token. A target has states of every row in
every step, so switches, idle proposers and preemption change nothing. What is left to do is to
refuse layers whose state does not follow rejected drafts. The gateway reads the layers from the
class of the model, before any weights are read; the worker checks the loaded ones.
"""

import sys
from collections.abc import Iterable

from engine_adapter.vllm_engine import compat

GATED_DELTA = "QwenGatedDeltaNetAttention"

FOLLOWING = frozenset({"MambaMixer2", "ShortConv", GATED_DELTA})
"""vLLM's classes of layers whose state follows rejected drafts, as texts on a CPU show."""

_REASONS = {
    "MambaMixer": "it never reads how many drafts were accepted",
    "BailingMoELinearAttention": "it is not proven, since it has no code for CPUs",
    "OlmoHybridGatedDeltaNetAttention": "it is not proven, since it has no code for CPUs",
}


def layers_of(model: type) -> set[type]:
    """vLLM's classes of layers with a state that a model's class is made of.

    They are those that its module names, or the module of a class that it wraps. A wrapper that
    looks its inner model up by name has none here.
    """
    wrapped = [value for value in _classes_beside(model) if getattr(value, "is_hybrid", False)]
    return {
        value
        for model_class in (model, *wrapped)
        for value in _classes_beside(model_class)
        if issubclass(value, compat.MambaBase) and value is not compat.MambaBase
    }


def _classes_beside(model: type) -> list[type]:
    values = vars(sys.modules[model.__module__]).values()
    return [value for value in values if isinstance(value, type)]


def fault_of(layers: Iterable[type]) -> str | None:
    """Why a target with these layers is refused.

    Args:
        layers: vLLM's classes.
    """
    unproven = sorted({layer.__name__ for layer in layers} - FOLLOWING)
    if not unproven:
        return None
    reasons = [f"{name}: {_REASONS.get(name, 'it is not proven')}" for name in unproven]
    return (
        "its recurrent layers keep a state that does not follow rejected drafts in vLLM "
        f"({'; '.join(reasons)}): choose another model"
    )
