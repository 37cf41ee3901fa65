"""`POST /v1/chat/completions`, and `/v1/chat/completions/batch`, which vLLM has."""

from fastapi import APIRouter
from fastapi.responses import Response

from server.contract.answers import generation_answers
from server.openai.chat import prepare_chat, prepare_chats
from server.openai.respond import GenerationResponse
from server.schema.answers import ErrorResponse
from server.schema.chat import ChatBatchRequest, ChatCompletionRequest
from server.schema.chat_answers import ChatCompletion, ChatCompletionChunk
from server.state import ReadyRuntime

router = APIRouter(tags=["Chat"])


@router.post(
    "/v1/chat/completions",
    response_model=None,
    responses=generation_answers(ChatCompletion, (ChatCompletionChunk, ErrorResponse)),
)
async def create_chat_completion(body: ChatCompletionRequest, runtime: ReadyRuntime) -> Response:
    """Answers a chat."""
    return GenerationResponse(runtime, await prepare_chat(runtime, body))


@router.post(
    "/v1/chat/completions/batch",
    response_model=None,
    responses=generation_answers(ChatCompletion, (ChatCompletionChunk, ErrorResponse)),
)
async def create_chat_batch(body: ChatBatchRequest, runtime: ReadyRuntime) -> Response:
    """Answers several chats with the same options: choice i of chat c has the index c * n + i."""
    return GenerationResponse(runtime, await prepare_chats(runtime, body))
