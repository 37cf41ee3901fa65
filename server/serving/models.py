"""The served names, in the shape of OpenAI's model objects."""

from typing import Any

from server.dependencies import State
from server.errors import NotFound, clip


def list_models(state: State) -> dict[str, Any]:
    """All served names."""
    data = [_model(state, name) for name in state.settings.served_model_name]
    return {"object": "list", "data": data}


def retrieve_model(state: State, name: str) -> dict[str, Any]:
    """One served name. Raises `NotFound`."""
    if name not in state.settings.served_model_name:
        raise model_not_found(state, name)
    return _model(state, name)


def model_not_found(state: State, name: str) -> NotFound:
    """The error for a name that is not served."""
    names = ", ".join(state.settings.served_model_name)
    message = f"The model {clip(name)} does not exist; there is {names}."
    return NotFound(message, param="model", code="model_not_found")


def _model(state: State, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": int(state.loaded_at),
        "owned_by": "specgate",
        "root": state.info.model,
        "parent": None,
        "max_model_len": state.info.max_model_len,
    }
