"""A body's sampling fields become the engine's options."""

from dataclasses import replace

import pytest

from engine_adapter.seam.types import ConstraintKind, EngineInfo, ParserChoice, StructuredOutput
from server.errors import InvalidField
from server.openai.sampling import sampling_options
from server.schema.chat import ChatCompletionRequest

WITHOUT = EngineInfo("fake", "1", "m", "m", 2048, 128, 99, 20, 5, ())
MARKS_ONLY = replace(WITHOUT, has_thinking_budget=True)
PARSER = replace(MARKS_ONLY, reasoning_parser=ParserChoice("qwen3", "named"))
JSON = StructuredOutput(ConstraintKind.JSON_OBJECT, param="response_format")


def budget(info: EngineInfo, constraint: StructuredOutput | None, requested: int) -> int | None:
    """The engine's limit of reasoning for a chat that asks for one."""
    body = ChatCompletionRequest(messages=[{"role": "user", "content": "a"}])  # type: ignore[list-item]
    return sampling_options(
        body,
        info,
        9,
        constraint,
        max_tokens=None,
        logprobs=None,
        thinking_token_budget=requested,
    ).thinking_token_budget


def test_a_limit_of_reasoning_needs_an_engine_that_knows_its_end() -> None:
    assert budget(WITHOUT, None, -1) is None
    assert (budget(MARKS_ONLY, None, 0), budget(PARSER, None, 5)) == (0, 5)
    with pytest.raises(InvalidField, match="parser knows"):
        budget(WITHOUT, None, 5)


def test_without_a_parser_a_format_would_hold_the_reasoning_too() -> None:
    assert budget(PARSER, JSON, 5) == 5
    assert budget(MARKS_ONLY, JSON, -1) is None
    with pytest.raises(InvalidField, match="thinking_token_budget and response_format"):
        budget(MARKS_ONLY, JSON, 5)
