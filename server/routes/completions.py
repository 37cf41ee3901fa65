"""`POST /v1/completions`."""

from fastapi import APIRouter
from fastapi.responses import Response

from server.contract.answers import generation_answers
from server.openai.completions import prepare_completion
from server.openai.respond import GenerationResponse
from server.schema.answers import ErrorResponse
from server.schema.completion_answers import Completion, CompletionChunk
from server.schema.completions import CompletionRequest
from server.state import ReadyRuntime

router = APIRouter(tags=["Completions"])


@router.post(
    "/v1/completions",
    response_model=None,
    responses=generation_answers(Completion, (CompletionChunk, ErrorResponse)),
)
async def create_completion(body: CompletionRequest, runtime: ReadyRuntime) -> Response:
    """Continues one or more prompts."""
    return GenerationResponse(runtime, await prepare_completion(runtime, body))
