"""`/tokenize` and `/detokenize`, in vLLM's shapes."""

from collections.abc import Sequence
from typing import Any

from server.errors import InvalidField, clip
from server.openai.prompts import chat_prompt, text_prompt
from server.schema.tokenize import DetokenizeRequest, TokenizeRequest
from server.state import State


async def tokenize(state: State, body: TokenizeRequest) -> dict[str, Any]:
    """The token ids of a text or a chat. Raises `InvalidField`."""
    token_ids = await _token_ids(state, body)
    return {
        "count": len(token_ids),
        "max_model_len": state.info.max_model_len,
        "tokens": list(token_ids),
        "token_strs": state.renderer.tokens(token_ids) if body.return_token_strs else None,
    }


def detokenize(state: State, body: DetokenizeRequest) -> dict[str, Any]:
    """The text of token ids. Raises `InvalidField`."""
    size = state.info.vocab_size
    for token_id in body.tokens:
        if not 0 <= token_id < size:
            message = f"tokens holds {clip(token_id)}; token ids are from 0 to {size - 1}."
            raise InvalidField("tokens", message)
    return {"prompt": state.renderer.decode(body.tokens)}


async def _token_ids(state: State, body: TokenizeRequest) -> Sequence[int]:
    if (body.prompt is None) == (body.messages is None):
        raise InvalidField("prompt", "Send either prompt or messages.")
    if body.prompt is not None:
        return await text_prompt(state.renderer, body.prompt, body.add_special_tokens)
    return await chat_prompt(state.renderer, body.messages or (), body)
