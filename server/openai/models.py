"""The served names in the format of OpenAI's model objects: the target's and its adapters'."""

from dataclasses import dataclass, replace
from typing import Any

from engine_adapter.policies.names import AUTO
from engine_adapter.seam.text import short_repr
from engine_adapter.seam.types import NONE, LoraAdapter
from server.control.method_names import MethodRequest, SelectionError
from server.control.switching.selection import resolve
from server.errors import NotFound
from server.state import Runtime


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What a served name stands for.

    Attributes:
        name: without a proposer.
        adapter: `None` is the target itself.
        proposer: of `NAME:PROPOSER`, a proposer, a policy or `none`; `None` if the name has none.
    """

    name: str
    adapter: LoraAdapter | None
    proposer: str | None = None


def list_models(runtime: Runtime) -> dict[str, Any]:
    """All served names; with `--list-proposers-as-models` those with a proposer, too."""
    names = _names(runtime)
    if runtime.settings.list_proposers_as_models:
        proposers = [*runtime.loaded_proposers().names, AUTO, NONE]
        names += [f"{name}:{proposer}" for name in names for proposer in proposers]
    return {"object": "list", "data": [retrieve_model(runtime, name) for name in names]}


def retrieve_model(runtime: Runtime, name: str) -> dict[str, Any]:
    """One served name. Raises `NotFound`."""
    model = find_model(runtime, name)
    if model.adapter is not None:
        return adapter_model(runtime, model.adapter, name)
    return _model(runtime, name, root=runtime.info.model, parent=None)


def find_model(runtime: Runtime, name: str) -> ServedModel:
    """What a served name stands for, which `:PROPOSER` may follow. Raises `NotFound`."""
    model = _served(runtime, name)
    if model is not None:
        return model
    base, _, proposer = name.rpartition(":")
    model = _served(runtime, base)
    if model is not None and _is_method(runtime, proposer):
        return replace(model, proposer=proposer)
    names = ", ".join(_names(runtime))
    message = (
        f"The model {short_repr(name)} does not exist; available: {names}, each also as "
        "NAME:PROPOSER."
    )
    raise NotFound(message, param="model", code="model_not_found")


def _names(runtime: Runtime) -> list[str]:
    adapters = runtime.engine.lora_adapters
    return [*runtime.settings.served_model_name, *(adapter.name for adapter in adapters)]


def _served(runtime: Runtime, name: str) -> ServedModel | None:
    if name in runtime.settings.served_model_name:
        return ServedModel(name, None)
    for adapter in runtime.engine.lora_adapters:
        if adapter.name == name:
            return ServedModel(name, adapter)
    return None


def _is_method(runtime: Runtime, name: str) -> bool:
    """Whether a request can select the proposer or policy of this name."""
    try:
        resolve(MethodRequest(name, is_named=True), runtime.loaded_proposers())
    except SelectionError:
        return False
    return True


def adapter_model(
    runtime: Runtime, adapter: LoraAdapter, name: str | None = None
) -> dict[str, Any]:
    """The model object of an adapter, by default under its own name."""
    parent = runtime.settings.served_model_name[0]
    return _model(runtime, name or adapter.name, root=adapter.path, parent=parent)


def _model(runtime: Runtime, name: str, *, root: str, parent: str | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(runtime.started_at),
        "owned_by": "specgate",
        "root": root,
        "parent": parent,
        "max_model_len": runtime.info.max_model_len,
        "tool_call_parser": runtime.info.tool_call_parser.name,
        "reasoning_parser": runtime.info.reasoning_parser.name,
    }
