"""The body of `/v1/responses`."""

from typing import Annotated, Any, ClassVar, Literal, Self, get_args

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from engine_adapter.seam.text import short_repr
from engine_adapter.seam.types import StructuredOutput
from server.errors import InvalidField
from server.schema.base import Body, Bounded, Strict, UnicodeText, refused, unsupported
from server.schema.bounds import MAX_REGEX_CHARS, too_many
from server.schema.chat import ChatCompletionRequest, ReasoningEffort, TemplateVariables
from server.schema.conversations import Conversation
from server.schema.generation_body import MAX_INT, GenerationBody
from server.schema.identifiers import CacheKey, Id, Metadata, SafetyIdentifier, User
from server.schema.processor_arguments import ProcessorArguments
from server.schema.response_items import Input
from server.schema.structured import (
    Grammar,
    JsonObjectFormat,
    JsonSchemaFormat,
    TextFormat,
    from_format,
)
from server.schema.tools import MAX_TOOLS, Function, Name

LOGPROBS = "message.output_text.logprobs"
"""The entry of `include` that asks for log probabilities."""

MAX_INCLUDES = 64
"""The most entries of `include`, of which there are only a few kinds."""

PAGE, MAX_PAGE = 20, 100
"""OpenAI's default and limit of the items of a page."""

Includable = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
]
"""OpenAI's values of `include`. All but the first add to items that this server never makes."""


HostedKind = Literal[
    "web_search",
    "web_search_2025_08_26",
    "web_search_preview",
    "web_search_preview_2025_03_11",
    "file_search",
    "code_interpreter",
    "computer",
    "computer_use_preview",
    "image_generation",
    "mcp",
    "local_shell",
    "shell",
    "apply_patch",
    "tool_search",
    "programmatic_tool_calling",
]
"""The types of tools that OpenAI's servers run, or that their models are trained on."""

CALLABLE_TOOLS = ("function", "custom", "namespace")
"""The types of tools that the model may call here."""


def _known_tool(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is not None and kind not in (*CALLABLE_TOOLS, *get_args(HostedKind)):
        use = ", ".join(CALLABLE_TOOLS)
        raise unsupported(f"the tool type {short_repr(kind)} is not supported; use {use}")
    return value


def _callable_only(value: Any) -> Any:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is not None and kind not in ("function", "custom"):
        raise unsupported(
            f"the tool type {short_repr(kind)} is not supported; use function or custom"
        )
    return value


def _choosable(value: Any) -> Any:
    kinds = ("function", "custom", "allowed_tools")
    kind = value.get("type") if isinstance(value, dict) else None
    if kind is not None and kind not in kinds:
        raise unsupported(f"the type {short_repr(kind)} is not supported; use {', '.join(kinds)}")
    return value


def _choice_form(value: Any) -> str:
    """The form of a tool choice, so that an error is about that form only."""
    if isinstance(value, dict):
        value = value.get("type", "function")
    elif isinstance(value, ChosenFunction | AllowedTools):
        value = value.type
    if value in ("function", "custom"):
        return "function"
    return "allowed_tools" if value == "allowed_tools" else "word"


class JsonSchemaText(JsonSchemaFormat):
    """JSON that fits a schema; the fields of a chat's `json_schema`, without that object."""

    type: Literal["json_schema"]


class TextConfig(Strict):
    """The format of the text."""

    format: Annotated[
        TextFormat | JsonObjectFormat | JsonSchemaText | None, Field(discriminator="type")
    ] = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Strict):
    """How the model reasons.

    Reasoning is returned as it is written, so nothing is summarized. A `summary` that asks for more
    than `auto` is ignored with notice.
    """

    effort: ReasoningEffort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Annotated[None, refused("auto")] = None
    context: Annotated[None, refused("auto")] = None
    mode: Annotated[None, refused("standard")] = None


class FunctionTool(Function):
    """A function that the model may call; the fields of a chat's, without that object."""

    type: Literal["function"]
    defer_loading: Annotated[None, refused(False)] = None
    allowed_callers: Annotated[None, refused([], ["direct"])] = None
    output_schema: Annotated[None, refused()] = None


class GrammarFormat(Strict):
    """A grammar in Lark's syntax, or a regular expression, that describes a whole text."""

    type: Literal["grammar"]
    syntax: Literal["lark", "regex"]
    definition: Grammar

    @model_validator(mode="after")
    def _check_length(self) -> Self:
        """A regular expression may not have as many characters as a grammar."""
        if self.syntax == "regex" and len(self.definition) > MAX_REGEX_CHARS:
            raise ValueError(
                f"definition {too_many('characters', MAX_REGEX_CHARS, len(self.definition))}"
            )
        return self


CustomFormat = Annotated[TextFormat | GrammarFormat, Field(discriminator="type")]
"""What the input of a custom tool is like."""


class CustomTool(Strict):
    """A tool whose input is a text, free or in a grammar."""

    type: Literal["custom"]
    name: Name
    description: UnicodeText | None = None
    format: CustomFormat | None = None
    defer_loading: Annotated[None, refused(False)] = None
    allowed_callers: Annotated[None, refused([], ["direct"])] = None

    @property
    def grammar(self) -> GrammarFormat | None:
        """The grammar of its input."""
        return self.format if isinstance(self.format, GrammarFormat) else None


CallableTool = Annotated[
    Annotated[FunctionTool | CustomTool, Field(discriminator="type")],
    BeforeValidator(_callable_only),
]
"""A tool that the model calls by its name."""


class NamespaceTool(Strict):
    """Tools with a common prefix: the model sees the tool `b` of the namespace `a` as `a__b`."""

    type: Literal["namespace"]
    name: Name
    description: UnicodeText | None = None
    tools: Annotated[list[CallableTool], Field(max_length=MAX_TOOLS, fail_fast=True)]


class HostedTool(Bounded):
    """A tool that OpenAI's servers would run. It is left out, and named in a header."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: HostedKind


Tools = Annotated[
    list[
        Annotated[
            FunctionTool | CustomTool | NamespaceTool | HostedTool,
            Field(discriminator="type"),
            BeforeValidator(_known_tool),
        ]
    ],
    Field(max_length=MAX_TOOLS, fail_fast=True),
]
"""The tools of a request."""


class ChosenFunction(Strict):
    """One of the functions or custom tools, which must be called."""

    type: Literal["function", "custom"]
    name: str


class AllowedTools(Strict):
    """The functions of which some (`auto`) or at least one (`required`) may be called."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[Annotated[ChosenFunction, BeforeValidator(_callable_only)]],
        Field(min_length=1, max_length=MAX_TOOLS, fail_fast=True),
    ]


ToolChoice = Annotated[
    Annotated[Literal["none", "auto", "required"], Tag("word")]
    | Annotated[ChosenFunction, Tag("function")]
    | Annotated[AllowedTools, Tag("allowed_tools")],
    Discriminator(_choice_form),
    BeforeValidator(_choosable),
]
"""Which functions may or must be called."""


class ResponsePrompt(BaseModel):
    """What the model reads besides the input."""

    instructions: str | None = None
    previous_response_id: Id | None = None
    text: TextConfig | None = None
    reasoning: Reasoning | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    truncation: Literal["auto", "disabled"] | None = None
    chat_template_kwargs: TemplateVariables | None = None
    mm_processor_kwargs: ProcessorArguments | None = None
    conversation: Conversation | None = None


class CountInputRequest(Body, ResponsePrompt):
    """The tokens of a response's input are counted, and nothing is generated."""

    input: Input | None = None


class AnyResponse(GenerationBody, ResponsePrompt):
    """What a response and a compaction take, with the sampling fields of a chat."""

    input: Input | None = None
    store: bool | None = None
    background: bool | None = None
    metadata: Metadata | None = None
    max_output_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    max_tool_calls: int | None = Field(None, ge=1, le=MAX_INT)
    include: Annotated[list[Includable], Field(max_length=MAX_INCLUDES, fail_fast=True)] | None = (
        None
    )
    top_logprobs: int | None = Field(None, ge=0, le=MAX_INT)
    user: User | None = None
    safety_identifier: SafetyIdentifier | None = None
    prompt_cache_key: CacheKey | None = None
    include_reasoning: bool | None = None

    # Known in order to be refused.
    n: Annotated[None, refused(1)] = None
    prompt_logprobs: Annotated[None, refused(instead="send a chat")] = None
    thinking_token_budget: Annotated[None, refused(-1, instead="send a chat")] = None
    repetition_detection: Annotated[None, refused(instead="send a chat")] = None
    return_token_ids: Annotated[None, refused(False, instead="send a chat")] = None
    response_format: Annotated[None, refused(instead="use text.format")] = None
    prompt: Annotated[None, refused(instead="use input and instructions")] = None
    context_management: Annotated[None, refused([])] = None
    prompt_cache_options: Annotated[None, refused({}, {"mode": "implicit"})] = None
    image: Annotated[None, refused({})] = None
    access_programs: Annotated[None, refused({})] = None
    enable_response_messages: Annotated[None, refused(False)] = None
    previous_input_messages: Annotated[None, refused(instead="use input")] = None
    mm_payload: Annotated[None, refused({}, [])] = None
    return_mm_kwargs: Annotated[None, refused(False)] = None

    format_field: ClassVar[str] = "text.format"
    of_other_routes = ChatCompletionRequest.model_fields

    def own_format(self) -> StructuredOutput | None:
        """The constraint in `text.format`. Raises `InvalidField`."""
        if self.text is None or self.text.format is None:
            return None
        return from_format(self.text.format, self.format_field, f"{self.format_field}.schema")

    @property
    def has_logprobs(self) -> bool:
        """Whether the text comes with log probabilities."""
        return LOGPROBS in (self.include or ())

    def check_stream_options(self) -> None:
        """Raises `InvalidField` if `stream_options` is set and cannot be honoured.

        The last event of a stream always has the usage, so `include_usage` changes nothing.
        """
        super().check_stream_options()
        if self.continuous_usage:
            param = "stream_options.continuous_usage_stats"
            raise InvalidField(param, f"{param} is not supported.", "unsupported_parameter")


class ResponsesRequest(AnyResponse):
    """A response."""

    input: Input


class CompactRequest(AnyResponse):
    """A conversation is shortened: `text` and the tools have no effect on its summary."""

    stream: Annotated[None, refused(False)] = None
    store: Annotated[None, refused(False)] = None
    background: Annotated[None, refused(False)] = None
    conversation: Annotated[None, refused(instead="send input or previous_response_id")] = None
    include: Annotated[None, refused([])] = None
    top_logprobs: Annotated[None, refused(0)] = None
    max_tool_calls: Annotated[None, refused()] = None
    metadata: Annotated[None, refused({})] = None
