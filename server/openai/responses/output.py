"""The output of a response: the pieces of the assistant's message become items.

Each text, reasoning and call is an item. An item is open until a piece of another one comes; only
the last one can be incomplete.
"""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from engine_adapter.seam.types import TokenLogprob
from server.openai.logprobs import response_logprobs
from server.openai.message_parts import (
    AssistantMessage,
    CallArguments,
    CallBegin,
    Piece,
    ReasoningPiece,
    TextPiece,
)
from server.openai.responses.callable_tools import CallableTool
from server.openai.responses.input_items import Item
from server.openai.responses.open_items import (
    EventWriter,
    OpenCall,
    OpenCustomCall,
    OpenItem,
    OpenMessage,
    OpenReasoning,
    OpenTextCall,
)


class Output:
    """The items of one response.

    Args:
        events: gets the events that the items make.
        num_top: alternatives per token of the text; `None` sends no log probabilities.
        tools: by the names under which the model calls them.
    """

    def __init__(
        self,
        events: EventWriter,
        num_top: int | None,
        tools: Mapping[str, CallableTool] = MappingProxyType({}),
    ) -> None:
        self._events = events
        self._tools = tools
        self._num_top = num_top
        self._done: list[Item] = []
        self._open: OpenItem | None = None
        # Of tokens whose text is not complete yet.
        self._logprobs: list[Item] = []

    def add(
        self,
        pieces: Iterable[Piece],
        logprobs: Sequence[TokenLogprob] | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        """Adds the next pieces.

        Args:
            logprobs: of the tokens of these pieces; they are shown with text only.
            more: fields for the events that have text.
        """
        pieces = tuple(pieces)
        if self._num_top is not None and logprobs and self._are_text(pieces):
            self._logprobs += response_logprobs(logprobs, self._num_top)
        for piece in pieces:
            match piece:
                case TextPiece():
                    self._add_text(piece.text, more or {})
                case ReasoningPiece():
                    self._add_reasoning(piece.text)
                case CallBegin():
                    self._begin(self._new_call(piece))
                case CallArguments():
                    assert isinstance(self._open, OpenCall), "arguments follow their call's begin"
                    self._open.extend(piece.text, self._events)

    def add_whole(self, message: AssistantMessage, logprobs: Sequence[TokenLogprob] | None) -> None:
        """Adds a whole message."""
        pieces: list[Piece] = []
        if message.reasoning:
            pieces.append(ReasoningPiece(message.reasoning))
        if message.text:
            pieces.append(TextPiece(message.text))
        for index, call in enumerate(message.calls):
            pieces += [CallBegin(index, call.id, call.name), CallArguments(index, call.arguments)]
        self.add(pieces, logprobs)

    def end(self, *, complete: bool) -> list[Item]:
        """Closes the last item and returns all. Where nothing was written, there is a message."""
        if self._open is None:
            self._begin(OpenMessage(self._next_index))
        if isinstance(self._open, OpenMessage):
            self._open.logprobs += self._logprobs
        self._close("completed" if complete else "incomplete")
        return self._done

    def so_far(self) -> list[Item]:
        """The items of a response that fails."""
        return [*self._done, *([] if self._open is None else [self._open.item("incomplete")])]

    @property
    def _next_index(self) -> int:
        return len(self._done) + (self._open is not None)

    def _are_text(self, pieces: Sequence[Piece]) -> bool:
        """Whether the pieces' tokens are of text; without pieces, a character is incomplete."""
        if not pieces:
            return self._open is None or isinstance(self._open, OpenMessage)
        return any(isinstance(piece, TextPiece) for piece in pieces)

    def _new_call(self, begin: CallBegin) -> OpenCall:
        tool = self._tools.get(begin.name)
        if tool is None:
            return OpenCall(self._next_index, begin.id, begin.name)
        kind: type[OpenCall] = OpenCall
        if tool.is_custom:
            kind = OpenTextCall if tool.writes_text else OpenCustomCall
        return kind(self._next_index, begin.id, tool.name, tool.namespace)

    def _add_text(self, text: str, more: dict[str, Any]) -> None:
        message = self._open
        if not isinstance(message, OpenMessage):
            message = OpenMessage(self._next_index)
            self._begin(message)
        if self._logprobs:
            message.logprobs += self._logprobs
            more = {**more, "logprobs": self._logprobs}
            self._logprobs = []
        if more:
            message.extend_with(text, more, self._events)
        else:
            message.extend(text, self._events)

    def _add_reasoning(self, text: str) -> None:
        reasoning = self._open
        if not isinstance(reasoning, OpenReasoning):
            reasoning = OpenReasoning(self._next_index)
            self._begin(reasoning)
        reasoning.extend(text, self._events)

    def _begin(self, item: OpenItem) -> None:
        self._close("completed")
        self._open = item
        item.begin(self._events)

    def _close(self, status: str) -> None:
        if self._open is not None:
            self._done.append(self._open.end(status, self._events))
            self._open = None
