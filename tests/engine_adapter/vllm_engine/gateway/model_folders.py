"""Model folders without weights, and configurations that name them."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError

LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 32,
}
WORDS = ("the", "cat", "sat", "on", "a", "mat")

MakeModel = Callable[..., str]
"""Name, configuration and words of the vocabulary -> the folder; see `conftest.make_model`."""


def config(
    model: str = "m",
    proposers: Sequence[dict[str, Any]] = (),
    capacity: int | None = None,
    **given: Any,
) -> EngineConfig:
    """The configuration of an engine with the given proposers; `given` are arguments of vLLM's."""
    return EngineConfig(model, model, parse_specs(proposers), capacity, given)


def draft(model: str, name: str = "small", **fields: Any) -> dict[str, Any]:
    """The fields of a draft model."""
    return {"name": name, "method": "draft_model", "model": model, **fields}


def refusal(check: Callable[..., Any], *args: Any) -> EngineConfigError:
    """The error that a check must raise."""
    with pytest.raises(EngineConfigError) as caught:
        check(*args)
    return caught.value
