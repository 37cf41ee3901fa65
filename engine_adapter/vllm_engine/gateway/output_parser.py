"""One choice's text, as vLLM's parser reads it, and what the client gets if the parser fails."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

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
from engine_adapter.seam.parsing import ParserFailure
from engine_adapter.seam.types import Delta
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway.parser_calls import ParserCalls, ParserFailed


@dataclass(slots=True)
class _Call:
    """A call that is being streamed; arguments wait until its name is known."""

    has_begun: bool = False
    waiting: str = ""


class VllmParser:
    """One choice. See `OutputParser`.

    When the parser has no time left, it is called no more: the deltas wait for the end of the
    choice, where a new parser reads the whole text. Some of vLLM's parsers lose calls if deltas are
    joined. If a parser fails, the text that is in no piece yet becomes text of the answer, and so
    does all that follows.

    Args:
        make_parser: makes vLLM's parser of one text.
    """

    def __init__(
        self,
        make_parser: Callable[[], Any],
        body: Any,
        prompt_token_ids: tuple[int, ...],
        calls: ParserCalls,
    ) -> None:
        self._make_parser = make_parser
        self._parser = make_parser()
        self._body = body
        self._prompt = list(prompt_token_ids)
        self._bounded = calls
        self._token_ids: list[int] = []
        self._texts: list[str] = []
        self._pieces_shown: list[Piece] = []
        self._unshown = _UnshownText()
        self._calls: dict[int, _Call] = {}
        self._waits_for_end = False
        self._has_ended = False
        self._can_count = True
        self._num_counted = 0
        self._num_reasoning = 0
        self.failure: ParserFailure | None = None

    def read(self, delta: Delta) -> Sequence[Piece]:
        """See `OutputParser.read`."""
        self._token_ids.extend(delta.token_ids)
        self._unshown.add(delta.text)
        ends = self._has_ended = delta.finish_reason is not None
        if self.failure is not None:
            return self._unshown.take()
        self._texts.append(delta.text)
        self._bounded.add(1)
        if not ends and not self._bounded.are_due:
            self._waits_for_end = True
        if self._waits_for_end:
            return self._pieces_at_end() if ends else []
        try:
            pieces = self._parsed(delta, ends=ends)
        except ParserFailed as failed:
            self.failure = failed.failure
            return self._unshown.take()
        self._unshown.show(pieces)
        self._pieces_shown += pieces
        if pieces:
            self._bounded.error = None  # it has recovered
        elif ends and self._bounded.error is not None and (text_pieces := self._unshown.take()):
            self.failure = ParserFailure("error", self._bounded.error)
            return text_pieces
        return pieces

    def _parsed(self, delta: Delta, *, ends: bool) -> list[Piece]:
        """The pieces of a delta. Raises `ParserFailed`."""
        message = self._bounded.make(
            lambda: self._parser.parse_delta(
                delta_text=delta.text,
                delta_token_ids=list(delta.token_ids),
                request=self._body,
                prompt_token_ids=None if _reasons_by_itself(self._parser) else self._prompt,
                finished=ends,
            )
        )
        return [] if message is None else list(self._pieces(message))

    def _pieces_at_end(self) -> list[Piece]:
        """What the whole message has and no piece has shown."""
        self._bounded.error = None  # it was the former parser's
        message = self._message(Delta("".join(self._texts), tuple(self._token_ids)))
        if message is None:
            return self._unshown.take()
        pieces = _missing_pieces(assemble(self._pieces_shown), message)
        if pieces is None:
            self.failure = ParserFailure("time", "the whole text reads otherwise")
            return self._unshown.take()
        return pieces

    def whole(self, everything: Delta) -> AssistantMessage:
        """See `OutputParser.whole`."""
        self._token_ids = list(everything.token_ids)
        self._has_ended = True
        self._bounded.add(len(self._token_ids))
        message = self._message(everything)
        return AssistantMessage(everything.text) if message is None else message

    def _message(self, everything: Delta) -> AssistantMessage | None:
        """The message of a whole text; `None` if the parser fails and text would be lost."""
        try:
            message = self._bounded.make(lambda: self._parse_whole(everything))
        except ParserFailed as failed:
            self.failure = failed.failure
            return None
        if self._bounded.error is not None and not message.calls:
            self.failure = ParserFailure("error", self._bounded.error)
            end = message.text.rstrip()
            if not end or not everything.text.rstrip().endswith(end):
                return None
        return message

    def _parse_whole(self, everything: Delta) -> AssistantMessage:
        self._parser = self._make_parser()
        self._parser.set_prompt_token_ids(self._prompt)
        reasoning, text, calls = self._parser.parse(
            everything.text,
            self._body,
            enable_auto_tools=True,
            model_output_token_ids=everything.token_ids,
        )
        if reasoning and not (text or calls) and self._parser.is_reasoning_end(self._prompt):
            # The prompt has ended the reasoning; vLLM looks at it only for streams.
            reasoning, text, calls = None, *self._without_reasoning(everything.text)
        return AssistantMessage(
            text or "",
            reasoning or "",
            tuple(
                ToolCall(call.id or compat.make_tool_call_id(), call.name, call.arguments)
                for call in calls or ()
            ),
        )

    def _without_reasoning(self, text: str) -> tuple[str | None, list[Any]]:
        """Answer and calls of a text."""
        if self._parser.tool_parser is None:
            return text, []
        extracted = self._parser.tool_parser.extract_tool_calls(text, request=self._body)
        return extracted.content, [call.function for call in extracted.tool_calls]

    @property
    def num_reasoning_tokens(self) -> int | None:
        """See `OutputParser.num_reasoning_tokens`.

        All tokens are counted again. Without time for that, the last count stands.
        """
        if self._parser.reasoning_parser is None:
            return None
        total = len(self._token_ids)
        has_time = self._has_ended or (self._bounded.are_due and not self._waits_for_end)
        can_count = self._can_count and self.failure is None
        if can_count and has_time and total != self._num_counted:
            self._num_counted, token_ids = total, tuple(self._token_ids)
            try:
                count = self._bounded.make(lambda: self._parser.count_reasoning_tokens(token_ids))
                self._num_reasoning = int(count)
            except ParserFailed:
                self._can_count = False
                self._waits_for_end = True  # this parser must not be called again
        return self._num_reasoning

    def _pieces(self, message: Any) -> Iterator[Piece]:
        """The pieces of vLLM's `DeltaMessage`."""
        if message.reasoning:
            yield ReasoningPiece(message.reasoning)
        if message.content:
            yield TextPiece(message.content)
        for fragment in message.tool_calls or ():
            yield from self._fragment(fragment)

    def _fragment(self, fragment: Any) -> Iterator[Piece]:
        call = self._calls.setdefault(fragment.index, _Call())
        function = fragment.function
        name = function.name if function is not None else None
        call.waiting += (function.arguments if function is not None else None) or ""
        if name and not call.has_begun:
            call.has_begun = True
            yield CallBegin(fragment.index, fragment.id or compat.make_tool_call_id(), name)
        if call.has_begun and call.waiting:
            yield CallArguments(fragment.index, call.waiting)
            call.waiting = ""


def _missing_pieces(
    sent_message: AssistantMessage, whole_message: AssistantMessage
) -> list[Piece] | None:
    """The pieces that complete a sent message; `None` if `whole_message` does not begin with it."""
    reasoning = _missing(sent_message.reasoning, whole_message.reasoning)
    text = _missing(sent_message.text, whole_message.text)
    if reasoning is None or text is None or len(sent_message.calls) > len(whole_message.calls):
        return None
    pieces: list[Piece] = [ReasoningPiece(reasoning)] if reasoning else []
    if text:
        pieces.append(TextPiece(text))
    for i, call in enumerate(whole_message.calls):
        arguments: str | None = call.arguments
        if i >= len(sent_message.calls):
            pieces.append(CallBegin(i, call.id, call.name))
        elif call.name != sent_message.calls[i].name:
            return None
        else:
            arguments = _missing(sent_message.calls[i].arguments, call.arguments)
        if arguments is None:
            return None
        if arguments:
            pieces.append(CallArguments(i, arguments))
    return pieces


def _reasons_by_itself(parser: Any) -> bool:
    """Whether a stream's parser must not be told the prompt.

    Where a model need not reason, a prompt that says nothing of it counts as the end of the
    reasoning, and vLLM then leaves the rest to the parser of calls. Without one nothing reads it.
    """
    reasoning = parser.reasoning_parser
    if reasoning is None or parser.tool_parser is not None:
        return False
    return bool(reasoning.is_reasoning_end([]))


def _missing(sent_text: str, whole_text: str) -> str | None:
    """The end of `whole_text` that `sent_text` lacks. Only streams keep the space around a text."""
    if whole_text.startswith(sent_text):
        return whole_text[len(sent_text) :]
    sent_text, whole_text = sent_text.lstrip(), whole_text.lstrip()
    if whole_text.startswith(sent_text):
        return whole_text[len(sent_text) :]
    return "" if sent_text.rstrip() == whole_text.rstrip() else None


_MAX_GAP = 64
"""Characters of marks between two pieces, at most."""


class _UnshownText:
    """The end of a text of which no piece has shown anything."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._is_lost = False

    def add(self, text: str) -> None:
        """Adds the text of a delta."""
        self._parts.append(text)

    def show(self, pieces: Sequence[Piece]) -> None:
        """Takes off what the pieces show, which is in their order in the text.

        After a piece that is not in the text, such as arguments that the parser has changed, all
        counts as unshown: text is rather repeated than lost.
        """
        if not pieces or self._is_lost:
            return
        text, end = "".join(self._parts), 0
        for piece in pieces:
            piece_text = piece.name if isinstance(piece, CallBegin) else piece.text
            position = text.find(piece_text, end, end + _MAX_GAP + len(piece_text))
            if position < 0:
                self._is_lost = True
                break
            end = position + len(piece_text)
        self._parts = [text[end:]]

    def take(self) -> list[Piece]:
        """The text, which then counts as shown; no piece if it is empty."""
        text = "".join(self._parts)
        self._parts.clear()
        return [TextPiece(text)] if text else []
