"""Reads gpt-oss's format, OpenAI's Harmony: messages with a channel and a recipient.

The format is described at https://github.com/openai/harmony/blob/main/docs/format.md. vLLM reads it
with the package `openai_harmony`, which downloads a vocabulary, and from token ids alone, which
include what a `stop` cuts off. Here the target's own tokenizer says which tokens are marks, and the
engine's text says how much of the tokens is shown.
"""

import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from tokenizers.decoders import DecodeStream

from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.seam.message_parts import (
    AssistantMessage,
    CallArguments,
    CallBegin,
    Piece,
    ReasoningPiece,
    TextPiece,
    assemble,
)
from engine_adapter.seam.parsing import CallConstraint, ParserFailure, ParsingRequest
from engine_adapter.seam.types import Delta, FinishReason, StructuredOutput
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway.call_constraint import CallConstraints

TOOL_CALL_PARSER = "openai"
REASONING_PARSER = "openai_gptoss"

START, CHANNEL, CONSTRAIN, MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_NEEDED = (START, CHANNEL, MESSAGE, "<|end|>")
_ENDS = ("<|end|>", "<|return|>", "<|call|>")
MARKS = (START, CHANNEL, CONSTRAIN, MESSAGE, *_ENDS)
"""The special tokens of the format."""

_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=([^\s<]+)")
_FUNCTIONS = "functions."
_MAX_HEADER = 256
"""The most characters of a header. A longer text is shown as it is."""


def is_harmony(tool_call_parser: str | None, reasoning_parser: str | None) -> bool:
    """Whether these parsers are gpt-oss's.

    Raises:
        EngineConfigError: one of them is, and the other one is another model's.
    """
    if tool_call_parser != TOOL_CALL_PARSER and reasoning_parser != REASONING_PARSER:
        return False
    if reasoning_parser not in (None, REASONING_PARSER):
        message = f"must be {REASONING_PARSER} or none beside the parser {TOOL_CALL_PARSER}"
        raise EngineConfigError("reasoning_parser", f"{message}, got {reasoning_parser!r}")
    if tool_call_parser not in (None, TOOL_CALL_PARSER):
        message = f"must be {TOOL_CALL_PARSER} or none beside the parser {REASONING_PARSER}"
        raise EngineConfigError("tool_call_parser", f"{message}, got {tool_call_parser!r}")
    return True


class HarmonyTokens:
    """A target's tokenizer and its marks.

    Raises:
        EngineConfigError: it does not have the marks, or cannot decode token by token.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._backend: Any = getattr(tokenizer, "backend_tokenizer", None)
        added = tokenizer.get_added_vocab()
        lacking = [mark for mark in _NEEDED if mark not in added]
        if lacking or self._backend is None:
            reason = f"lacks {', '.join(lacking)}" if lacking else "is not one of `tokenizers`"
            message = f"{REASONING_PARSER} and {TOOL_CALL_PARSER} read gpt-oss; the tokenizer "
            raise EngineConfigError("reasoning_parser", message + reason)
        self.marks: Mapping[int, str] = {added[mark]: mark for mark in MARKS if mark in added}
        self.start: int = added[START]

    def decoder(self) -> Callable[[int], str]:
        """Decodes a sequence token by token; a character appears with its last token."""
        stream = DecodeStream(skip_special_tokens=False)
        return lambda token: stream.step(self._backend, token) or ""


@dataclass(frozen=True, slots=True)
class HarmonyParsing:
    """The reader of one request. See `Parsing`.

    Attributes:
        finds_reasoning: otherwise reasoning is text of the answer.
    """

    tokens: HarmonyTokens
    request: ParsingRequest
    constraints: CallConstraints | None
    finds_reasoning: bool
    needs_special_tokens: bool = True

    def new_parser(self) -> "HarmonyParser":
        """See `Parsing.new_parser`."""
        return HarmonyParser(
            self.tokens,
            self.request.prompt_token_ids,
            finds_calls=bool(self.request.tools),
            finds_reasoning=self.finds_reasoning,
        )

    def text_constraint(self, answer: StructuredOutput) -> StructuredOutput:
        """See `Parsing.text_constraint`."""
        return self._constraint({}, answer)

    def call_constraint(
        self, schemas: Mapping[str, str], answer: StructuredOutput | None, *, single_call: bool
    ) -> CallConstraint:
        """See `Parsing.call_constraint`. A call ends the text, so there is at most one."""
        return CallConstraint(self._constraint(schemas, answer), ())

    def _constraint(
        self, schemas: Mapping[str, str], answer: StructuredOutput | None
    ) -> StructuredOutput:
        assert self.constraints is not None, "only the search for parsers has none"
        return self.constraints.harmony(schemas, answer)


class HarmonyParser:
    """One choice. See `OutputParser`.

    Args:
        finds_calls: otherwise the arguments of a call are text of the answer.
    """

    def __init__(
        self,
        tokens: HarmonyTokens,
        prompt_token_ids: Sequence[int],
        *,
        finds_calls: bool,
        finds_reasoning: bool,
    ) -> None:
        self._marks = tokens.marks
        self._decode = tokens.decoder()
        self._messages = _Messages(finds_calls, finds_reasoning)
        self._messages.follow(_tail(tokens, prompt_token_ids))
        self._counts_reasoning = finds_reasoning
        self._num_reasoning = 0
        self._text = ""
        self._waiting: deque[_Part] = deque()
        self.failure: ParserFailure | None = None

    def read(self, delta: Delta) -> Sequence[Piece]:
        """See `OutputParser.read`."""
        self._text += delta.text
        pieces: list[Piece] = []
        ends = delta.finish_reason is not None
        if self.failure is None:
            for token in delta.token_ids:
                self._feed(token)
            if ends:
                self._waiting.extend(self._messages.end())
            pieces.extend(self._shown())
        if ends and self.failure is None and self._waiting:
            self._text = ""  # the beginning of marks that a stop string cuts off
        if self._text and (ends or self.failure is not None):
            pieces.append(TextPiece(self._text))
            self._text = ""
        return pieces

    def whole(self, everything: Delta) -> AssistantMessage:
        """See `OutputParser.whole`."""
        return assemble(self.read(replace(everything, finish_reason=FinishReason.STOP)))

    @property
    def num_reasoning_tokens(self) -> int | None:
        """See `OutputParser.num_reasoning_tokens`."""
        return self._num_reasoning if self._counts_reasoning else None

    def _feed(self, token: int) -> None:
        text, mark = self._decode(token), self._marks.get(token)
        if mark is None:
            self._num_reasoning += self._messages.reasons
        text = text if mark is None else text.removesuffix(mark)
        if text:
            self._waiting.extend(self._messages.text(text))
        if mark is not None:
            self._waiting.extend(self._messages.mark(mark))

    def _shown(self) -> Iterator[Piece]:
        """The pieces of the parts that the engine's text has. Takes both off."""
        position, text = 0, self._text
        while self._waiting:
            part = self._waiting[0]
            num_visible = len(text) - position
            if text.startswith(part.text, position):
                self._waiting.popleft()
            elif not part.text.startswith(text[position : position + len(part.text)]):
                self.failure = ParserFailure("error", "DifferentText")
                break
            elif part.make_piece is None or not num_visible:
                break
            else:
                self._waiting[0] = _Part(part.text[num_visible:], part.make_piece)
                part = _Part(part.text[:num_visible], part.make_piece, part.prefix)
            position += len(part.text)
            yield from part.prefix
            if part.make_piece is not None:
                yield part.make_piece(part.text)
        self._text = text[position:]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the engine's text; without `make_piece` it is marks, which are not shown.

    Attributes:
        prefix: pieces that come before it.
    """

    text: str
    make_piece: Callable[[str], Piece] | None = None
    prefix: Sequence[Piece] = ()


class _Messages:
    """Follows the messages of a text, which comes as ordinary texts and as marks."""

    def __init__(self, finds_calls: bool, finds_reasoning: bool) -> None:
        self._finds_calls = finds_calls
        self._finds_reasoning = finds_reasoning
        self._header: str | None = None
        self._prompt_header = ""
        self._make_piece: Callable[[str], Piece] = TextPiece
        self._is_new_message = False
        self._makers_of_text: set[Callable[[str], Piece]] = set()
        self._num_calls = 0

    @property
    def reasons(self) -> bool:
        """Whether the next text is reasoning."""
        return self._header is None and self._make_piece is ReasoningPiece

    def follow(self, prompt_texts: Sequence[tuple[str, str | None]]) -> None:
        """Follows a prompt: its ordinary texts, each with the mark after it."""
        for text, mark in prompt_texts:
            if self._header is None:
                list(self.text(text) if text else ())
            else:
                self._header += text
            if mark is not None:
                list(self.mark(mark))
        self._prompt_header = self._header or ""
        self._makers_of_text.clear()

    def text(self, text: str) -> Iterator[_Part]:
        """The parts of an ordinary text; none while it is a header's."""
        if self._header is None:
            yield self._part(text)
            return
        self._header += text
        if not self._can_be_header():
            yield from self._header_as_text()

    def mark(self, mark: str) -> Iterator[_Part]:
        """The parts that a mark completes."""
        if mark in (CONSTRAIN, CHANNEL) and self._header is not None:
            self._header += mark
        elif mark == MESSAGE and self._header is not None:
            yield self._begin()
        elif mark in (CONSTRAIN, MESSAGE):
            yield self._part(mark)
        else:
            hidden = self._take_header()
            self._make_piece = TextPiece
            if mark in _ENDS:
                hidden += mark
            else:
                self._header = mark
            if hidden:
                yield _Part(hidden)

    def end(self) -> Iterator[_Part]:
        """The part of the open header, at the end of the text."""
        if self._header is not None and self._is_marked():
            yield _Part(self._take_header())
        elif self._header is not None:
            yield from self._header_as_text()

    def _can_be_header(self) -> bool:
        """Whether the open header can be one.

        A prompt begins the header of the first message. A model that knows nothing of the format
        answers right after it.
        """
        header = (self._header or "").removeprefix(self._prompt_header)
        if len(header) > _MAX_HEADER:
            return False
        return self._is_marked() or header.startswith(" to=") or " to=".startswith(header)

    def _is_marked(self) -> bool:
        """Whether the open header has a mark, but for what the prompt has of it."""
        header = (self._header or "").removeprefix(self._prompt_header)
        return CHANNEL in self._prompt_header or CHANNEL in header or START in header

    def _header_as_text(self) -> Iterator[_Part]:
        if header := self._take_header():
            yield self._part(header)

    def _take_header(self) -> str:
        """The open header without what the prompt has of it; none is open afterwards."""
        header = (self._header or "").removeprefix(self._prompt_header)
        self._header, self._prompt_header = None, ""
        return header

    def _begin(self) -> _Part:
        """Begins the message of the open header."""
        header = self._header or ""
        hidden = self._take_header() + MESSAGE
        recipient, channel = _RECIPIENT.search(header), _CHANNEL_NAME.search(header)
        name = recipient[1] if recipient is not None else ""
        self._is_new_message = True
        if name.startswith(_FUNCTIONS) and self._finds_calls:
            index, self._num_calls = self._num_calls, self._num_calls + 1
            self._make_piece = partial(CallArguments, index)
            call = CallBegin(index, compat.make_tool_call_id(), name.removeprefix(_FUNCTIONS))
            return _Part(hidden, None, (call,))
        is_call = name.startswith(_FUNCTIONS)
        reasons = bool(name) or (channel is not None and channel[1] == "analysis")
        shows_reasoning = self._finds_reasoning and reasons and not is_call
        self._make_piece = ReasoningPiece if shows_reasoning else TextPiece
        return _Part(hidden)

    def _part(self, text: str) -> _Part:
        """Text of the open message; a further message of its kind begins with a new line."""
        make_piece = self._make_piece
        prefix: Sequence[Piece] = ()
        if self._is_new_message and make_piece in self._makers_of_text:
            prefix = (make_piece("\n"),)
        self._is_new_message = False
        if make_piece in (TextPiece, ReasoningPiece):
            self._makers_of_text.add(make_piece)
        return _Part(text, make_piece, prefix)


def _tail(tokens: HarmonyTokens, prompt: Sequence[int]) -> list[tuple[str, str | None]]:
    """The prompt's last message: its ordinary texts, each with the mark after it."""
    if tokens.start not in prompt:
        return []
    texts: list[tuple[str, str | None]] = []
    decode, text = tokens.decoder(), ""
    for token in prompt[len(prompt) - 1 - prompt[::-1].index(tokens.start) :]:
        text += decode(token)
        if (mark := tokens.marks.get(token)) is not None:
            texts.append((text.removesuffix(mark), mark))
            text = ""
    texts.append((text, None))
    return texts
