"""From the deltas of one choice to the pieces of the assistant's message.

Each endpoint writes the same pieces in its own format: chunks of a chat, events of a response.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from engine_adapter.seam.message_parts import (
    AssistantMessage,
    CallArguments,
    CallBegin,
    Piece,
    ReasoningPiece,
    TextPiece,
    ToolCall,
    assemble,
)
from engine_adapter.seam.types import Delta, FinishReason

__all__ = (
    "AssistantMessage",
    "CallArguments",
    "CallBegin",
    "MessageReader",
    "NewReader",
    "Piece",
    "ReasoningPiece",
    "TextPiece",
    "TextReader",
    "ToolCall",
    "assemble",
)


class MessageReader(ABC):
    """Reads the message of one choice. It is used once, in one of two ways.

    For a stream, `read` gets every delta, in order. For a response in one piece, `whole` gets one
    delta that holds everything. `finish_reason` is called after either.

    Attributes:
        is_plain: every delta's text is one `TextPiece`, so nothing needs to be read.
        has_text: the message may have text; without it, its content is null.
    """

    is_plain = False
    has_text = True

    @abstractmethod
    def read(self, delta: Delta) -> Sequence[Piece]:
        """The pieces that the delta completes; the last delta has a finish reason.

        Raises `EngineError` for text that the request's format excludes.
        """

    def whole(self, everything: Delta) -> AssistantMessage:
        """The message, from the whole text and all token ids. Raises as `read`."""
        return assemble(self.read(everything))

    def finish_reason(self, reason: FinishReason) -> str:
        """The finish reason in OpenAI's terms: `tool_calls` for complete calls."""
        return reason

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Generated tokens that are reasoning; `None` if reasoning is not told apart."""
        return None


NewReader = Callable[[], MessageReader]
"""Makes the reader of one choice."""


class TextReader(MessageReader):
    """Everything is text."""

    is_plain = True

    def read(self, delta: Delta) -> Sequence[Piece]:
        """The delta's text."""
        return (TextPiece(delta.text),) if delta.text else ()
