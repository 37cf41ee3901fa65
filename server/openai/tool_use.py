"""How a chat's tools and reasoning are held and read: from its body to a reader per choice."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from engine_adapter.seam.parsing import (
    CallConstraint,
    NoCallGrammar,
    ParserFailure,
    Parsing,
    ParsingRequest,
)
from engine_adapter.seam.types import SamplingOptions, StructuredOutput
from server.errors import InvalidField
from server.openai.message_parts import MessageReader, TextReader
from server.openai.prompts import template_variables
from server.openai.readers import AnswerOrCallsReader, NamedReader, ParsedReader, RequiredReader
from server.schema.chat import ChatCompletionRequest
from server.schema.tools import NamedTool, ToolChoice, call_schemas, check_choice, check_tools
from server.state import Runtime
from server.telemetry.metrics import Metrics
from server.telemetry.repeated_warning import RepeatedWarning

_failures = RepeatedWarning("parser_failed")


def check_tool_use(runtime: Runtime, body: ChatCompletionRequest) -> None:
    """Raises `InvalidField` for tools that cannot work, or that the server is not set up for."""
    check_tools(body.tools or ())
    check_choice(body.tools or (), body.tool_choice)
    settings = runtime.settings
    if body.choice == "auto" and not settings.enable_auto_tool_choice:
        message = (
            '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be '
            "set; tool_choice 'required', a named tool and 'none' do not."
        )
        raise InvalidField("tool_choice", message)
    if body.include_reasoning is False and settings.reasoning_parser:
        for field in ("logprobs", "return_token_ids"):
            if getattr(body, field):
                message = f"{field} would show the reasoning that include_reasoning hides."
                raise InvalidField("include_reasoning", message)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How the text of one chat is held to its tools, and read.

    Attributes:
        on_failure: called for each choice whose parser fails.
        parsing: the engine's parsers; `None` if the text needs none.
        choice: OpenAI's, with its default.
        single: at most one call.
        shows_reasoning: the message has the reasoning.
        strict: the fields `strict` of tools that the model may call.
        of_answer: those of a text that is an answer where it can be calls.
        calls: the constraint on a text in which the model may call tools, if it has one.
    """

    on_failure: Callable[[ParserFailure], None]
    parsing: Parsing | None
    choice: ToolChoice
    single: bool
    shows_reasoning: bool
    strict: tuple[str, ...]
    of_answer: Parsing | None = None
    calls: CallConstraint | None = None

    def constrained(self, options: SamplingOptions) -> SamplingOptions:
        """The options with the constraint, and with the special tokens that parsers need."""
        if self.calls is not None:
            options = replace(options, structured_output=self.calls.constraint)
        if self.parsing is None or not self.parsing.needs_special_tokens:
            return options
        return replace(options, skip_special_tokens=False)

    def new_reader(self) -> MessageReader:
        """The reader of one choice."""
        if self.calls is not None and self.calls.begins:
            answer, calls = self._reader(self.of_answer), self._reader(self.parsing)
            return AnswerOrCallsReader(answer, calls, self.calls.begins)
        inner = self._reader(self.parsing)
        if isinstance(self.choice, NamedTool):
            return NamedReader(inner, self.choice.function.name)
        return RequiredReader(inner) if self.choice == "required" else inner

    def unmet(self, *, strict: bool) -> tuple[str, ...]:
        """The fields `strict` of tools that are ignored.

        Raises `InvalidField` for such a field, if `strict`.
        """
        if self.calls is not None or not self.strict:
            return ()
        if strict:
            field = self.strict[0]
            message = f"{field} cannot be enforced with this server's tool call parser"
            raise InvalidField(field, f"{message}; leave it out.", "unsupported_parameter")
        return self.strict

    def _reader(self, parsing: Parsing | None) -> MessageReader:
        if parsing is None:
            return TextReader()
        return ParsedReader(
            parsing.new_parser(),
            max_calls=1 if self.single else None,
            shows_reasoning=self.shows_reasoning,
            on_failure=self.on_failure,
        )


def tool_use(
    runtime: Runtime,
    body: ChatCompletionRequest,
    prompt: tuple[int, ...],
    constraint: StructuredOutput | None,
) -> ToolUse:
    """How the text is held to the tools, and read.

    Args:
        constraint: on the text, as the body has it.

    Raises:
        InvalidField: a format cannot be held beside calls that the model may choose.
    """
    tools = body.tools if body.choice == "auto" else None
    num_calls = sum(len(message.tool_calls or ()) for message in body.messages)
    request = ParsingRequest(
        prompt_token_ids=prompt,
        tools=tuple(tool.for_template() for tool in tools or ()),
        template_variables=template_variables(body),
        num_earlier_calls=num_calls,
    )
    use = ToolUse(
        on_failure=partial(_count_failure, runtime.metrics),
        parsing=runtime.engine.parsing(request),
        choice=body.choice,
        single=body.parallel_tool_calls is False,
        shows_reasoning=body.include_reasoning is not False,
        strict=tuple(
            f"tools.{i}.function.strict"
            for i, tool in enumerate(tools or ())
            if tool.function.strict
        ),
    )
    if use.parsing is None or not request.tools:
        return use
    calls = _chosen_calls(body, use.parsing, constraint)
    of_answer = None
    if calls is not None and calls.begins:
        of_answer = runtime.engine.parsing(replace(request, tools=()))
    return replace(use, of_answer=of_answer, calls=calls)


def _count_failure(metrics: Metrics, failure: ParserFailure) -> None:
    metrics.count_parser_failure(failure.reason)
    _failures.add(time.monotonic(), reason=failure.reason, cause=failure.cause)


def _chosen_calls(
    body: ChatCompletionRequest, parsing: Parsing, answer: StructuredOutput | None
) -> CallConstraint | None:
    """The constraint on a text that may have calls; `None` if nothing holds it.

    Without a format, `strict` is enforced where it can be, and otherwise ignored with notice.
    """
    tools = body.tools or ()
    if answer is None and (_has_own_end(body) or not any(one.function.strict for one in tools)):
        return None
    single = body.parallel_tool_calls is False
    try:
        return parsing.call_constraint(call_schemas(tools), answer, single=single)
    except NoCallGrammar as error:
        if answer is None:
            return None
        field = answer.param.partition(".")[0]
        message = (
            f"{field} cannot be enforced beside tools with tool_choice 'auto': {error}. Send "
            "another tool_choice, or leave it out."
        )
        raise InvalidField(field, message, "unsupported_parameter") from error


def _has_own_end(body: ChatCompletionRequest) -> bool:
    """Whether other fields than a constraint say where the text ends."""
    return bool(body.ignore_eos or body.min_tokens)
