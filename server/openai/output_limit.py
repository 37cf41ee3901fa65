"""How many tokens a request may generate: its own limit, the server's default and its ceiling."""

from engine_adapter.seam.text import clip
from server.errors import InvalidField
from server.openai.prompts import check_max_tokens
from server.state import Runtime


def output_limit(
    runtime: Runtime,
    prompt_tokens: int,
    given: int | None,
    param: str,
    default: int | None = None,
) -> int | None:
    """The most tokens that a choice may generate; `None` is up to the end of the context.

    A request's own limit is never changed. What the server chooses for a request without one is
    also cut to the ceiling and to the rest of the context.

    Args:
        given: the request's limit, in its field `param`.
        default: the endpoint's limit of a request without one; `None` is `default_max_tokens`.

    Raises:
        InvalidField: `given` is above `max_output_tokens`, or does not fit the context.
    """
    settings, info = runtime.settings, runtime.info
    ceiling = settings.max_output_tokens
    if given is not None:
        if ceiling is not None and given > ceiling:
            message = f"{param} can be at most {ceiling} on this server, not {clip(given)}."
            raise InvalidField(param, message, "max_tokens_too_large")
        check_max_tokens(info, prompt_tokens, given, param)
        return given
    chosen = settings.default_max_tokens if default is None else default
    limits = [limit for limit in (chosen, ceiling) if limit is not None]
    return min(*limits, info.max_model_len - prompt_tokens) if limits else None
