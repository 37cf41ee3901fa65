"""`/metrics`: the registry, in Prometheus' text format or as OpenMetrics."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi.responses import PlainTextResponse
from prometheus_client import exposition
from prometheus_client.openmetrics import exposition as openmetrics

from server.contract.answers import answers
from server.state import AnyState, AppState

OPENMETRICS = "application/openmetrics-text"

router = APIRouter(tags=["Server"])


async def with_engine(state: AnyState) -> AppState:
    """The state, after the gauges of the engine and of the tasks were set.

    A coroutine, because the engine and the tasks are read on their own thread only.
    """
    state.metrics.set_engine(
        up=state.engine_up,
        given_up=state.engine_given_up,
        quarantined=state.runtime.loaded_proposers().quarantined if state.runtime else (),
    )
    state.metrics.connections.tasks.set(len(asyncio.all_tasks()))
    return state


@router.get(
    "/metrics",
    operation_id="get_metrics",
    response_class=PlainTextResponse,
    responses=answers(texts=(OPENMETRICS,)),
)
def metrics(
    request: Request,
    state: Annotated[AppState, Depends(with_engine)],
    names: Annotated[list[str] | None, Query(alias="name[]")] = None,
) -> Response:
    """Prometheus' series: every one, or those with the given names."""
    # Not a coroutine: encoding a large registry would delay streams. The library's own negotiation
    # writes `vllm_` instead of `vllm:` in OpenMetrics unless the scraper accepts UTF-8 names. The
    # names here need no escaping.
    registry = state.registry.restricted_registry(names) if names else state.registry
    if OPENMETRICS in request.headers.get("accept", ""):
        body = openmetrics.generate_latest(  # type: ignore[no-untyped-call]
            registry, openmetrics.ALLOWUTF8
        )
        return Response(body, media_type=openmetrics.CONTENT_TYPE_LATEST)
    body = exposition.generate_latest(registry)
    return Response(body, media_type=exposition.CONTENT_TYPE_PLAIN_0_0_4)
