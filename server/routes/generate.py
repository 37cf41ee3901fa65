"""`POST /inference/v1/generate`, which vLLM has: token ids in, token ids out."""

from fastapi import APIRouter
from fastapi.responses import Response

from server.contract.answers import generation_answers
from server.openai.respond import GenerationResponse
from server.openai.token_generation import prepare_generation
from server.schema.answers import ErrorResponse
from server.schema.completions import GenerateRequest
from server.schema.generation_answers import Generation, GenerationChunk
from server.state import ReadyRuntime

router = APIRouter(tags=["Completions"])


@router.post(
    "/inference/v1/generate",
    response_model=None,
    responses=generation_answers(Generation, (GenerationChunk, ErrorResponse)),
)
async def generate(body: GenerateRequest, runtime: ReadyRuntime) -> Response:
    """Continues a prompt of token ids."""
    return GenerationResponse(runtime, await prepare_generation(runtime, body))
