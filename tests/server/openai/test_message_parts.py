"""The pieces of a message, and the reader of a message that is only text."""

from engine_adapter.seam.types import Delta, FinishReason
from server.openai.message_parts import (
    AssistantMessage,
    CallArguments,
    CallBegin,
    Piece,
    ReasoningPiece,
    TextPiece,
    TextReader,
    ToolCall,
    assemble,
)


def test_pieces_make_the_message_in_the_order_of_the_calls() -> None:
    pieces: list[Piece] = [
        ReasoningPiece("so "),
        ReasoningPiece("be it"),
        TextPiece("yes"),
        CallBegin(0, "call_a", "get"),
        CallArguments(0, '{"x"'),
        CallArguments(0, ":1}"),
        CallBegin(1, "call_b", "set"),
    ]
    calls = (ToolCall("call_a", "get", '{"x":1}'), ToolCall("call_b", "set", ""))
    assert assemble(pieces) == AssistantMessage("yes", "so be it", calls)
    assert assemble([]) == AssistantMessage()


def test_without_tools_everything_is_text() -> None:
    reader = TextReader()
    assert reader.read(Delta("[{")) == (TextPiece("[{"),)
    assert reader.read(Delta("", (5,))) == ()
    assert reader.whole(Delta("<think>", (1, 2))) == AssistantMessage("<think>")
    reasons = [reader.finish_reason(reason) for reason in FinishReason]
    assert reasons == ["stop", "length", "repetition"]
    assert reader.num_reasoning_tokens is None
