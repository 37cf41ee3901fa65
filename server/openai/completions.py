"""`/v1/completions`: from the body to a prepared request, and the shape of a choice."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from engine_adapter.seam.types import Delta, FinishReason, SamplingOptions, TokenLogprob
from server.errors import InvalidField
from server.fill_in import FillInTokens
from server.openai.body_checks import check_choices, check_enforced, check_generation_body
from server.openai.choices import ChoiceShape, ChoiceState
from server.openai.logprobs import CompletionLogprobs
from server.openai.prompts import (
    check_prompt,
    predicted_tokens,
    prompt_text_limit,
    text_prompt,
    truncated,
)
from server.openai.request import PreparedRequest, answer_options, new_request_id
from server.openai.sampling import (
    check_logprobs,
    output_limit,
    sampling_options,
    thinking_budget,
)
from server.rendering import Renderer, check_chars
from server.schema.completions import CompletionRequest, Prompt
from server.state import Runtime

DEFAULT_MAX_TOKENS = 16
"""OpenAI's default; less if the context ends before."""


async def prepare_completion(runtime: Runtime, body: CompletionRequest) -> PreparedRequest:
    """Checks and renders a completion. Raises `ApiError`."""
    checked = check_generation_body(runtime, body)
    info, renderer = runtime.info, runtime.renderer
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise InvalidField("best_of", "best_of must be equal to n.")
    if body.max_tokens == 0 and not body.echo:
        raise InvalidField("max_tokens", "max_tokens must be at least 1, or 0 with echo.")
    check_logprobs(info, body.logprobs, "logprobs")
    check_logprobs(info, body.prompt_logprobs, "prompt_logprobs")
    check_choices(len(body.prompt), body)
    fill_in_tokens = _fill_in_tokens(renderer, body)
    max_chars = prompt_text_limit(runtime, body)
    if body.truncate_prompt_tokens is not None:
        texts = (prompt for prompt in body.prompt if isinstance(prompt, str))
        check_chars(sum(map(len, texts)), max_chars, "prompt")
    prompts: list[Sequence[int]] = []
    for text_or_ids in body.prompt:
        prompts.append(await _encode(runtime, body, text_or_ids, max_chars, fill_in_tokens))
        await asyncio.sleep(0)  # each takes milliseconds, and there can be thousands
    for prompt in prompts:
        check_prompt(info, prompt, "prompt")
    options = _options(runtime, body, [len(prompt) for prompt in prompts])
    prediction = await predicted_tokens(renderer, info, body.prediction)
    echoes = await _echoes(renderer, body, prompts) if body.echo else ()
    shape = CompletionShape(body, len(prompts), echoes)
    answer = answer_options(body, runtime.settings)
    return PreparedRequest(
        answer, checked, new_request_id("cmpl-"), prompts, options, prediction, shape
    )


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as text.

    Attributes:
        first_token, first_id: its first token, which has no log probability.
    """

    text: str
    first_token: str
    first_id: int = 0


class CompletionShape(ChoiceShape):
    """The choices of a completion.

    Args:
        echoes: one entry per prompt if the choices begin with their prompts, else empty.
    """

    has_prompts = True
    operation = object_type = "text_completion"
    chunk_object_type = "text_completion"

    def __init__(self, body: CompletionRequest, num_prompts: int, echoes: Sequence[Echo]) -> None:
        n = body.n or 1
        self._n = n
        self._has_logprobs = body.logprobs is not None
        as_ids = bool(body.return_tokens_as_token_ids)
        self._logprobs = [
            CompletionLogprobs(body.logprobs or 0, as_ids=as_ids) for _ in range(num_prompts * n)
        ]
        self._only_echo = body.max_tokens == 0
        self._echoes = echoes
        self.echoes_prompt = bool(echoes)

    def visible(self, delta: Delta) -> Delta:
        """Hides the token that the engine generates although `max_tokens` is 0."""
        if not self._only_echo:
            return delta
        reason = None if delta.finish_reason is None else FinishReason.LENGTH
        return replace(
            delta, text="", token_ids=(), logprobs=None, finish_reason=reason, stop_reason=None
        )

    def chunk_choices(self, index: int, delta: Delta, *, echo: bool) -> Sequence[dict[str, Any]]:
        """The text of a delta."""
        prompt_logprobs = delta.prompt_logprobs if echo else None
        logprobs = delta.logprobs or ()
        return (self._choice(index, delta.text, prompt_logprobs, logprobs, echo=echo),)

    def whole_choice(self, index: int, state: ChoiceState) -> dict[str, Any]:
        """The whole text."""
        prompt_logprobs = state.prompt_logprobs if self.echoes_prompt else None
        return self._choice(
            index, state.text, prompt_logprobs, state.logprobs, echo=self.echoes_prompt
        )

    def _choice(
        self,
        index: int,
        text: str,
        prompt_logprobs: Sequence[TokenLogprob | None] | None,
        logprobs: Sequence[TokenLogprob],
        *,
        echo: bool,
    ) -> dict[str, Any]:
        prompt = self._echoes[index // self._n] if echo else Echo("", "")
        shaped = None
        if self._has_logprobs and (logprobs or echo):
            tokens = [*(prompt_logprobs or ()), *logprobs]
            shaped = self._logprobs[index].shape(
                tokens, prompt.first_token, prompt.text, prompt.first_id
            )
        text = prompt.text + text
        return {"index": index, "text": text, "logprobs": shaped, "finish_reason": None}


def _options(
    runtime: Runtime, body: CompletionRequest, sizes: Sequence[int]
) -> list[SamplingOptions]:
    """The options of each prompt, of these sizes in tokens; they differ in their limit only."""
    constraint = body.structured_output()
    check_enforced(runtime.settings, constraint)
    output_limits = [
        output_limit(runtime, size, body.max_tokens, "max_tokens", DEFAULT_MAX_TOKENS)
        for size in sizes
    ]
    limits = [max(limit or 0, 1) for limit in output_limits]
    counts = [body.prompt_logprobs, body.logprobs if body.echo else None]
    shared = sampling_options(
        body,
        runtime.info,
        sizes[0],
        constraint,
        max_tokens=min(limits),
        logprobs=body.logprobs,
        thinking_token_budget=thinking_budget(
            runtime.info, body.thinking_token_budget, constraint, "thinking_token_budget"
        ),
        prompt_logprobs=max((count for count in counts if count is not None), default=None),
    )
    return [replace(shared, max_tokens=limit) for limit in limits]


async def _encode(
    runtime: Runtime,
    body: CompletionRequest,
    prompt: Prompt,
    max_chars: int,
    fill_in_tokens: FillInTokens | None,
) -> Sequence[int]:
    if isinstance(prompt, str):
        if not prompt:
            raise InvalidField("prompt", "prompt must not be empty.")
        if fill_in_tokens is not None:
            return await _filled_in(runtime.renderer, body, prompt, max_chars, fill_in_tokens)
        special = body.add_special_tokens
        prompt = list(await text_prompt(runtime.renderer, prompt, special, max_chars))
    max_tokens = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    return truncated(body, runtime.info, prompt, max_tokens)


def _fill_in_tokens(renderer: Renderer, body: CompletionRequest) -> FillInTokens | None:
    """The target's tokens for filling in; `None` without a suffix.

    Raises `InvalidField` if the target has none, or a field does not go with a suffix.
    """
    if not body.suffix:
        return None
    if renderer.fill_in_tokens is None:
        message = (
            "suffix needs a tokenizer with tokens for filling in, such as <|fim_prefix|>, and this "
            "model's has none; leave it out."
        )
        raise InvalidField("suffix", message, "unsupported_parameter")
    if body.echo or body.truncate_prompt_tokens is not None:
        field = "echo" if body.echo else "truncate_prompt_tokens"
        raise InvalidField(field, f"{field} cannot stand beside suffix; leave one of them out.")
    # With many prompts each would get a copy of the suffix, which no limit of the body bounds.
    if len(body.prompt) > 1 or not isinstance(body.prompt[0], str):
        raise InvalidField("prompt", "prompt must be one text beside suffix.")
    return renderer.fill_in_tokens


async def _filled_in(
    renderer: Renderer, body: CompletionRequest, prompt: str, max_chars: int, tokens: FillInTokens
) -> Sequence[int]:
    """The prompt and the suffix between the target's tokens for filling in."""
    first_ids: Sequence[int] = ()
    if body.add_special_tokens is not False:
        first_ids = await renderer.encode("")
    prompt_ids = await renderer.encode_text(prompt, param="prompt", max_chars=max_chars)
    suffix_ids = await renderer.encode_text(body.suffix or "", param="suffix", max_chars=max_chars)
    return [*first_ids, tokens.prefix, *prompt_ids, tokens.suffix, *suffix_ids, tokens.middle]


async def _echoes(
    renderer: Renderer, body: CompletionRequest, prompts: Sequence[Sequence[int]]
) -> tuple[Echo, ...]:
    keeps_text = body.truncate_prompt_tokens is None
    echoes = []
    for prompt, ids in zip(body.prompt, prompts, strict=True):
        text = prompt if isinstance(prompt, str) and keeps_text else await renderer.decode(ids)
        echoes.append(Echo(text, await renderer.decode(ids[:1]), ids[0]))
        await asyncio.sleep(0)
    return tuple(echoes)
