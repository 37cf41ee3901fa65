"""Readers: forced calls, and what is left out of what an engine's parser finds."""

from collections.abc import Sequence

import pytest

from engine_adapter.seam.parsing import ParserFailure
from engine_adapter.seam.types import Delta, FinishReason
from server.openai.message_parts import (
    AssistantMessage,
    CallArguments,
    CallBegin,
    MessageReader,
    Piece,
    ReasoningPiece,
    TextPiece,
    TextReader,
    ToolCall,
    assemble,
)
from server.openai.readers import (
    AnswerOrCallsReader,
    NamedReader,
    ParsedReader,
    RequiredReader,
)

TWO: tuple[Piece, ...] = (
    ReasoningPiece("hm"),
    TextPiece("I call"),
    CallBegin(0, "call_1", "get"),
    CallArguments(0, "{}"),
    CallBegin(1, "call_2", "set"),
    CallArguments(1, "{}"),
)
STOP, LENGTH = FinishReason.STOP, FinishReason.LENGTH


class Parser:
    """An engine's parser that finds `TWO` in any text."""

    num_reasoning_tokens = 7

    def __init__(self, failure: ParserFailure | None = None) -> None:
        self.failure = failure

    def read(self, delta: Delta) -> Sequence[Piece]:
        return TWO

    def whole(self, everything: Delta) -> AssistantMessage:
        return assemble(TWO)


class Reasons(TextReader):
    """A reader that finds reasoning up to a bar."""

    is_plain = False
    num_reasoning_tokens = 3

    def read(self, delta: Delta) -> Sequence[Piece]:
        reasoning, bar, text = delta.text.rpartition("|")
        return ((ReasoningPiece(reasoning),) if bar else ()) + ((TextPiece(text),) if text else ())


def required(text: str, reason: FinishReason = STOP) -> tuple[AssistantMessage, str]:
    reader = RequiredReader(TextReader())
    message = reader.whole(Delta(text, finish_reason=reason))
    return message, reader.finish_reason(reason)


def test_required_calls_end_as_tool_calls_only_if_they_are_whole() -> None:
    message, reason = required('[{"name":"get","parameters":{"a":1}}]')
    assert [(call.name, call.arguments) for call in message.calls] == [("get", '{"a":1}')]
    assert (message.text, reason) == ("", "tool_calls")
    assert required('[{"name":"get","parameters":{"a":1}}]', LENGTH)[1] == "length"
    message, reason = required('[{"name":"get","parameters":{"a":', LENGTH)
    assert [(call.name, call.arguments) for call in message.calls] == [("get", '{"a":')]
    assert reason == "length"
    assert required('[{"name":"get","parameters":{"a":')[1] == "stop"
    assert required('[{"name":"ge', LENGTH) == (AssistantMessage(), "length")


def test_a_named_call_is_its_arguments_and_ends_with_stop() -> None:
    reader = NamedReader(TextReader(), "get")
    first = reader.read(Delta("{"))
    assert isinstance(first[0], CallBegin)
    assert (first[0].index, first[0].name) == (0, "get")
    assert [*first[1:], *reader.read(Delta("}"))] == [CallArguments(0, "{"), CallArguments(0, "}")]
    assert reader.read(Delta("", (2,), finish_reason=STOP)) == []
    assert reader.finish_reason(STOP) == "stop"


@pytest.mark.parametrize(
    "reader", [RequiredReader(Reasons()), NamedReader(Reasons(), "get")], ids=["required", "named"]
)
def test_reasoning_comes_before_a_forced_call(reader: MessageReader) -> None:
    text = '[{"name":"get","parameters":{}}]' if isinstance(reader, RequiredReader) else "{}"
    pieces = [*reader.read(Delta("first|")), *reader.read(Delta("then|" + text))]
    assert pieces[:2] == [ReasoningPiece("first"), ReasoningPiece("then")]
    (call,) = assemble(pieces).calls
    assert (call.name, call.arguments) == ("get", "{}")
    assert (reader.num_reasoning_tokens, reader.has_text, reader.is_plain) == (3, False, False)


@pytest.mark.parametrize("choice", ["required", "named"])
def test_a_whole_forced_call_is_in_the_whole_text_that_the_inner_reader_finds(choice: str) -> None:
    class Differs(Reasons):
        """A parser that finds the reasoning only in a whole text."""

        def read(self, delta: Delta) -> Sequence[Piece]:
            raise AssertionError("the whole text is not a delta")

        def whole(self, everything: Delta) -> AssistantMessage:
            return assemble(super().read(everything))

    required = choice == "required"
    reader = RequiredReader(Differs()) if required else NamedReader(Differs(), "get")
    text = '[{"name":"get","parameters":{}}]' if required else "{}"
    message = reader.whole(Delta("so|" + text, finish_reason=STOP))
    assert (message.text, message.reasoning) == ("", "so")
    assert [(call.name, call.arguments) for call in message.calls] == [("get", "{}")]
    assert reader.whole(Delta("only|", finish_reason=LENGTH)).calls == ()


@pytest.mark.parametrize("whole", [False, True])
def test_what_is_not_wanted_of_a_parsed_message_is_left_out(whole: bool) -> None:
    failures: list[ParserFailure] = []

    def read(**options: object) -> AssistantMessage:
        reader = ParsedReader(Parser(), on_failure=failures.append, **options)  # type: ignore[arg-type]
        delta = Delta("x", finish_reason=STOP)
        message = reader.whole(delta) if whole else assemble(reader.read(delta))
        assert (reader.finish_reason(STOP), reader.finish_reason(LENGTH)) == (
            "tool_calls",
            "length",
        )
        assert reader.num_reasoning_tokens == 7
        return message

    calls = (ToolCall("call_1", "get", "{}"), ToolCall("call_2", "set", "{}"))
    everything = read(max_calls=None, shows_reasoning=True)
    assert everything == AssistantMessage("I call", "hm", calls)
    assert read(max_calls=1, shows_reasoning=False) == AssistantMessage("I call", "", calls[:1])
    assert failures == []


@pytest.mark.parametrize("whole", [False, True])
def test_a_failed_parser_is_counted_once_and_its_calls_are_not_to_be_run(whole: bool) -> None:
    failure, failures = ParserFailure("error", "RecursionError"), list[ParserFailure]()
    reader = ParsedReader(
        Parser(failure), max_calls=None, shows_reasoning=True, on_failure=failures.append
    )
    if whole:
        reader.whole(Delta("x", finish_reason=STOP))
    else:
        for reason in (None, STOP):
            reader.read(Delta("x", finish_reason=reason))
    assert failures == [failure]
    assert (reader.finish_reason(STOP), reader.finish_reason(LENGTH)) == ("stop", "length")


GET = ToolCall("call_1", "get", '["get')


class Calls(TextReader):
    """A reader that finds a call where the text begins with a bracket."""

    is_plain = False
    num_reasoning_tokens = 5

    def read(self, delta: Delta) -> Sequence[Piece]:
        reasoning, bar, text = delta.text.rpartition("|")
        found: tuple[Piece, ...] = (ReasoningPiece(reasoning),) if bar else ()
        if text.startswith("["):
            found = (*found, CallBegin(0, "call_1", "get"))
        return (*found, CallArguments(0, text)) if text else found

    def finish_reason(self, reason: FinishReason) -> str:
        return "tool_calls"


def either(*texts: str) -> tuple[list[Sequence[Piece]], AnswerOrCallsReader]:
    """What is read of a stream with these texts, delta by delta."""
    reader = AnswerOrCallsReader(Reasons(), Calls(), ('["get', '["set'))
    read = [reader.read(Delta(text)) for text in texts]
    return [*read, reader.read(Delta("", (2,), finish_reason=STOP))], reader


def test_the_beginning_tells_an_answer_from_calls() -> None:
    read, reader = either("so|", "[", '"', "ge", "t", "!")
    assert assemble(piece for pieces in read for piece in pieces) == AssistantMessage(
        "", "so", (ToolCall("call_1", "get", '["get!'),)
    )
    assert read[1:4] == [[], [], []]
    assert (reader.finish_reason(STOP), reader.num_reasoning_tokens) == ("tool_calls", 5)
    read, reader = either("so|[", '"', "n", 'o, ["get')
    assert read[:4] == [[ReasoningPiece("so")], [], [TextPiece('["n')], (TextPiece('o, ["get'),)]
    assert (reader.finish_reason(STOP), reader.num_reasoning_tokens) == ("stop", 3)


def test_a_text_that_ends_before_it_tells_is_an_answer() -> None:
    assert either('["g')[0] == [[], [TextPiece('["g')]]
    assert either("so|")[0] == [[ReasoningPiece("so")], []]
    assert either()[0] == [[]]


@pytest.mark.parametrize(
    ("text", "want", "reason"),
    [
        ('so|["get', AssistantMessage("", "so", (GET,)), "tool_calls"),
        ('so|["no', AssistantMessage('["no', "so"), "stop"),
        ("so|", AssistantMessage("", "so"), "stop"),
    ],
)
def test_a_whole_text_is_an_answer_or_calls(text: str, want: AssistantMessage, reason: str) -> None:
    reader = AnswerOrCallsReader(Reasons(), Calls(), ['["get'])
    assert reader.whole(Delta(text, finish_reason=STOP)) == want
    assert reader.finish_reason(STOP) == reason
