"""How a chat's tools and reasoning are held and read: from its input to a reader per choice."""

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
from server.openai.chat_input import ChatInput
from server.openai.function_tools import FunctionTools
from server.openai.message_parts import MessageReader, TextReader
from server.openai.readers import AnswerOrCallsReader, NamedReader, ParsedReader, RequiredReader
from server.schema.generation_body import GenerationBody
from server.schema.structured import constraint_field
from server.schema.tools import NamedTool
from server.state import Runtime
from server.telemetry.metrics import Metrics
from server.telemetry.repeated_warning import RepeatedWarning

_failures = RepeatedWarning("parser_failed")


def check_tool_use(runtime: Runtime, body: GenerationBody, chat: ChatInput) -> None:
    """Raises `InvalidField` for tools or hidden reasoning that the server has no parser for."""
    info = runtime.info
    if chat.tools.choice == "auto" and info.tool_call_parser.name is None:
        why = (
            "needs a parser of this model's calls, and there is none: "
            f"{info.tool_call_parser.reason}. --tool-call-parser names one"
            if runtime.settings.enable_auto_tool_choice
            else "is turned off by --no-enable-auto-tool-choice"
        )
        message = (
            f"tool_choice 'auto' {why}; tool_choice {chat.names.other_choices} need no parser."
        )
        raise InvalidField("tool_choice", message)
    if not chat.shows_reasoning and info.reasoning_parser.name is not None:
        revealing_fields = {
            chat.names.logprobs: chat.num_top_logprobs is not None,
            "return_token_ids": body.return_token_ids,
        }
        for field, is_set in revealing_fields.items():
            if is_set:
                message = f"{field} would show the reasoning that include_reasoning hides."
                raise InvalidField("include_reasoning", message)


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How the text of one chat is held to its tools, and read.

    Attributes:
        on_failure: called for each choice whose parser fails.
        parsing: the engine's parsers; `None` if the text needs none.
        tools: what the model may or must call.
        shows_reasoning: the message has the reasoning.
        held_fields: the fields that only a constraint on a text that may have calls can honour: the
            format, and `strict` of each tool that the model may call.
        of_answer: those of a text that is an answer where it can be calls.
        calls: the constraint on a text in which the model may call tools, if it has one.
    """

    on_failure: Callable[[ParserFailure], None]
    parsing: Parsing | None
    tools: FunctionTools
    shows_reasoning: bool
    held_fields: tuple[str, ...]
    of_answer: Parsing | None = None
    calls: CallConstraint | None = None

    def constrained(self, options: SamplingOptions) -> SamplingOptions:
        """The options with the constraint, and with the special tokens that parsers need.

        Raises `InvalidField` if the engine cannot hold the answer to its constraint.
        """
        answer = options.structured_output
        if self.calls is not None:
            options = replace(options, structured_output=self.calls.constraint)
        elif self.held_fields:
            options = replace(options, structured_output=None)
        elif answer is not None and self.parsing is not None:
            options = replace(options, structured_output=_text_constraint(self.parsing, answer))
        if self.parsing is None or not self.parsing.needs_special_tokens:
            return options
        return replace(options, skip_special_tokens=False)

    def new_reader(self) -> MessageReader:
        """The reader of one choice."""
        if self.calls is not None and self.calls.begins:
            answer, calls = self._reader(self.of_answer), self._reader(self.parsing)
            return AnswerOrCallsReader(answer, calls, self.calls.begins)
        inner = self._reader(self.parsing)
        choice = self.tools.choice
        if isinstance(choice, NamedTool):
            return NamedReader(inner, choice.function.name)
        return RequiredReader(inner) if choice == "required" else inner

    def unmet(self, *, strict: bool) -> tuple[str, ...]:
        """The fields that are ignored because the text has no constraint.

        Raises `InvalidField` for such a field, if `strict`.
        """
        if self.calls is not None or not self.held_fields:
            return ()
        if strict:
            field = self.held_fields[0]
            message = f"{field} cannot be enforced with this server's tool call parser"
            raise InvalidField(field, f"{message}; leave it out.", "unsupported_parameter")
        return self.held_fields

    def _reader(self, parsing: Parsing | None) -> MessageReader:
        if parsing is None:
            return TextReader()
        return ParsedReader(
            parsing.new_parser(),
            max_calls=1 if self.tools.single else None,
            shows_reasoning=self.shows_reasoning,
            on_failure=self.on_failure,
        )


def tool_use(
    runtime: Runtime,
    body: GenerationBody,
    chat: ChatInput,
    prompt: tuple[int, ...],
) -> ToolUse:
    """How the text is held to the tools, and read.

    Args:
        body: has the fields that say where the text ends.
        prompt: token ids.
    """
    tools = chat.tools
    may_call = tools.choice == "auto"
    request = ParsingRequest(
        prompt_token_ids=prompt,
        tools=chat.prompt.tools if may_call else (),
        template_variables=chat.prompt.variables,
        num_earlier_calls=sum(len(message.tool_calls or ()) for message in chat.prompt.messages),
    )
    use = ToolUse(
        on_failure=partial(_count_failure, runtime.metrics),
        parsing=runtime.engine.parsing(request),
        tools=tools,
        shows_reasoning=chat.shows_reasoning,
        held_fields=_held_fields(chat) if may_call else (),
    )
    if use.parsing is None or not may_call:
        return use
    calls = None
    has_own_end = body.ignore_eos or body.min_tokens  # the text ends where other fields say
    if chat.constraint is not None or (use.held_fields and not has_own_end):
        calls = _call_constraint(chat, use.parsing)
    of_answer = None
    if calls is not None and calls.begins:
        of_answer = runtime.engine.parsing(replace(request, tools=()))
    return replace(use, of_answer=of_answer, calls=calls)


def _text_constraint(parsing: Parsing, answer: StructuredOutput) -> StructuredOutput:
    try:
        return parsing.text_constraint(answer)
    except NoCallGrammar as error:
        message = f"{answer.param} cannot be enforced with this model's format of messages: {error}"
        raise InvalidField(answer.param, message, "unsupported_parameter") from error


def _held_fields(chat: ChatInput) -> tuple[str, ...]:
    """See `ToolUse`."""
    tools, answer = chat.tools, chat.constraint
    of_format = () if answer is None else (constraint_field(answer.param, chat.names.format),)
    of_tools = (
        path.strict
        for path, function in zip(tools.paths, tools.functions, strict=True)
        if function.strict
    )
    return (*of_format, *of_tools)


def _count_failure(metrics: Metrics, failure: ParserFailure) -> None:
    metrics.count_parser_failure(failure.reason)
    _failures.add(time.monotonic(), reason=failure.reason, cause=failure.cause)


def _call_constraint(chat: ChatInput, parsing: Parsing) -> CallConstraint | None:
    """The constraint on a text that may have calls; `None` if the engine has no grammar of them."""
    try:
        return parsing.call_constraint(
            chat.tools.call_schemas(), chat.constraint, single_call=chat.tools.single
        )
    except NoCallGrammar:
        return None
