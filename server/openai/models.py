"""The served names in the format of OpenAI's model objects: the target's and its adapters'."""

from typing import Any

from engine_adapter.seam.text import clip
from engine_adapter.seam.types import LoraAdapter
from server.errors import NotFound
from server.state import Runtime


def list_models(runtime: Runtime) -> dict[str, Any]:
    """All served names."""
    data = [_target(runtime, name) for name in runtime.settings.served_model_name]
    data += [adapter_model(runtime, adapter) for adapter in runtime.engine.lora_adapters]
    return {"object": "list", "data": data}


def retrieve_model(runtime: Runtime, name: str) -> dict[str, Any]:
    """One served name. Raises `NotFound`."""
    adapter = find_adapter(runtime, name)
    return _target(runtime, name) if adapter is None else adapter_model(runtime, adapter)


def find_adapter(runtime: Runtime, name: str) -> LoraAdapter | None:
    """The adapter of a served name; `None` is the target itself. Raises `NotFound`."""
    served = runtime.settings.served_model_name
    if name in served:
        return None
    adapters = runtime.engine.lora_adapters
    for adapter in adapters:
        if adapter.name == name:
            return adapter
    names = ", ".join([*served, *(adapter.name for adapter in adapters)])
    message = f"The model {clip(name)} does not exist; available: {names}."
    raise NotFound(message, param="model", code="model_not_found")


def adapter_model(runtime: Runtime, adapter: LoraAdapter) -> dict[str, Any]:
    """The model object of an adapter."""
    parent = runtime.settings.served_model_name[0]
    return _model(runtime, adapter.name, root=adapter.path, parent=parent)


def _target(runtime: Runtime, name: str) -> dict[str, Any]:
    return _model(runtime, name, root=runtime.info.model, parent=None)


def _model(runtime: Runtime, name: str, *, root: str, parent: str | None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(runtime.started_at),
        "owned_by": "specgate",
        "root": root,
        "parent": parent,
        "max_model_len": runtime.info.max_model_len,
    }
