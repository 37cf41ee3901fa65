"""The settings of the demo, which is served when no model is given."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine_adapter.policies.names import AUTO
from server.settings.types import SettingError

DEMO_NAME = "specgate-demo"
"""The served name of the demo model, whose path differs from machine to machine."""

# On a CPU, about as many tokens of a prompt, and as many sequences, as double the time of a step.
_LONG_PREFILL = 64
_REQUEST_SEQUENCES = 8


def demo_settings(values: Mapping[str, Any]) -> dict[str, Any]:
    """The demo's model and, unless proposers are given, its proposers.

    A policy chooses among them, unless a primary proposer is given. Raises `SettingError` when
    the models are not installed.
    """
    settings: dict[str, Any] = {
        "model": _path("target"),
        "served_model_name": (DEMO_NAME,),
        "allowed_local_path": (str(Path(_path("target")).parent),),
        "dtype": "float32",
        "max_model_len": 2048,
        "long_prefill_token_threshold": _long_prefill(values),
        "max_request_sequences": _REQUEST_SEQUENCES,
        "kv_cache_memory_bytes": 512 * 2**20,
    }
    if "proposer" not in values:
        ngram = {"prompt_lookup_min": 2, "prompt_lookup_max": 5}
        settings |= {
            "proposer": (
                {"name": "ngram", "num_speculative_tokens": 5, **ngram},
                {"name": "suffix", "num_speculative_tokens": 8},
                _proposer("draft", "draft_model"),
                _proposer("draft-small", "draft_model"),
                _proposer("medusa", "medusa"),
                _proposer("mlp-speculator", "mlp_speculator"),
                _proposer("eagle", "eagle"),
                _proposer("eagle3", "eagle3"),
            ),
            "primary": "draft",
            "backup": "ngram",
        }
        if "primary" not in values:
            settings["spec_method"] = AUTO
    return settings


def _long_prefill(values: Mapping[str, Any]) -> int:
    """vLLM takes none above the context, which is not validated yet."""
    context = str(values.get("max_model_len", ""))
    tokens = int(context) if context.isdecimal() else 0
    return min(tokens, _LONG_PREFILL) if tokens else _LONG_PREFILL


def _proposer(name: str, method: str) -> dict[str, Any]:
    return {"name": name, "method": method, "num_speculative_tokens": 4, "model": _path(name)}


def _path(name: str) -> str:
    from demo import model_path

    try:
        return str(model_path(name))
    except FileNotFoundError as error:
        raise SettingError("model", f"none is given, and the {error}") from None
