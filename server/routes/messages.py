"""`POST /v1/messages` and `/v1/messages/count_tokens`, in Anthropic's format."""

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response

from server.anthropic.message_builder import MessageBuilder
from server.anthropic.prepare import count_tokens, prepare_message
from server.contract.answers import KEY_LIMIT_ERRORS, answers, generation_answers
from server.http.headers import IGNORED_FIELDS
from server.openai.respond import GenerationResponse
from server.schema.anthropic import CountTokensRequest, MessagesRequest
from server.schema.anthropic_answers import Message, MessageEvent, TokenCount
from server.state import ReadyRuntime

router = APIRouter(tags=["Messages"])


@router.post(
    "/v1/messages",
    response_model=None,
    responses=generation_answers(Message, (MessageEvent,)),
)
async def create_message(body: MessagesRequest, runtime: ReadyRuntime) -> Response:
    """Answers a conversation."""
    return GenerationResponse(runtime, await prepare_message(runtime, body), MessageBuilder)


@router.post(
    "/v1/messages/count_tokens",
    response_model=None,
    responses=answers(
        TokenCount,
        headers=(IGNORED_FIELDS,),
        errors={404: "model_not_found", **KEY_LIMIT_ERRORS},
    ),
)
async def count_message_tokens(body: CountTokensRequest, runtime: ReadyRuntime) -> Response:
    """The tokens of a conversation."""
    count, checked = await count_tokens(runtime, body)
    return JSONResponse({"input_tokens": count}, headers=checked.headers())
