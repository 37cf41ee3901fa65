"""`/inference/v1/generate`: token ids in, token ids out."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from engine_adapter.seam.types import Alternative, Delta, TokenLogprob
from server.errors import InvalidField
from server.openai.choices import ChoiceShape, ChoiceState
from server.openai.completions import prepare_completion
from server.openai.logprobs import LEAST_LOGPROB, chat_logprobs
from server.openai.request import PreparedRequest, new_request_id
from server.schema.completions import CompletionRequest, GenerateRequest
from server.state import Runtime


async def prepare_generation(runtime: Runtime, body: GenerateRequest) -> PreparedRequest:
    """Checks a request. Raises `ApiError`."""
    to_end = max(runtime.info.max_model_len - len(body.token_ids), 1)
    completion = _completion(body, runtime.settings.default_max_tokens or to_end)
    if completion.echo:
        message = "echo is not supported here; return_token_ids returns the prompt's ids."
        raise InvalidField("sampling_params.echo", message, "unsupported_parameter")
    try:
        prepared = await prepare_completion(runtime, completion)
    except InvalidField as error:
        raise InvalidField(_own_name(body, error.param), error.message, error.code) from error
    shape = TokensShape(completion.logprobs, has_text=body.output_mode == "text")
    return replace(prepared, id=new_request_id("gen-"), shape=shape)


def _completion(body: GenerateRequest, max_tokens: int) -> CompletionRequest:
    try:
        return body.completion(max_tokens)
    except ValidationError as error:
        detail = error.errors()[0]
        param = _own_name(body, ".".join(map(str, detail["loc"])))
        raise InvalidField(param, f"{param}: {detail['msg']}") from error


def _own_name(body: GenerateRequest, param: str | None) -> str | None:
    """The field of this body that a field of a completion comes from."""
    if param is None:
        return None
    name = param.partition(".")[0]
    if name == "prompt":
        return "token_ids"
    return param if name in body.model_fields_set else f"sampling_params.{param}"


class TokensShape(ChoiceShape):
    """The choices of a generation: token ids, and their text if it is asked for.

    Args:
        num_top: alternatives per token; `None` sends no log probabilities.
    """

    operation = "text_completion"
    object_type = "generation"
    chunk_object_type = "generation.chunk"
    is_plain = False

    def __init__(self, num_top: int | None, *, has_text: bool) -> None:
        self._num_top = num_top
        self._has_text = has_text

    def head_fields(self, response_id: str) -> dict[str, Any]:
        """The id under vLLM's name, and what the choices have."""
        return {"request_id": response_id, "output_mode": "text" if self._has_text else "tokens"}

    def chunk_choices(self, index: int, delta: Delta, *, echo: bool) -> Sequence[dict[str, Any]]:
        """The tokens of a delta. A request for an echo was refused."""
        return (self._choice(index, delta.text, delta.token_ids, delta.logprobs or ()),)

    def whole_choice(self, index: int, state: ChoiceState) -> dict[str, Any]:
        """All tokens."""
        return self._choice(index, state.text, state.token_ids, state.logprobs)

    def _choice(
        self, index: int, text: str, token_ids: Sequence[int], logprobs: Sequence[TokenLogprob]
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "token_ids": list(token_ids), "logprobs": None}
        if self._has_text:
            choice["text"] = text
        if self._num_top is not None and self._has_text:
            choice["logprobs"] = chat_logprobs(logprobs, self._num_top)
        elif self._num_top is not None:
            content = [
                {
                    **_candidate(token.actual),
                    "top_logprobs": [_candidate(top) for top in token.top[: self._num_top]],
                }
                for token in logprobs
            ]
            choice["logprobs"] = {"content": content}
        return choice | {"finish_reason": None}


def _candidate(token: Alternative) -> dict[str, Any]:
    logprob = max(token.logprob, LEAST_LOGPROB)
    return {"token_id": token.token_id, "logprob": logprob, "rank": token.rank}
