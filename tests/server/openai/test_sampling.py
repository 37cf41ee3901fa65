"""The limit of reasoning: which engines have one, and beside which constraints."""

from dataclasses import replace

import pytest

from engine_adapter.seam.types import ConstraintKind, EngineInfo, ParserChoice, StructuredOutput
from server.errors import InvalidField
from server.openai.sampling import thinking_budget

WITHOUT = EngineInfo("fake", "1", "m", "m", 2048, 128, 99, 20, 5, ())
MARKS_ONLY = replace(WITHOUT, has_thinking_budget=True)
PARSER = replace(MARKS_ONLY, reasoning_parser=ParserChoice("qwen3", "named"))
JSON = StructuredOutput(ConstraintKind.JSON_OBJECT, param="response_format")


def budget(info: EngineInfo, constraint: StructuredOutput | None, asked: int | None) -> int | None:
    return thinking_budget(info, asked, constraint, "the.field")


def test_a_limit_of_reasoning_needs_an_engine_that_knows_its_end() -> None:
    assert (budget(WITHOUT, None, -1), budget(WITHOUT, None, None)) == (None, None)
    assert (budget(MARKS_ONLY, None, 0), budget(PARSER, None, 5)) == (0, 5)
    with pytest.raises(InvalidField, match=r"the\.field needs a model") as caught:
        budget(WITHOUT, None, 5)
    assert caught.value.param == "the.field"


def test_without_a_parser_a_format_would_hold_the_reasoning_too() -> None:
    assert budget(PARSER, JSON, 5) == 5
    assert budget(MARKS_ONLY, JSON, -1) is None
    with pytest.raises(InvalidField, match=r"the\.field and response_format") as caught:
        budget(MARKS_ONLY, JSON, 5)
    assert caught.value.param == "the.field"
