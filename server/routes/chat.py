"""`POST /v1/chat/completions`."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from server.openai.chat import prepare_chat
from server.routes.respond import respond
from server.schema.chat import ChatCompletionRequest
from server.state import ReadyState

router = APIRouter()


@router.post("/v1/chat/completions", response_model=None)
async def create_chat_completion(
    request: Request, body: ChatCompletionRequest, state: ReadyState
) -> Response:
    """Answers a chat."""
    return await respond(request, state, await prepare_chat(state, body))
