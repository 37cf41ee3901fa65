"""A body's messages or text -> prompt token ids, the same for generation and for `/tokenize`."""

from collections.abc import Collection, Sequence

from engine_adapter.seam.media import MediaPrompt
from engine_adapter.seam.text import short_repr
from engine_adapter.seam.types import EngineInfo, SamplingOptions
from server.errors import InvalidField
from server.openai.chat_input import ChatPrompt
from server.rendering import Renderer
from server.schema.generation_body import GenerationBody, Prediction
from server.schema.json_values import surrogate_path
from server.state import Runtime

MAX_CHARS = 1_000_000
"""The most characters of a text that may be longer than the context, if that holds no more."""

MAX_PROMPT_PARTS = 2**22
"""Tokens and log probabilities of prompts that an answer in one piece holds: 100 MB of JSON."""


async def render_chat(renderer: Renderer, chat: ChatPrompt, max_chars: int) -> tuple[int, ...]:
    """The token ids of a chat. Raises `InvalidField`; see `Renderer.encode` for `max_chars`."""
    try:
        return await renderer.encode_chat(
            [message.for_template() for message in chat.messages],
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            add_special_tokens=chat.add_special_tokens,
            variables=chat.variables,
            tools=chat.tools,
            documents=chat.documents,
            template=chat.template,
            param=chat.names.messages,
            max_chars=max_chars,
        )
    except InvalidField as error:
        paths = (surrogate_path({name: value}) for name, value in chat.texts())
        path = next(filter(None, paths), None) if error.code is None else None
        if path is None:
            raise
        raise InvalidField(path, f"{path} contains a lone surrogate.") from None


async def render_prompt(
    runtime: Runtime, chat: ChatPrompt, max_chars: int
) -> tuple[tuple[int, ...], MediaPrompt | None]:
    """The token ids of a chat, those of its media included, and the prompt with them.

    Raises `InvalidField`, and `InvalidRequest` for media that the target's processor refuses.
    """
    sources = chat.media_sources()
    runtime.media.check(sources)
    token_ids = await render_chat(runtime.renderer, chat, max_chars)
    if not sources:
        return token_ids, None
    prompt = await runtime.media.render(token_ids, sources, chat.processor_arguments)
    return prompt.token_ids, prompt


def text_limit(renderer: Renderer, info: EngineInfo, *, is_bounded: bool) -> int:
    """The most characters of a text that is tokenized: those of a context of the longest tokens.

    Args:
        is_bounded: the text must fit the context. One that need not, since its tokens are cut off
            or only counted, may have `MAX_CHARS`, because all of it decides what is left.
    """
    of_context = info.max_model_len * renderer.longest_token
    return of_context if is_bounded else max(MAX_CHARS, of_context)


def prompt_text_limit(runtime: Runtime, body: GenerationBody) -> int:
    """The most characters of a prompt; see `text_limit`."""
    is_bounded = body.truncate_prompt_tokens is None
    return text_limit(runtime.renderer, runtime.info, is_bounded=is_bounded)


def truncated(
    body: GenerationBody,
    info: EngineInfo,
    token_ids: Sequence[int],
    max_tokens: int | None,
    *,
    has_media: bool = False,
) -> Sequence[int]:
    """A prompt without the tokens that `truncate_prompt_tokens` cuts off.

    -1 leaves as much as fits beside `max_tokens`. The last tokens stay, unless `truncation_side`
    is `right`. Raises `InvalidField` for 0, which would leave nothing, and for a prompt with
    media.
    """
    limit = body.truncate_prompt_tokens
    if limit is None:
        return token_ids
    if has_media:
        message = "truncate_prompt_tokens would cut media off; leave it out, or the media."
        raise InvalidField("truncate_prompt_tokens", message)
    if limit == 0:
        message = "truncate_prompt_tokens must be at least 1, or -1 for what fits the context."
        raise InvalidField("truncate_prompt_tokens", message)
    if limit < 0:
        limit = max(info.max_model_len - (max_tokens or 1), 1)
    return token_ids[:limit] if body.truncation_side == "right" else token_ids[-limit:]


async def text_prompt(
    renderer: Renderer,
    text: str,
    add_special_tokens: bool | None,
    max_chars: int,
) -> tuple[int, ...]:
    """The token ids of a text, with special tokens unless the client declines them.

    Raises `InvalidField`; see `Renderer.encode` for `max_chars`.
    """
    special = add_special_tokens is not False
    return await renderer.encode(text, add_special_tokens=special, max_chars=max_chars)


async def predicted_tokens(
    renderer: Renderer, info: EngineInfo, prediction: Prediction | None
) -> tuple[int, ...]:
    """The token ids of a prediction; empty without one. Raises `InvalidField`."""
    if prediction is None:
        return ()
    tokens = await renderer.encode_text(
        prediction.text,
        param="prediction.content",
        max_chars=text_limit(renderer, info, is_bounded=True),
    )
    if len(tokens) > info.max_model_len:
        message = (
            f"prediction.content has {len(tokens)} tokens; this model's maximum context length "
            f"is {info.max_model_len}."
        )
        raise InvalidField("prediction.content", message, "context_length_exceeded")
    return tokens


def check_prompt(info: EngineInfo, token_ids: Sequence[int], param: str) -> None:
    """Raises `InvalidField` for a prompt that is empty, too long or not of the vocabulary."""
    if not token_ids:
        raise InvalidField(param, f"{param} has no tokens.")
    check_token_ids(info, token_ids, param)
    if len(token_ids) >= info.max_model_len:
        message = (
            f"This model's maximum context length is {info.max_model_len} tokens, and {param} "
            f"has {len(token_ids)}, which leaves no space to generate."
        )
        raise InvalidField(param, message, "context_length_exceeded")


def check_token_ids(info: EngineInfo, token_ids: Collection[int], param: str) -> None:
    """Raises `InvalidField` for an id outside the vocabulary."""
    for token_id in (min(token_ids, default=0), max(token_ids, default=0)):
        if not 0 <= token_id < info.vocab_size:
            bounds = f"token ids are from 0 to {info.vocab_size - 1}"
            raise InvalidField(param, f"{param} contains {short_repr(token_id)}; {bounds}.")


def check_max_tokens(info: EngineInfo, prompt_tokens: int, max_tokens: int, param: str) -> None:
    """Raises `InvalidField` if prompt and generation together exceed the context."""
    remaining = info.max_model_len - prompt_tokens
    if max_tokens > remaining:
        message = (
            f"This model's maximum context length is {info.max_model_len} tokens; the prompt has "
            f"{prompt_tokens}, so {param} can be at most {remaining}, not {short_repr(max_tokens)}."
        )
        raise InvalidField(param, message, "context_length_exceeded")


def check_echo(
    prompts: Sequence[Sequence[int]], n: int, options: SamplingOptions, *, echoes: bool
) -> None:
    """Raises `InvalidField` if an answer in one piece would hold too much of its prompts.

    Args:
        prompts: token ids.
        n: choices per prompt; each of them holds its prompt.
        options: of any of the prompts.
        echoes: the choices begin with their prompts.
    """
    of_token = options.prompt_logprobs
    if of_token is None and not echoes:
        return
    parts = n * sum(map(len, prompts)) * (1 + (of_token or 0))
    if parts > MAX_PROMPT_PARTS:
        param = "echo" if echoes else "prompt_logprobs"
        message = (
            f"{param}: the answer would hold {parts} tokens and log probabilities of prompts; it "
            f"can hold {MAX_PROMPT_PARTS}. Send fewer prompts, or `stream` true."
        )
        raise InvalidField(param, message)
