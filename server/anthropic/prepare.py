"""`/v1/messages`: from the body to a prepared request, and the number of a prompt's tokens."""

from dataclasses import replace

from server.anthropic.message_input import NAMES, count_prompt, message_input
from server.openai.body_checks import CheckedBody, check_body, check_not_of_chats
from server.openai.chat import prepare_input
from server.openai.prompts import render_prompt, text_limit
from server.openai.request import PreparedRequest
from server.schema.anthropic import CountTokensRequest, MessagesRequest, Thinking
from server.schema.base import without_effect
from server.state import Runtime


async def prepare_message(runtime: Runtime, body: MessagesRequest) -> PreparedRequest:
    """Checks and renders a message. Raises `ApiError`."""
    check_not_of_chats(body, "/v1/messages")
    chat = message_input(body)
    unmet = _unmet_thinking(runtime, body.thinking)
    budget = None if NAMES.thinking_budget in unmet else chat.thinking_token_budget
    chat = replace(chat, thinking_token_budget=budget, ignored=(*chat.ignored, *unmet))
    return await prepare_input(runtime, body, chat, "msg_")


async def count_tokens(runtime: Runtime, body: CountTokensRequest) -> tuple[int, CheckedBody]:
    """The tokens of a prompt, and what is ignored of its body. Raises `ApiError`."""
    checked = check_body(runtime, body)
    chat, ignored = count_prompt(body)
    ignored += _unmet_thinking(runtime, body.thinking)
    if ignored and runtime.settings.strict_fields:
        raise without_effect(ignored[0])
    max_chars = text_limit(runtime.renderer, runtime.info, is_bounded=False)
    token_ids, _ = await render_prompt(runtime, chat, max_chars)
    return len(token_ids), replace(checked, ignored=(*checked.ignored, *ignored))


def _unmet_thinking(runtime: Runtime, thinking: Thinking | None) -> tuple[str, ...]:
    """`thinking`, if it asks for reasoning by a variable that the chat template does not read.

    And its budget, if reasoning is off or the engine does not limit it: Anthropic's clients must
    send one.
    """
    if thinking is None:
        return ()
    is_on = thinking.type != "disabled"
    unmet = ("thinking",) if is_on and not runtime.renderer.mentions("enable_thinking") else ()
    if thinking.budget_tokens is None or (is_on and runtime.info.has_thinking_budget):
        return unmet
    return (*unmet, NAMES.thinking_budget)
