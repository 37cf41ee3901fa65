"""`GET /v1/models`, `GET /v1/models/{id}` and `GET /version`."""

from typing import Any

from fastapi import APIRouter

from server import __version__
from server.contract.answers import answers
from server.openai.models import list_models, retrieve_model
from server.schema.answers import Model, ModelList, Versions
from server.state import AnyState, ReadyRuntime

router = APIRouter()


@router.get(
    "/v1/models",
    tags=["Models"],
    operation_id="list_models",
    response_model=None,
    responses=answers(ModelList),
)
async def get_models(runtime: ReadyRuntime) -> dict[str, Any]:
    """The served names: the target's and its adapters'."""
    return list_models(runtime)


@router.get(
    "/v1/models/{model_id:path}",
    tags=["Models"],
    operation_id="retrieve_model",
    response_model=None,
    responses=answers(Model, errors={404: "model_not_found"}),
)
async def get_model(model_id: str, runtime: ReadyRuntime) -> dict[str, Any]:
    """One served name; it may contain slashes."""
    return retrieve_model(runtime, model_id)


@router.get("/version", tags=["Server"], response_model=None, responses=answers(Versions))
async def get_version(state: AnyState) -> dict[str, Any]:
    """The versions of the gateway and of its engine; the engine's is null while it loads."""
    engine_version = None if state.runtime is None else state.runtime.info.version
    return {
        "version": __version__,
        "engine": state.settings.engine,
        "engine_version": engine_version,
    }
