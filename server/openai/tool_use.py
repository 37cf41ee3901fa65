"""How a chat's tools and reasoning are read: from the fields of its body to a reader per choice."""

from dataclasses import replace

from engine_adapter.parsing import Parsing, ParsingRequest
from engine_adapter.types import SamplingOptions
from server.errors import InvalidField
from server.openai.message_parts import MessageReader, TextReader
from server.openai.prompts import template_variables
from server.openai.readers import NamedReader, ParsedReader, RequiredReader
from server.schema.chat import ChatCompletionRequest
from server.schema.tools import NamedTool, check_choice, check_tools
from server.state import Runtime


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


def parsing_of(
    runtime: Runtime, body: ChatCompletionRequest, prompt: tuple[int, ...]
) -> Parsing | None:
    """The engine's parsers for a chat; `None` if its text needs none."""
    tools = body.tools if body.choice == "auto" else None
    calls = sum(len(message.tool_calls or ()) for message in body.messages)
    request = ParsingRequest(
        prompt_token_ids=prompt,
        tools=tuple(tool.for_template() for tool in tools or ()),
        template_variables=template_variables(body),
        num_earlier_calls=calls,
    )
    return runtime.engine.parsing(request)


def new_reader(body: ChatCompletionRequest, parsing: Parsing | None) -> MessageReader:
    """The reader of one choice."""
    inner: MessageReader = TextReader()
    if parsing is not None:
        inner = ParsedReader(
            parsing.new_parser(),
            max_calls=1 if body.parallel_tool_calls is False else None,
            shows_reasoning=body.include_reasoning is not False,
        )
    if isinstance(body.choice, NamedTool):
        return NamedReader(inner, body.choice.function.name)
    return RequiredReader(inner) if body.choice == "required" else inner


def for_parsing(options: SamplingOptions, parsing: Parsing | None) -> SamplingOptions:
    """The options with the special tokens in the text that parsers need."""
    if parsing is None or not parsing.needs_special_tokens:
        return options
    return replace(options, skip_special_tokens=False)
