"""The readers of messages with reasoning or tool calls."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

from engine_adapter.seam.parsing import OutputParser, ParserFailure
from engine_adapter.seam.types import Delta, FinishReason
from server.openai.call_array import CallArray, new_call_id
from server.openai.message_parts import (
    AssistantMessage,
    CallArguments,
    CallBegin,
    MessageReader,
    Piece,
    ReasoningPiece,
    TextPiece,
    assemble,
)


class ParsedReader(MessageReader):
    """A message that the engine's parser takes apart.

    Args:
        max_calls: further calls are left out; `None` leaves none out.
        shows_reasoning: otherwise reasoning is left out.
        on_failure: called once if the parser fails.
    """

    def __init__(
        self,
        parser: OutputParser,
        *,
        max_calls: int | None,
        shows_reasoning: bool,
        on_failure: Callable[[ParserFailure], None],
    ) -> None:
        self._parser = parser
        self._max_calls = max_calls
        self._shows_reasoning = shows_reasoning
        self._on_failure = on_failure
        self._has_failed = False
        self._has_calls = False

    def read(self, delta: Delta) -> Sequence[Piece]:
        """The pieces that the parser finds."""
        pieces = [piece for piece in self._parser.read(delta) if self._is_shown(piece)]
        self._watch()
        self._has_calls |= any(isinstance(piece, CallBegin) for piece in pieces)
        return pieces

    def whole(self, everything: Delta) -> AssistantMessage:
        """The message that the parser finds."""
        message = self._parser.whole(everything)
        self._watch()
        self._has_calls = bool(message.calls)
        reasoning = message.reasoning if self._shows_reasoning else ""
        return AssistantMessage(message.text, reasoning, message.calls[: self._max_calls])

    def finish_reason(self, reason: FinishReason) -> str:
        """`tool_calls` if the model has called a tool and ended by itself.

        Not if the parser has failed: the last call can be incomplete.
        """
        has_whole_calls = self._has_calls and not self._has_failed
        return "tool_calls" if has_whole_calls and reason is FinishReason.STOP else reason

    @property
    def num_reasoning_tokens(self) -> int | None:
        """As the parser counts them."""
        return self._parser.num_reasoning_tokens

    def _watch(self) -> None:
        if not self._has_failed and (failure := self._parser.failure) is not None:
            self._has_failed = True
            self._on_failure(failure)

    def _is_shown(self, piece: Piece) -> bool:
        if isinstance(piece, ReasoningPiece):
            return self._shows_reasoning
        if isinstance(piece, TextPiece) or self._max_calls is None:
            return True
        return piece.index < self._max_calls


class AnswerOrCallsReader(MessageReader):
    """A message that is either calls or an answer in a format, which may look like calls inside.

    Both readers get everything until the beginning of the text tells which it is; then the other
    one is left aside.

    Args:
        answer: reads a message without calls.
        calls: reads a message with calls.
        begins: how the text of calls begins.
    """

    def __init__(self, answer: MessageReader, calls: MessageReader, begins: Sequence[str]) -> None:
        self._answer = answer
        self._calls = calls
        self._begins = tuple(begins)
        self._chosen: MessageReader | None = None
        self._text = ""
        self._waiting: list[Piece] = []

    def read(self, delta: Delta) -> Sequence[Piece]:
        """The pieces of what the text is; none while its beginning does not tell."""
        if self._chosen is not None:
            return self._chosen.read(delta)
        pieces = self._answer.read(delta)
        self._waiting += (p for p in self._calls.read(delta) if not isinstance(p, ReasoningPiece))
        visible: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, TextPiece):
                self._text += piece.text
            else:
                visible.append(piece)
        self._chosen = self._choice(ends=delta.finish_reason is not None)
        if self._chosen is self._calls:
            visible += self._waiting
        elif self._chosen is self._answer and self._text:
            visible.append(TextPiece(self._text))
        return visible

    def whole(self, everything: Delta) -> AssistantMessage:
        """The answer, or the calls."""
        message = self._answer.whole(everything)
        self._text = message.text
        self._chosen = self._choice(ends=True)
        return self._calls.whole(everything) if self._chosen is self._calls else message

    def finish_reason(self, reason: FinishReason) -> str:
        """As the reader of what it is says."""
        return (self._chosen or self._answer).finish_reason(reason)

    @property
    def num_reasoning_tokens(self) -> int | None:
        """As the reader of what it is counts them."""
        return (self._chosen or self._answer).num_reasoning_tokens

    def _choice(self, *, ends: bool) -> MessageReader | None:
        """The reader of what the text is; `None` while its beginning does not tell."""
        if self._text.startswith(self._begins):
            return self._calls
        if not ends and any(begin.startswith(self._text) for begin in self._begins):
            return None
        return self._answer


class ForcedReader(MessageReader):
    """A message whose text a constraint holds to tool calls. `inner` reads what is before them."""

    has_text = False

    def __init__(self, inner: MessageReader) -> None:
        self._inner = inner

    def read(self, delta: Delta) -> Sequence[Piece]:
        """The calls in the delta's text, and other pieces as they are."""
        pieces: list[Piece] = []
        for piece in self._inner.read(delta):
            pieces += self._calls(piece.text) if isinstance(piece, TextPiece) else [piece]
        return pieces

    def whole(self, everything: Delta) -> AssistantMessage:
        """The calls in the whole text, and the reasoning before them."""
        message = self._inner.whole(everything)
        calls = assemble(self._calls(message.text) if message.text else ()).calls
        return AssistantMessage("", message.reasoning, calls)

    @property
    def num_reasoning_tokens(self) -> int | None:
        """As the inner reader counts them."""
        return self._inner.num_reasoning_tokens

    @abstractmethod
    def _calls(self, text: str) -> Sequence[Piece]:
        """The pieces of calls that the text completes."""


class RequiredReader(ForcedReader):
    """At least one call of any tool."""

    def __init__(self, inner: MessageReader) -> None:
        super().__init__(inner)
        self._array = CallArray()

    def _calls(self, text: str) -> Sequence[Piece]:
        return list(self._array.read(text))

    def finish_reason(self, reason: FinishReason) -> str:
        """`tool_calls` if every call is whole; a stop string may cut the last one."""
        is_whole = self._array.is_complete and reason is FinishReason.STOP
        return "tool_calls" if is_whole else reason


class NamedReader(ForcedReader):
    """One call of a given tool: the text is its arguments. Its finish reason is OpenAI's `stop`."""

    def __init__(self, inner: MessageReader, name: str) -> None:
        super().__init__(inner)
        self._name = name
        self._has_begun = False

    def _calls(self, text: str) -> Sequence[Piece]:
        begin = () if self._has_begun else (CallBegin(0, new_call_id(), self._name),)
        self._has_begun = True
        return (*begin, CallArguments(0, text))
