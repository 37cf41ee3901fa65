"""`POST /invocations`, the route of SageMaker, as vLLM has it: a chat or a completion."""

from typing import Annotated, Any

from fastapi import APIRouter, Body
from fastapi.responses import Response
from pydantic import Discriminator, Tag

from server.contract.answers import generation_answers
from server.openai.chat import prepare_chat
from server.openai.completions import prepare_completion
from server.openai.respond import GenerationResponse
from server.schema.answers import ErrorResponse
from server.schema.chat import ChatCompletionRequest
from server.schema.chat_answers import ChatCompletion, ChatCompletionChunk
from server.schema.completion_answers import Completion, CompletionChunk
from server.schema.completions import CompletionRequest
from server.state import ReadyRuntime

router = APIRouter(tags=["Chat"])

_CHAT, _COMPLETION = "chat", "completion"


def _kind(body: Any) -> str:
    """What a body asks for: a chat has messages."""
    return _CHAT if isinstance(body, dict) and "messages" in body else _COMPLETION


Invocation = Annotated[
    Annotated[ChatCompletionRequest, Tag(_CHAT)] | Annotated[CompletionRequest, Tag(_COMPLETION)],
    Discriminator(_kind),
]
"""The body of a chat or of a completion."""


@router.post(
    "/invocations",
    response_model=None,
    responses=generation_answers(
        ChatCompletion | Completion, (ChatCompletionChunk, CompletionChunk, ErrorResponse)
    ),
)
async def invoke(body: Annotated[Invocation, Body()], runtime: ReadyRuntime) -> Response:
    """Answers a chat, or continues prompts, depending on the body."""
    if isinstance(body, ChatCompletionRequest):
        return GenerationResponse(runtime, await prepare_chat(runtime, body))
    return GenerationResponse(runtime, await prepare_completion(runtime, body))
