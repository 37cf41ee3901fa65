"""How an engine tells an answer, its reasoning and the calls that a model makes by itself apart.

Each model marks them in its own way, so the parsers are the engine's. Calls that a request forces
have the gateway's own format and need no parser. Nothing here imports torch, vLLM, FastAPI or
pydantic.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from engine_adapter.seam.message_parts import AssistantMessage, Piece
from engine_adapter.seam.types import Delta, StructuredOutput


@dataclass(frozen=True, slots=True)
class ParsingRequest:
    """The part of a request that parsers read.

    Attributes:
        tools: what the model may call, in OpenAI's format; empty: calls are not looked for.
        template_variables: the variables that the client has given to the chat template.
        num_earlier_calls: calls in the chat so far; some models number them.
    """

    prompt_token_ids: tuple[int, ...]
    tools: Sequence[Mapping[str, Any]] = ()
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    num_earlier_calls: int = 0


@dataclass(frozen=True, slots=True)
class CallConstraint:
    """A constraint that holds the calls which the model chooses to make to their schemas.

    Attributes:
        constraint: on the whole text.
        begins: how the text of calls begins, if a text is either calls or an answer. Empty: there
            may be text around calls.
    """

    constraint: StructuredOutput
    begins: tuple[str, ...]


class NoCallGrammar(Exception):
    """No grammar can express the text as the parser reads it; the message says why."""


@dataclass(frozen=True, slots=True)
class ParserFailure:
    """Why a parser has not read a text to its end.

    Attributes:
        reason: it took too much time, or it had an error.
        cause: the time that it had, or the class of the error. Nothing of the text is in it.
    """

    reason: Literal["time", "error"]
    cause: str


class OutputParser(Protocol):
    """Parses one sequence: all deltas through `read`, or everything at once through `whole`.

    Attributes:
        failure: `None` while the parser works. Afterwards the text that it has not read is text of
            the answer as it is, with all marks.
    """

    failure: ParserFailure | None

    def read(self, delta: Delta) -> Sequence[Piece]:
        """The pieces that the delta completes; the last delta has a finish reason."""
        ...

    def whole(self, everything: Delta) -> AssistantMessage:
        """The message, from the whole text and all token ids."""
        ...

    @property
    def num_reasoning_tokens(self) -> int | None:
        """Generated tokens that are reasoning; `None` without a reasoning parser."""
        ...


class Parsing(Protocol):
    """The parsers of one request."""

    @property
    def needs_special_tokens(self) -> bool:
        """Whether the text must keep special tokens, because they mark reasoning or calls."""
        ...

    def new_parser(self) -> OutputParser:
        """A parser for one choice."""
        ...

    def text_constraint(self, answer: StructuredOutput) -> StructuredOutput:
        """The constraint on a whole text without calls whose answer is held to `answer`.

        Raises:
            NoCallGrammar: the engine cannot hold such a text to its answer.
        """
        ...

    def call_constraint(
        self, schemas: Mapping[str, str], answer: StructuredOutput | None, *, single_call: bool
    ) -> CallConstraint:
        """The constraint on a text in which the model may call tools.

        Args:
            schemas: tool -> the JSON schema of its arguments, as JSON text.
            answer: JSON that the text is if it is not calls; `None` leaves the text around calls
                free.
            single_call: there is at most one call.

        Raises:
            NoCallGrammar: the engine cannot hold such a text to its calls.
        """
        ...
