"""The routes that load and unload LoRA adapters, under vLLM's names; admin ones."""

from typing import Any

from fastapi import APIRouter, Request

from engine_adapter.errors import EngineConfigError
from server.errors import InvalidField
from server.http.auth import caller
from server.openai.models import adapter_model
from server.schema.lora import LoadAdapterRequest, UnloadAdapterRequest
from server.state import ReadyState

router = APIRouter()


@router.post("/v1/load_lora_adapter")
async def load_lora_adapter(
    request: Request, body: LoadAdapterRequest, state: ReadyState
) -> dict[str, Any]:
    """Loads an adapter while requests are served; from here on it can be asked for."""
    asker = caller(request.headers, request.client, state.settings)
    try:
        adapter = await state.adapters.load(body.lora_name, body.lora_path, asker)
    except EngineConfigError as error:
        raise InvalidField(error.field, error.message, error.code) from None
    return adapter_model(state, adapter)


@router.post("/v1/unload_lora_adapter")
async def unload_lora_adapter(
    request: Request, body: UnloadAdapterRequest, state: ReadyState
) -> dict[str, Any]:
    """Unloads an adapter that no request uses."""
    asker = caller(request.headers, request.client, state.settings)
    await state.adapters.unload(body.lora_name, asker)
    return {"id": body.lora_name, "object": "model", "deleted": True}
