"""The fields of a response that repeat its request."""

from typing import Any

from engine_adapter.seam.types import SamplingOptions
from server.schema.base import Strict
from server.schema.responses import Reasoning, ResponsesRequest


def request_fields(
    body: ResponsesRequest, sampling: SamplingOptions, *, stored: bool
) -> dict[str, Any]:
    """The request's fields, with their defaults where they are not set."""
    reasoning = body.reasoning or Reasoning()
    choice = body.tool_choice or "auto"
    return {
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "store": stored,
        "background": False,
        "metadata": body.metadata or {},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "text": _text(body),
        "reasoning": reasoning.model_dump(include={"effort", "summary"}),
        "tools": [tool.model_dump() for tool in body.tools or ()],
        "tool_choice": choice.model_dump() if isinstance(choice, Strict) else choice,
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "truncation": body.truncation or "disabled",
        "service_tier": "default",
        "user": body.user,
        "safety_identifier": body.safety_identifier,
        "prompt_cache_key": body.prompt_cache_key,
    }


def _text(body: ResponsesRequest) -> dict[str, Any]:
    text = body.text
    wanted = {"type": "text"}
    if text is not None and text.format is not None:
        wanted = text.format.model_dump(by_alias=True, exclude_none=True)
    verbosity = text.verbosity if text is not None else None
    return {"format": wanted, "verbosity": verbosity or "medium"}
