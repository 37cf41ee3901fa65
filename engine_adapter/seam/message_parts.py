"""The pieces of an assistant's message, in the order in which they are generated.

They are frozen and plain: an engine's own parser makes them, and the gateway does. Nothing here
imports torch, vLLM, FastAPI or pydantic.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextPiece:
    """Text of the answer; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPiece:
    """Text of the reasoning before the answer; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A tool call begins.

    Attributes:
        index: 0 for the first call of the message; each further call has the next number.
        id: unique among the calls of a chat.
        name: the whole name of the tool.
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next characters of a call's arguments; never empty.

    Attributes:
        index: that of the call's `CallBegin`, which comes before.
    """

    index: int
    text: str


Piece = TextPiece | ReasoningPiece | CallBegin | CallArguments
"""What a message consists of."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call; its arguments are JSON text, incomplete if the sequence ended early."""

    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class AssistantMessage:
    """A whole message.

    Attributes:
        text: the answer; empty if there is none.
        reasoning: the reasoning before it; empty if there is none.
    """

    text: str = ""
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()


def assemble(pieces: Iterable[Piece]) -> AssistantMessage:
    """The message that the pieces make."""
    text: list[str] = []
    reasoning: list[str] = []
    call_begins: dict[int, CallBegin] = {}
    arguments: dict[int, list[str]] = {}
    for piece in pieces:
        match piece:
            case TextPiece():
                text.append(piece.text)
            case ReasoningPiece():
                reasoning.append(piece.text)
            case CallBegin():
                call_begins[piece.index] = piece
                arguments[piece.index] = []
            case CallArguments():
                arguments[piece.index].append(piece.text)
    calls = (ToolCall(b.id, b.name, "".join(arguments[i])) for i, b in sorted(call_begins.items()))
    return AssistantMessage("".join(text), "".join(reasoning), tuple(calls))
