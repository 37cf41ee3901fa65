"""`POST /v1/completions`."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.openai.completions import prepare_completion
from server.routes.respond import respond
from server.schema.completions import CompletionRequest
from server.state import ReadyState

router = APIRouter()


@router.post("/v1/completions", response_model=None)
async def create_completion(
    request: Request, body: CompletionRequest, state: ReadyState
) -> Response:
    """Continues one or more prompts."""
    return await respond(request, state, await prepare_completion(state, body))
