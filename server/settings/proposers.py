"""Proposers as users write them: a word, an object without a name, or vLLM's own spelling."""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator

from engine_adapter.proposers import methods
from engine_adapter.proposers.checkpoint import CheckpointError
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.detection import method_of
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.text import NAME
from server.settings.types import SettingError, json_object, parsed

_LOOKUPS = {"ngram": "ngram", "[ngram]": "ngram", "ngram_gpu": "ngram", "suffix": "suffix"}
"""vLLM's names of lookups, as a method or a model -> ours."""


def _proposer(value: Any) -> Any:
    """Reads JSON text, or a word, which is the method of a proposer."""
    is_word = isinstance(value, str) and NAME.fullmatch(value) is not None
    return {"method": value} if is_word else parsed(value)


def _proposers(value: Any) -> tuple[ProposerSpec, ...]:
    """Reads texts, mappings or specs, one or several."""
    value = _proposer(value)
    items = [_proposer(item) for item in (value if isinstance(value, list | tuple) else [value])]
    if all(isinstance(item, ProposerSpec) for item in items):
        return tuple(items)
    for item in items:
        if not isinstance(item, Mapping):
            example = '{"name": "ngram", "num_speculative_tokens": 5}'
            raise ValueError(f"must be a JSON object such as {example}, or a method, got {item!r}")
    try:
        return methods.parse_specs([with_defaults(item) for item in items])
    except CheckpointError as error:
        raise ValueError(f"model: {error}; say the method") from None
    except EngineConfigError as error:
        raise ValueError(error.message) from None


Proposers = Annotated[tuple[ProposerSpec, ...], BeforeValidator(_proposers)]
"""Proposers; as text, a JSON object, a JSON list of them, or a method."""


def with_defaults(fields: Mapping[str, Any]) -> dict[str, Any]:
    """A proposer's object with its method and name: the checkpoint's method, and the method's name.

    Raises `CheckpointError`.
    """
    complete = dict(fields)
    model, name = fields.get("model"), fields.get("name")
    if isinstance(model, str) and "method" not in fields and not methods.is_method(name):
        complete["method"] = method_of(model)
    complete.setdefault("name", complete.get("method"))
    return complete


def with_speculative_config(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, with vLLM's description of a proposer among the proposers.

    vLLM has it in `speculative_config`, or in `spec_method`, `spec_model` and `spec_tokens`.

    Raises `SettingError`.
    """
    settings = dict(values)
    if "speculative_config" in values:
        setting = "speculative_config"
        try:
            fields = json_object(values[setting])
        except ValueError as error:
            raise SettingError(setting, str(error)) from None
        if {"spec_model", "spec_tokens"} & values.keys():
            reason = "has the model and the tokens; leave out spec_model and spec_tokens"
            raise SettingError(setting, reason)
    elif {"spec_model", "spec_tokens"} & values.keys():
        setting = "spec_model" if "spec_model" in values else "spec_tokens"
        k = values.get("spec_tokens")
        fields = {
            "method": values.get("spec_method"),
            "model": values.get("spec_model"),
            "num_speculative_tokens": int(k) if isinstance(k, str) and k.isdecimal() else k,
        }
    else:
        return settings
    try:
        proposer = with_defaults(_as_ours(fields))
        methods.parse_spec(proposer)
    except (CheckpointError, EngineConfigError) as error:
        raise SettingError(setting, getattr(error, "message", str(error))) from None
    proposers = values.get("proposer", ())
    if not isinstance(proposers, list | tuple):
        proposers = [proposers]
    return {**settings, "proposer": [*proposers, proposer]}


def _as_ours(fields: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's fields of a proposer, in the names of this server."""
    ours = {name: value for name, value in fields.items() if value is not None}
    method = ours.get("method", ours.get("model"))
    if isinstance(method, str) and method in _LOOKUPS:
        ours.pop("model", None)
        ours["method"] = _LOOKUPS[method]
    elif isinstance(method, str) and method.endswith("_mtp"):
        ours["method"] = "mtp"
    return ours
