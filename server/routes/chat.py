"""`POST /v1/chat/completions`."""

from fastapi import APIRouter
from fastapi.responses import Response

from server.openai.chat import prepare_chat
from server.openai.respond import GenerationResponse
from server.schema.chat import ChatCompletionRequest
from server.state import ReadyRuntime

router = APIRouter()


@router.post("/v1/chat/completions", response_model=None)
async def create_chat_completion(body: ChatCompletionRequest, runtime: ReadyRuntime) -> Response:
    """Answers a chat."""
    return GenerationResponse(runtime, await prepare_chat(runtime, body))
