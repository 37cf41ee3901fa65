"""`/v1/completions`: from the body to an answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from engine_adapter.types import Delta, EngineInfo, FinishReason, SamplingOptions, TokenLogprob
from server.errors import InvalidField
from server.openai.logprobs import CompletionLogprobs
from server.openai.prompts import predicted_tokens, text_prompt
from server.openai.request import Prepared, accept, check_max_tokens, check_prompt
from server.openai.response import Answer
from server.openai.sampling import check_logprobs, sampling_options
from server.openai.usage import Tally
from server.schema.completions import MAX_PROMPTS, CompletionRequest, Prompt
from server.state import State

DEFAULT_MAX_TOKENS = 16
"""OpenAI's, shortened where the context ends before."""


async def prepare_completion(state: State, body: CompletionRequest) -> "CompletionAnswer":
    """Checks and renders a completion. Raises `ApiError`."""
    accepted = accept(state, body)
    info = state.info
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidField("best_of", "best_of is supported only where it equals n.")
    if body.max_tokens == 0 and not body.echo:
        raise InvalidField("max_tokens", "max_tokens must be at least 1, or 0 with echo.")
    check_logprobs(info, body.logprobs, "logprobs")
    prompts = [await _encode(state, body, prompt) for prompt in body.prompt]
    if len(prompts) * (body.n or 1) > MAX_PROMPTS:
        raise InvalidField("n", f"prompts times n can be at most {MAX_PROMPTS}.")
    for prompt in prompts:
        check_prompt(info, prompt, "prompt")
    options = [_options(body, info, len(prompt)) for prompt in prompts]
    prediction = await predicted_tokens(state.renderer, info, body.prediction)
    prepared = Prepared(body, accepted, "cmpl", prompts, options, prediction)
    echoes = [_text(state, prompt) for prompt in body.prompt] if body.echo else None
    return CompletionAnswer(state, prepared, body, echoes)


class CompletionAnswer(Answer):
    """The answer to a completion.

    `echoes` holds each prompt as text, where the request asks for it back.
    """

    kind = "text_completion"
    chunk_kind = "text_completion"

    def __init__(
        self,
        state: State,
        prepared: Prepared,
        body: CompletionRequest,
        echoes: Sequence[str] | None,
    ) -> None:
        super().__init__(state, prepared)
        self._renderer = state.renderer
        self._asked_logprobs = body.logprobs is not None
        self._logprobs = [
            CompletionLogprobs(body.logprobs or 0) for _ in range(prepared.num_choices)
        ]
        self._only_echo = body.max_tokens == 0
        self._echoing = echoes is not None
        self._echoes = echoes or ()

    def _seen(self, delta: Delta) -> Delta:
        if not self._only_echo:
            return delta
        # The engine generates one token at least; the request asked for none.
        reason = None if delta.finish_reason is None else FinishReason.LENGTH
        return replace(
            delta, text="", token_ids=(), logprobs=None, finish_reason=reason, stop_reason=None
        )

    def _part(self, index: int, delta: Delta, *, echo: bool) -> dict[str, Any]:
        prompt_logprobs = delta.prompt_logprobs if echo else None
        return self._text_choice(
            index, delta.text, prompt_logprobs, delta.logprobs or (), echo=echo
        )

    def _choice(self, index: int, tally: Tally) -> dict[str, Any]:
        return self._text_choice(
            index, tally.text, tally.prompt_logprobs, tally.logprobs, echo=self._echoing
        )

    def _text_choice(
        self,
        index: int,
        text: str,
        prompt_logprobs: Sequence[TokenLogprob | None] | None,
        logprobs: Sequence[TokenLogprob],
        *,
        echo: bool,
    ) -> dict[str, Any]:
        echoed, first_token = "", ""
        if echo:
            echoed = self._echoes[index // self.job.n]
            # It has no log probability, which would have brought its text.
            first_token = self._renderer.decode(self.job.requests[index].prompt_token_ids[:1])
        shaped = None
        if self._asked_logprobs and (logprobs or echo):
            tokens = [*(prompt_logprobs or ()), *logprobs]
            shaped = self._logprobs[index].shape(tokens, first_token, echoed)
        return {"index": index, "text": echoed + text, "logprobs": shaped, "finish_reason": None}


def _options(body: CompletionRequest, info: EngineInfo, prompt_tokens: int) -> SamplingOptions:
    max_tokens = body.max_tokens
    if max_tokens is None:
        max_tokens = min(DEFAULT_MAX_TOKENS, info.max_model_len - prompt_tokens)
    check_max_tokens(info, prompt_tokens, max_tokens, "max_tokens")
    return sampling_options(
        body,
        info,
        prompt_tokens,
        max_tokens=max(max_tokens, 1),
        logprobs=body.logprobs,
        prompt_logprobs=body.logprobs if body.echo else None,
    )


async def _encode(state: State, body: CompletionRequest, prompt: Prompt) -> Sequence[int]:
    if not isinstance(prompt, str):
        return prompt
    if not prompt:
        raise InvalidField("prompt", "prompt must not be empty.")
    return await text_prompt(state.renderer, prompt, body.add_special_tokens)


def _text(state: State, prompt: Prompt) -> str:
    return prompt if isinstance(prompt, str) else state.renderer.decode(prompt)
