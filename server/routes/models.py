"""`GET /v1/models`, `GET /v1/models/{id}` and `GET /version`."""

from typing import Any

from fastapi import APIRouter

from server import __version__
from server.openai.models import list_models, retrieve_model
from server.state import AnyState, ReadyState

router = APIRouter()


@router.get("/v1/models")
async def get_models(state: ReadyState) -> dict[str, Any]:
    """The names under which the target is served."""
    return list_models(state)


@router.get("/v1/models/{model_id:path}")
async def get_model(model_id: str, state: ReadyState) -> dict[str, Any]:
    """One of them; a name may hold slashes."""
    return retrieve_model(state, model_id)


@router.get("/version")
async def get_version(state: AnyState) -> dict[str, Any]:
    """Versions of the gateway and of its engine, whose own is null while it loads."""
    engine_version = None if state.loaded is None else state.loaded.info.version
    return {
        "version": __version__,
        "engine": state.settings.engine,
        "engine_version": engine_version,
    }
