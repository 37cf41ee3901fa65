"""`/health`, `/ping` and `/ready`, the probes of orchestrators, and `/load`, that of routers."""

from typing import Any

from fastapi import APIRouter

from server.contract.answers import answers
from server.errors import Stopping, Unavailable
from server.schema.admin import engine_state
from server.schema.answers import Health, Readiness, ServerLoad
from server.state import AnyState, AppState, StartedRuntime

router = APIRouter(tags=["Server"])

_OF_HEALTH = answers(Health, errors={503: "engine_start_failed, engine_dead"})


@router.head("/ping", include_in_schema=False)
@router.get(
    "/ping",
    operation_id="ping",
    response_model=None,
    responses=_OF_HEALTH,
)
@router.head("/health", include_in_schema=False)
@router.get(
    "/health",
    operation_id="get_health",
    response_model=None,
    responses=_OF_HEALTH,
)
async def health(state: AnyState) -> dict[str, Any]:
    """Says 200 while the engine is alive or loads for the first time; else 503 with the reason.

    With `Retry-After` the engine is being replaced; without it the process must be restarted.
    `/ping` is the same under SageMaker's name, as in vLLM.
    """
    if state.startup_error is not None:
        raise Unavailable("The engine could not start.", "engine_start_failed", None)
    if failure := state.engine.failure:
        raise failure
    return {"status": "ok", **_engines(state)}


@router.head("/ready", include_in_schema=False)
@router.get(
    "/ready",
    operation_id="get_readiness",
    response_model=None,
    responses=answers(
        Readiness, errors={503: "engine_not_ready, engine_start_failed, engine_dead, stopping"}
    ),
)
async def ready(state: AnyState) -> dict[str, Any]:
    """Says 200 while requests should be sent here; else 503 with the reason."""
    await health(state)
    if state.leaving:
        raise Stopping
    if not state.ready:
        raise Unavailable("The engine is still loading.", "engine_not_ready")
    return {"status": "ready", **_engines(state)}


@router.get("/load", operation_id="get_load", response_model=None, responses=answers(ServerLoad))
async def load(runtime: StartedRuntime) -> dict[str, int]:
    """The requests that generate or wait, for routers that send a request where there are fewest.

    The name and the field are vLLM's.
    """
    running = len(runtime.switcher.in_flight)
    return {"server_load": running + runtime.admission.num_queued}


def _engines(state: AppState) -> dict[str, list[str]]:
    """The state of each engine, if there are several."""
    failures = state.engine.failures
    return {"engines": [engine_state(failure) for failure in failures]} if failures[1:] else {}
