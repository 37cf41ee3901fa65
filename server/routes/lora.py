"""The admin routes that load and unload LoRA adapters, under vLLM's names."""

from typing import Any

from fastapi import APIRouter, Request

from server.contract.answers import answers
from server.http.auth import caller
from server.openai.models import adapter_model
from server.schema.admin import LoadAdapterRequest, UnloadAdapterRequest
from server.schema.answers import Model, UnloadedAdapter
from server.state import ReadyRuntime

router = APIRouter(tags=["Adapters"])


@router.post(
    "/v1/load_lora_adapter",
    response_model=None,
    responses=answers(
        Model, errors={409: "adapter_exists, no_room, lora_disabled", 503: "audit_unavailable"}
    ),
)
async def load_lora_adapter(
    request: Request, body: LoadAdapterRequest, runtime: ReadyRuntime
) -> dict[str, Any]:
    """Loads an adapter while requests are served; from then on requests can name it."""
    asker = caller(request)
    adapter = await runtime.lora_admin.load(body.lora_name, body.lora_path, asker)
    return adapter_model(runtime, adapter)


@router.post(
    "/v1/unload_lora_adapter",
    response_model=None,
    responses=answers(
        UnloadedAdapter,
        errors={
            404: "adapter_not_found",
            409: "adapter_in_use, lora_disabled",
            503: "audit_unavailable",
        },
    ),
)
async def unload_lora_adapter(
    request: Request, body: UnloadAdapterRequest, runtime: ReadyRuntime
) -> dict[str, Any]:
    """Unloads an adapter that no request uses."""
    asker = caller(request)
    await runtime.lora_admin.unload(body.lora_name, asker)
    return {"id": body.lora_name, "object": "model", "deleted": True}
