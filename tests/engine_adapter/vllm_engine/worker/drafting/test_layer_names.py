"""Layers of several models in one registry."""

from types import SimpleNamespace
from typing import Any

import pytest

from engine_adapter.proposers.methods import parse_spec
from engine_adapter.vllm_engine.worker.drafting.layer_names import (
    layer_prefix,
    layers_of_one_model,
)


def layer(name: str) -> Any:
    return SimpleNamespace(layer_name=name)


def register(layers: dict[str, Any], *names: str) -> None:
    for name in names:
        assert name not in layers, f"Duplicate layer name: {name}"
        layers[name] = layer(name)


def test_a_prefix_has_no_dot() -> None:
    spec = parse_spec({"name": "v1.5", "method": "draft_model", "model": "m"})
    assert layer_prefix(spec) == "draft:v1:5"


def test_layers_of_two_models_under_one_name_get_two() -> None:
    """The experts' layers do not have the prefix, those of the attention do."""
    layers: dict[str, Any] = {}
    register(layers, "layers.0.experts", "layers.0.attn")
    target = dict(layers)
    for prefix in ("draft:a", "draft:b"):
        with layers_of_one_model(layers, prefix):
            register(layers, "layers.0.experts", f"{prefix}.layers.0.attn")
    assert list(layers) == [
        *target,
        *("draft:a.layers.0.experts", "draft:a.layers.0.attn"),
        *("draft:b.layers.0.experts", "draft:b.layers.0.attn"),
    ]
    assert all(layers[name] is target[name] for name in target)
    assert all(one.layer_name == name for name, one in layers.items())


def test_a_model_that_cannot_be_loaded_leaves_no_layer() -> None:
    layers = {"layers.0.attn": layer("layers.0.attn")}
    before = dict(layers)

    def load() -> None:
        with layers_of_one_model(layers, "draft:a"):
            register(layers, "layers.0.experts")
            raise ValueError("no weights")

    with pytest.raises(ValueError, match="no weights"):
        load()
    assert layers == before
