"""`/tokenize` and `/detokenize`, in vLLM's format."""

from collections.abc import Sequence
from typing import Any

from server.errors import InvalidField
from server.openai.chat_input import chat_prompt
from server.openai.field_names import CHAT
from server.openai.function_tools import chat_paths, checked_tools
from server.openai.prompts import check_token_ids, render_prompt, text_limit, text_prompt
from server.schema.chat import DetokenizeRequest, TokenizeRequest
from server.state import Runtime


async def tokenize(runtime: Runtime, body: TokenizeRequest) -> dict[str, Any]:
    """The token ids of a text or a chat. Raises `InvalidField`."""
    token_ids = await _token_ids(runtime, body)
    return {
        "count": len(token_ids),
        "max_model_len": runtime.info.max_model_len,
        "tokens": list(token_ids),
        "token_strs": await runtime.renderer.tokens(token_ids) if body.return_token_strs else None,
    }


async def detokenize(runtime: Runtime, body: DetokenizeRequest) -> dict[str, Any]:
    """The text of token ids. Raises `InvalidField`."""
    check_token_ids(runtime.info, body.tokens, "tokens")
    return {"prompt": await runtime.renderer.decode(body.tokens)}


async def _token_ids(runtime: Runtime, body: TokenizeRequest) -> Sequence[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidField("prompt", "Send either prompt or messages.")
    renderer = runtime.renderer
    max_chars = text_limit(renderer, runtime.info, is_bounded=False)
    if body.prompt is not None:
        return await text_prompt(renderer, body.prompt, body.add_special_tokens, max_chars)
    functions = [tool.function for tool in body.tools or ()]
    tools = checked_tools(functions, chat_paths(len(functions)), None, CHAT)
    chat = chat_prompt(body.messages or (), body, tools)
    token_ids, _ = await render_prompt(runtime, chat, max_chars)
    return token_ids
