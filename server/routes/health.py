"""`/health` and `/ready`: what orchestrators probe."""

from fastapi import APIRouter

from server.errors import Stopping, Unavailable
from server.state import AnyState

router = APIRouter()


@router.head("/health", include_in_schema=False)
@router.get("/health")
async def health(state: AnyState) -> dict[str, str]:
    """200 while the engine lives or loads for the first time; 503 says why it does not.

    With `Retry-After` the engine is being replaced; without, the process must be restarted.
    """
    if state.startup_error is not None:
        raise Unavailable("The engine could not start.", "engine_start_failed", None)
    if failure := state.engine.failure:
        raise failure
    return {"status": "ok"}


@router.head("/ready", include_in_schema=False)
@router.get("/ready")
async def ready(state: AnyState) -> dict[str, str]:
    """200 while requests are served; 503 says why they are not."""
    await health(state)
    if state.draining:
        raise Stopping
    if not state.ready:
        raise Unavailable("The engine is still loading.", "engine_not_ready")
    return {"status": "ready"}
