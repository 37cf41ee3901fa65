"""The fields of a response that repeat its request, and its usage."""

from collections.abc import Sequence
from typing import Any

from server.openai.choices import ChoiceState
from server.openai.request import AdmittedRequest
from server.openai.responses.prepare import PreparedResponse
from server.openai.usage import usage
from server.schema.base import Strict
from server.schema.responses import Reasoning


def request_fields(response: PreparedResponse) -> dict[str, Any]:
    """The request's fields, with their defaults where they are not set."""
    body, sampling = response.body, response.sampling
    reasoning = body.reasoning or Reasoning()
    choice = body.tool_choice or "auto"
    return {
        "instructions": body.instructions,
        "previous_response_id": body.previous_response_id,
        "store": response.stored,
        "background": False,
        "metadata": body.metadata or {},
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": body.max_tool_calls,
        "text": _text(response),
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


def response_usage(request: AdmittedRequest, choices: Sequence[ChoiceState]) -> dict[str, Any]:
    """The `usage` of a response. What the prefix cache keeps of a prompt is not counted."""
    figures = usage(request, choices)
    details = figures.get("completion_tokens_details", {})
    return {
        "input_tokens": figures["prompt_tokens"],
        "input_tokens_details": {"cache_write_tokens": 0, **figures["prompt_tokens_details"]},
        "output_tokens": figures["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0, **details},
        "total_tokens": figures["total_tokens"],
    }


def _text(response: PreparedResponse) -> dict[str, Any]:
    text = response.body.text
    wanted = {"type": "text"}
    if text is not None and text.format is not None:
        wanted = text.format.model_dump(by_alias=True, exclude_none=True)
    verbosity = text.verbosity if text is not None else None
    return {"format": wanted, "verbosity": verbosity or "medium"}
