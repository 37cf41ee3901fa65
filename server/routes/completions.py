"""`POST /v1/completions`."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.dependencies import ReadyState
from server.routes.answer import respond
from server.schema.completions import CompletionRequest
from server.serving.completions import prepare_completion

router = APIRouter()


@router.post("/v1/completions", response_model=None)
async def create_completion(
    request: Request, body: CompletionRequest, state: ReadyState
) -> Response:
    """Continues one or more prompts."""
    return await respond(request, state, await prepare_completion(state, body))
