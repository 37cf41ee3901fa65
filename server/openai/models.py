"""The served names, in the shape of OpenAI's model objects: the target's, and its adapters'."""

from typing import Any

from engine_adapter.types import LoraAdapter
from server.errors import NotFound, clip
from server.state import State


def list_models(state: State) -> dict[str, Any]:
    """All served names."""
    data = [_target(state, name) for name in state.settings.served_model_name]
    data += [adapter_model(state, adapter) for adapter in state.engine.lora_adapters]
    return {"object": "list", "data": data}


def retrieve_model(state: State, name: str) -> dict[str, Any]:
    """One served name. Raises `NotFound`."""
    adapter = find_adapter(state, name)
    return _target(state, name) if adapter is None else adapter_model(state, adapter)


def find_adapter(state: State, name: str) -> LoraAdapter | None:
    """The adapter of a served name; `None` is the target itself. Raises `NotFound`."""
    served = state.settings.served_model_name
    if name in served:
        return None
    adapters = state.engine.lora_adapters
    for adapter in adapters:
        if adapter.name == name:
            return adapter
    names = ", ".join([*served, *(adapter.name for adapter in adapters)])
    message = f"The model {clip(name)} does not exist; there is {names}."
    raise NotFound(message, param="model", code="model_not_found")


def adapter_model(state: State, adapter: LoraAdapter) -> dict[str, Any]:
    """The model object of an adapter."""
    parent = state.settings.served_model_name[0]
    return _model(state, adapter.name, root=adapter.path, parent=parent)


def _target(state: State, name: str) -> dict[str, Any]:
    return _model(state, name, root=state.info.model, parent=None)


def _model(state: State, name: str, *, root: str, parent: str | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(state.loaded_at),
        "owned_by": "specgate",
        "root": root,
        "parent": parent,
        "max_model_len": state.info.max_model_len,
    }
