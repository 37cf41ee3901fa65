"""`/metrics`: the registry, in Prometheus' text format or as OpenMetrics."""

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder

from server.dependencies import AnyState

router = APIRouter()


@router.get("/metrics")
def metrics(request: Request, state: AnyState) -> Response:
    """Every series; not a coroutine, since encoding a large registry would hold up streams."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(state.registry), media_type=content_type)
