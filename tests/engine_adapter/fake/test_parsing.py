"""The fake engine's parsers, with deltas of every size."""

import pytest

from engine_adapter.fake.parsing import checked, parsing
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.message_parts import AssistantMessage, ReasoningPiece, ToolCall, assemble
from engine_adapter.seam.parsing import ParsingRequest
from engine_adapter.seam.types import Delta, FinishReason

TOOLS = ({"type": "function", "function": {"name": "f"}},)
BOTH = EngineConfig("m", "m", tool_call_parser="hermes", reasoning_parser="deepseek_r1")
TEXT = (
    "<think>1 < 2 <b></think>So <i>: "
    '<tool_call>{"name": "f", "arguments": {"a": "<"}}</tool_call>'
    '<tool_call>{"name": "f", "arguments": {}}</tool_call> <'
)


def message(config: EngineConfig, size: int, *, tools: bool = True) -> AssistantMessage:
    made = parsing(config, ParsingRequest((1,), TOOLS if tools else ()))
    assert made is not None
    parser = made.new_parser()
    parts = [TEXT[i : i + size] for i in range(0, len(TEXT), size)]
    pieces = [piece for part in parts for piece in parser.read(Delta(part, (1,)))]
    pieces += parser.read(Delta("", (2,), finish_reason=FinishReason.STOP))
    got = assemble(pieces)
    if size == len(TEXT):
        assert pieces
    return got


@pytest.mark.parametrize("size", [1, 2, 5, 17, len(TEXT)])
def test_reasoning_calls_and_text_are_told_apart(size: int) -> None:
    got = message(BOTH, size)
    assert (got.reasoning, got.text) == ("1 < 2 <b>", "So <i>:  <")
    assert [(call.name, call.arguments) for call in got.calls] == [("f", '{"a": "<"}'), ("f", "{}")]
    assert isinstance(got.calls[0], ToolCall)
    without = message(BOTH, size, tools=False)
    assert without.calls == ()
    assert without.text == TEXT.partition("</think>")[2]
    only_calls = message(EngineConfig("m", "m", tool_call_parser="hermes"), size)
    assert (only_calls.reasoning, len(only_calls.calls)) == ("", 2)
    assert only_calls.text.startswith("<think>1 < 2 <b></think>So")


def test_what_is_held_back_comes_with_the_end() -> None:
    made = parsing(BOTH, ParsingRequest((1,)))
    assert made is not None
    parser = made.new_parser()
    assert parser.read(Delta("<think>a<", (1, 2))) == [ReasoningPiece("a")]
    assert parser.read(Delta("", (3,), finish_reason=FinishReason.LENGTH)) == [ReasoningPiece("<")]
    assert parser.num_reasoning_tokens == 2


def test_without_parsers_or_tools_there_is_nothing_to_tell_apart() -> None:
    assert parsing(EngineConfig("m", "m"), ParsingRequest((1,), TOOLS)) is None
    only_calls = EngineConfig("m", "m", tool_call_parser="hermes")
    assert parsing(only_calls, ParsingRequest((1,))) is None


@pytest.mark.parametrize("setting", ["tool_call_parser", "reasoning_parser"])
def test_an_unknown_parser_is_refused(setting: str) -> None:
    assert checked(BOTH) is BOTH
    with pytest.raises(EngineConfigError) as caught:
        checked(EngineConfig("m", "m", **{setting: "nope"}))  # type: ignore[arg-type]
    assert caught.value.setting == setting


def test_without_a_name_it_is_the_parser_of_scripted_calls_alone() -> None:
    config = checked(EngineConfig("m", "m", tool_call_parser="auto", reasoning_parser="auto"))
    assert (config.tool_call_parser, config.reasoning_parser) == ("hermes", None)


def test_a_call_that_is_no_call_stays_text() -> None:
    made = parsing(BOTH, ParsingRequest((1,), TOOLS))
    assert made is not None
    for broken in ("nope", "[]", "{}", '{"name": "f"}'):
        parser = made.new_parser()
        text = f"<tool_call>{broken}</tool_call> and more"
        got = assemble(parser.read(Delta(text, (1,))))
        assert (got.text, got.calls) == (text, ())
        assert parser.failure is not None
        assert assemble(parser.read(Delta("<tool_call>", (1,)))).text == "<tool_call>"
