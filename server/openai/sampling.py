"""A body's sampling fields -> `SamplingOptions`, and how many tokens a request may generate."""

from collections.abc import Mapping

from engine_adapter.seam.text import short_repr
from engine_adapter.seam.types import (
    EngineInfo,
    RepetitionDetection,
    SamplingOptions,
    StructuredOutput,
)
from server.errors import InvalidField
from server.openai.prompts import check_max_tokens, check_token_ids
from server.schema.generation_body import GenerationBody
from server.state import Runtime

_DEFAULTS = SamplingOptions()


def sampling_options(
    body: GenerationBody,
    info: EngineInfo,
    prompt_tokens: int,
    constraint: StructuredOutput | None,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    thinking_token_budget: int | None = None,
    prompt_logprobs: int | None = None,
) -> SamplingOptions:
    """The request's sampling; fields that are not set have OpenAI's default.

    Raises `InvalidField` for values outside the engine's limits, and for a constraint beside a
    field that decides, too, where the text ends. Long because it lists every option.
    """
    _check_end(body, constraint)
    rest_of_context = info.max_model_len - prompt_tokens
    bias = {int(token_id): value for token_id, value in (body.logit_bias or {}).items()}
    _check_ids(body, info, bias)
    return SamplingOptions(
        temperature=_temperature(body),
        top_p=_or(body.top_p or None, _DEFAULTS.top_p),
        # -1 is vLLM's older spelling of "all".
        top_k=max(body.top_k or 0, 0),
        min_p=_or(body.min_p, _DEFAULTS.min_p),
        min_tokens=_min_tokens(body, max_tokens or rest_of_context),
        max_tokens=max_tokens,
        stop=tuple(body.stop or ()),
        stop_token_ids=tuple(body.stop_token_ids or ()),
        seed=body.seed,
        presence_penalty=_or(body.presence_penalty, _DEFAULTS.presence_penalty),
        frequency_penalty=_or(body.frequency_penalty, _DEFAULTS.frequency_penalty),
        repetition_penalty=_or(body.repetition_penalty, _DEFAULTS.repetition_penalty),
        thinking_token_budget=thinking_token_budget,
        repetition_detection=_repetition_detection(body),
        logit_bias=bias,
        allowed_token_ids=tuple(body.allowed_token_ids or ()),
        bad_words=tuple(body.bad_words or ()),
        structured_output=constraint,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        ignore_eos=bool(body.ignore_eos),
        skip_special_tokens=body.skip_special_tokens is not False,
        spaces_between_special_tokens=body.spaces_between_special_tokens is not False,
        include_stop_str_in_output=bool(body.include_stop_str_in_output),
    )


def _check_ids(body: GenerationBody, info: EngineInfo, bias: Mapping[int, float]) -> None:
    """Raises `InvalidField` for a token id outside the vocabulary."""
    check_token_ids(info, body.stop_token_ids or (), "stop_token_ids")
    check_token_ids(info, tuple(bias), "logit_bias")
    check_token_ids(info, body.allowed_token_ids or (), "allowed_token_ids")


def check_logprobs(info: EngineInfo, logprobs: int | None, param: str) -> None:
    """Raises `InvalidField` for more alternatives per token than the engine returns."""
    if logprobs is not None and logprobs > info.max_logprobs:
        raise InvalidField(param, f"{param} can be at most {info.max_logprobs}, not {logprobs}.")


def _check_end(body: GenerationBody, constraint: StructuredOutput | None) -> None:
    """A constraint decides where the text ends, so other fields must not."""
    if constraint is None:
        return
    for name in ("ignore_eos", "min_tokens"):
        if getattr(body, name):
            raise InvalidField(name, f"{name} and {constraint.param} exclude each other.")


def thinking_budget(
    info: EngineInfo, budget: int | None, constraint: StructuredOutput | None, param: str
) -> int | None:
    """The limit of the reasoning, from the field `param`; -1 is none.

    Raises `InvalidField` if the engine has none, or has no parser: then a constraint holds the
    reasoning too, and excludes its end.
    """
    if budget is None or budget == -1:
        return None
    if constraint is not None and info.has_thinking_budget and info.reasoning_parser.name is None:
        message = (
            f"{param} and {constraint.param} exclude each other on a server without a reasoning "
            "parser."
        )
        raise InvalidField(param, message)
    if not info.has_thinking_budget:
        message = (
            f"{param} needs a model whose reasoning begins and ends with a token that the server's "
            "reasoning parser knows."
        )
        raise InvalidField(param, message, "unsupported_parameter")
    return budget


def _repetition_detection(body: GenerationBody) -> RepetitionDetection | None:
    repetition = body.repetition_detection
    return None if repetition is None else repetition.detection()


def _min_tokens(body: GenerationBody, limit: int) -> int:
    min_tokens = body.min_tokens or 0
    if min_tokens > limit:
        message = f"min_tokens is {min_tokens}, but at most {limit} tokens can be generated."
        raise InvalidField("min_tokens", message)
    return min_tokens


def _temperature(body: GenerationBody) -> float:
    """0 for a `top_p` of 0, which OpenAI accepts: only the likeliest token is left."""
    return 0.0 if body.top_p == 0 else _or(body.temperature, _DEFAULTS.temperature)


def _or(value: float | None, default: float) -> float:
    return default if value is None else value


def output_limit(
    runtime: Runtime,
    prompt_tokens: int,
    requested: int | None,
    param: str,
    default: int | None = None,
) -> int | None:
    """The most tokens that a choice may generate; `None` is up to the end of the context.

    A request's own limit is never changed. What the server chooses for a request without one is
    also cut to the ceiling and to the rest of the context.

    Args:
        requested: the request's limit, in its field `param`.
        default: the endpoint's limit of a request without one; `None` is `default_max_tokens`.

    Raises:
        InvalidField: `requested` is above `max_output_tokens`, or does not fit the context.
    """
    settings, info = runtime.settings, runtime.info
    ceiling = settings.max_output_tokens
    if requested is not None:
        if ceiling is not None and requested > ceiling:
            message = (
                f"{param} can be at most {ceiling} on this server, not {short_repr(requested)}."
            )
            raise InvalidField(param, message, "max_tokens_too_large")
        check_max_tokens(info, prompt_tokens, requested, param)
        return requested
    default_limit = settings.default_max_tokens if default is None else default
    limits = [limit for limit in (default_limit, ceiling) if limit is not None]
    return min(*limits, info.max_model_len - prompt_tokens) if limits else None
