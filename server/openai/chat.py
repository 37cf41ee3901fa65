"""`/v1/chat/completions`: from the body to a prepared request."""

from dataclasses import replace

from server.errors import InvalidField
from server.openai.answer_overlap import earlier_overlap
from server.openai.body_checks import check_body
from server.openai.chat_shape import ChatShape
from server.openai.output_limit import output_limit
from server.openai.prompts import (
    chat_prompt,
    check_prompt,
    predicted_tokens,
    prompt_text_limit,
    template_variables,
    truncated,
)
from server.openai.request import PreparedRequest, answer_options
from server.openai.sampling import check_logprobs, sampling_options
from server.openai.tool_use import check_tool_use, tool_use
from server.schema.chat import ChatCompletionRequest
from server.state import Runtime


async def prepare_chat(runtime: Runtime, body: ChatCompletionRequest) -> PreparedRequest:
    """Checks and renders a chat. Raises `ApiError`."""
    checked = check_body(runtime, body)
    check_tool_use(runtime, body)
    info = runtime.info
    num_top = _num_top_logprobs(body)
    check_logprobs(info, num_top, "top_logprobs")
    check_logprobs(info, body.prompt_logprobs, "prompt_logprobs")
    max_tokens, param = _max_tokens(body)
    max_chars = prompt_text_limit(runtime, body)
    whole = await chat_prompt(runtime.renderer, body.messages, body, max_chars)
    expected = max_tokens or runtime.settings.default_max_tokens
    prompt = truncated(body, info, whole, expected)
    check_prompt(info, prompt, "messages")
    max_tokens = output_limit(runtime, len(prompt), max_tokens, param)
    options = sampling_options(
        body,
        info,
        len(prompt),
        max_tokens=max_tokens,
        logprobs=num_top,
        prompt_logprobs=body.prompt_logprobs,
    )
    prediction = await predicted_tokens(runtime.renderer, info, body.prediction)
    overlap = None
    if runtime.router.uses_overlap:
        overlap = await earlier_overlap(runtime.renderer, body.messages)
    use = tool_use(runtime, body, tuple(prompt), options.structured_output)
    unmet = use.unmet(strict=runtime.settings.strict_fields)
    return PreparedRequest(
        answer_options(body),
        replace(checked, ignored=(*checked.ignored, *unmet)),
        "chatcmpl-",
        [prompt],
        [use.constrained(options)],
        prediction,
        ChatShape(num_top, [use.new_reader() for _ in range(body.n or 1)]),
        overlap,
        template_variables=template_variables(body),
    )


def _num_top_logprobs(body: ChatCompletionRequest) -> int | None:
    """Alternatives per token; `None` if the client requests no log probabilities."""
    if body.logprobs:
        return body.top_logprobs or 0
    if body.top_logprobs:
        raise InvalidField("top_logprobs", "top_logprobs requires `logprobs` to be true.")
    return None


def _max_tokens(body: ChatCompletionRequest) -> tuple[int | None, str]:
    """The limit and the field that sets it; `None` is up to the end of the context."""
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        message = "max_tokens and max_completion_tokens are both given and differ; send one."
        raise InvalidField("max_completion_tokens", message)
    return (old, "max_tokens") if new is None else (new, "max_completion_tokens")
