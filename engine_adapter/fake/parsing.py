"""The fake engine's parsers: `<think>...</think>` and `<tool_call>{...}</tool_call>`.

They stand in for vLLM's `deepseek_r1` and `hermes`, under these names, and know nothing of tokens.
"""

import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from engine_adapter.seam.config import AUTO_PARSER, EngineConfig
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
from engine_adapter.seam.types import ConstraintKind, Delta, StructuredOutput

TOOL_CALL_PARSERS = ("hermes",)
REASONING_PARSERS = ("deepseek_r1",)

_TAGS = ("<think>", "</think>", "<tool_call>", "</tool_call>")
_TAG = re.compile("|".join(_TAGS))


def checked(config: EngineConfig) -> EngineConfig:
    """The configuration with the parsers' names.

    Calls in scripted texts have one form, which no template decides. Other texts never reason.

    Raises:
        EngineConfigError: the fake engine does not have a parser.
    """
    if config.tool_call_parser == AUTO_PARSER:
        config = replace(config, tool_call_parser=TOOL_CALL_PARSERS[0])
    if config.reasoning_parser == AUTO_PARSER:
        config = replace(config, reasoning_parser=None)
    for setting, name, names in (
        ("tool_call_parser", config.tool_call_parser, TOOL_CALL_PARSERS),
        ("reasoning_parser", config.reasoning_parser, REASONING_PARSERS),
    ):
        if name is not None and name not in names:
            message = f"the parser {name!r} does not exist; the fake engine has {', '.join(names)}"
            raise EngineConfigError(setting, message)
    return config


def parsing(config: EngineConfig, request: ParsingRequest) -> "FakeParsing | None":
    """The parsers of a request; `None` if there is nothing to tell apart."""
    calls = config.tool_call_parser is not None and bool(request.tools)
    reasoning = config.reasoning_parser is not None
    return FakeParsing(calls, reasoning) if calls or reasoning else None


@dataclass(frozen=True, slots=True)
class ChosenCalls(StructuredOutput):
    """A scripted answer of any kind; without one JSON of the schema `value`.

    An empty `value` leaves the text to chance.
    """


@dataclass(frozen=True, slots=True)
class FakeParsing:
    """Which parts of a text are told apart. See `Parsing`."""

    calls: bool
    reasoning: bool
    needs_special_tokens: bool = False

    def new_parser(self) -> "FakeParser":
        """See `Parsing.new_parser`."""
        return FakeParser(self.calls, self.reasoning)

    def text_constraint(self, answer: StructuredOutput) -> StructuredOutput:
        """See `Parsing.text_constraint`."""
        return answer

    def call_constraint(
        self, schemas: Mapping[str, str], answer: StructuredOutput | None, *, single_call: bool
    ) -> CallConstraint:
        """See `Parsing.call_constraint`. Calls are scripted, so nothing holds them."""
        if answer is None:
            return CallConstraint(ChosenCalls(ConstraintKind.JSON_SCHEMA, param="tools"), ())
        constraint = ChosenCalls(
            answer.kind, answer.value, param=answer.param, unenforced=answer.unenforced
        )
        return CallConstraint(constraint, ("<tool_call>",))


class FakeParser:
    """See `OutputParser`. Tags of what is not told apart are text."""

    def __init__(self, calls: bool, reasoning: bool) -> None:
        self._calls = calls
        self._reasoning = reasoning
        self._open_tag = ""
        self._withheld = ""
        self._index = -1
        self._tokens = 0
        self.failure: ParserFailure | None = None

    def read(self, delta: Delta) -> Sequence[Piece]:
        """See `OutputParser.read`. A call appears with its end."""
        if self.failure is not None:
            return [TextPiece(delta.text)] if delta.text else []
        pieces = list(self._pieces(delta))
        reasoning = sum(len(piece.text) for piece in pieces if isinstance(piece, ReasoningPiece))
        if reasoning:
            share = min(1, reasoning / max(1, len(delta.text)))
            self._tokens += math.ceil(len(delta.token_ids) * share)
        return pieces

    def whole(self, everything: Delta) -> AssistantMessage:
        """See `OutputParser.whole`."""
        return assemble(self.read(everything))

    @property
    def num_reasoning_tokens(self) -> int | None:
        """An estimate: of each delta's tokens, the share that its reasoning has of its text."""
        return self._tokens if self._reasoning else None

    def _pieces(self, delta: Delta) -> Iterator[Piece]:
        text, self._withheld = self._withheld + delta.text, ""
        while text:
            if self._open_tag == "<tool_call>":
                body, end, text = text.partition("</tool_call>")
                if not end:
                    self._withheld = body
                    return
                self._open_tag = ""
                try:
                    yield from self._call(body)
                except (ValueError, LookupError, TypeError) as error:
                    self.failure = ParserFailure("error", type(error).__name__)
                    yield TextPiece(f"<tool_call>{body}{end}{text}")
                    return
                continue
            if (tag := _TAG.search(text)) is None:
                if delta.finish_reason is None:
                    text, self._withheld = _split(text)
                yield from self._plain(text)
                return
            yield from self._plain(text[: tag.start()])
            text = text[tag.end() :]
            if not self._enter(tag[0]):
                yield from self._plain(tag[0])

    def _enter(self, tag: str) -> bool:
        """Follows a tag; false if it is text."""
        if not (self._calls if "tool" in tag else self._reasoning):
            return False
        self._open_tag = "" if tag.startswith("</") else tag
        return True

    def _plain(self, text: str) -> Iterator[Piece]:
        if text:
            yield ReasoningPiece(text) if self._open_tag else TextPiece(text)

    def _call(self, body: str) -> Iterator[Piece]:
        call = json.loads(body)
        name, arguments = call["name"], json.dumps(call["arguments"], ensure_ascii=False)
        self._index += 1
        yield CallBegin(self._index, f"call_{uuid.uuid4().hex[:24]}", name)
        yield CallArguments(self._index, arguments)


def _split(text: str) -> tuple[str, str]:
    """The text without an end that may begin a tag, and that end."""
    position = text.rfind("<")
    if position >= 0 and any(tag.startswith(text[position:]) for tag in _TAGS):
        return text[:position], text[position:]
    return text, ""
