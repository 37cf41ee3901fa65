"""`/v1/chat/completions`: from the body to an answer."""

from typing import Any

from engine_adapter.types import Delta
from server.errors import InvalidField
from server.openai.logprobs import chat_logprobs
from server.openai.prompts import chat_prompt, predicted_tokens
from server.openai.request import Prepared, accept, check_max_tokens, check_prompt
from server.openai.response import Answer
from server.openai.sampling import check_logprobs, sampling_options
from server.openai.usage import Tally
from server.schema.chat import ChatCompletionRequest
from server.state import State


async def prepare_chat(state: State, body: ChatCompletionRequest) -> "ChatAnswer":
    """Checks and renders a chat. Raises `ApiError`."""
    accepted = accept(state, body)
    info = state.info
    num_top = _top_logprobs(body)
    check_logprobs(info, num_top, "top_logprobs")
    prompt = await chat_prompt(state.renderer, body.messages, body)
    check_prompt(info, prompt, "messages")
    max_tokens, param = _max_tokens(body)
    if max_tokens is not None:
        check_max_tokens(info, len(prompt), max_tokens, param)
    options = sampling_options(body, info, len(prompt), max_tokens=max_tokens, logprobs=num_top)
    prediction = await predicted_tokens(state.renderer, info, body.prediction)
    prepared = Prepared(body, accepted, "chatcmpl", [prompt], [options], prediction)
    return ChatAnswer(state, prepared, num_top)


class ChatAnswer(Answer):
    """The answer to a chat."""

    kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, state: State, prepared: Prepared, num_top: int | None) -> None:
        super().__init__(state, prepared)
        self._num_top = num_top

    def _opening(self, index: int) -> dict[str, Any]:
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def _part(self, index: int, delta: Delta, *, echo: bool) -> dict[str, Any]:
        logprobs = None
        if self._num_top is not None and delta.logprobs is not None:
            logprobs = chat_logprobs(delta.logprobs, self._num_top)
        content = {"content": delta.text} if delta.text or delta.finish_reason is None else {}
        return {"index": index, "delta": content, "logprobs": logprobs, "finish_reason": None}

    def _choice(self, index: int, tally: Tally) -> dict[str, Any]:
        logprobs = None
        if self._num_top is not None:
            logprobs = chat_logprobs(tally.logprobs, self._num_top)
        message = {"role": "assistant", "content": tally.text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs}


def _top_logprobs(body: ChatCompletionRequest) -> int | None:
    """How many alternatives per token; `None` if no log probabilities are asked for."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidField("top_logprobs", "top_logprobs needs `logprobs` to be true.")
    return None


def _max_tokens(body: ChatCompletionRequest) -> tuple[int | None, str]:
    """The limit and the field that it came from; `None` is up to the context's end."""
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        message = "max_tokens and max_completion_tokens are both given and differ; send one."
        raise InvalidField("max_completion_tokens", message)
    return (old, "max_tokens") if new is None else (new, "max_completion_tokens")
