"""`/v1/messages`: from the body to a prepared request, and the number of a prompt's tokens."""

from server.anthropic.message_input import count_prompt, message_input
from server.openai.body_checks import check_body
from server.openai.chat import prepare_input
from server.openai.prompts import render_chat, text_limit
from server.openai.request import PreparedRequest
from server.schema.anthropic import CountTokensRequest, MessagesRequest
from server.state import Runtime


async def prepare_message(runtime: Runtime, body: MessagesRequest) -> PreparedRequest:
    """Checks and renders a message. Raises `ApiError`."""
    return await prepare_input(runtime, body, message_input(body), "msg_")


async def count_tokens(runtime: Runtime, body: CountTokensRequest) -> int:
    """The tokens of a prompt. Raises `ApiError`."""
    check_body(runtime, body)
    max_chars = text_limit(runtime.renderer, runtime.info, is_bounded=False)
    return len(await render_chat(runtime.renderer, count_prompt(body), max_chars))
