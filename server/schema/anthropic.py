"""The bodies of `/v1/messages` and `/v1/messages/count_tokens`."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from engine_adapter.seam.types import StructuredOutput
from server.schema.base import Body, Bounded, Strict, UnicodeText, refused
from server.schema.bounds import MAX_PARTS
from server.schema.chat import ChatCompletionRequest, ReasoningEffort
from server.schema.generation_body import MAX_INT, GenerationBody, Stop
from server.schema.identifiers import Id, User
from server.schema.messages import MAX_MESSAGES
from server.schema.response_items import TEXT_OR_LIST, form, known_type
from server.schema.structured import schema_constraint
from server.schema.tools import MAX_TOOLS, Name

BLOCK_TYPES = ("text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking")
"""The kinds of blocks that a message may have."""


MAX_MEDIA_TYPE = 100
"""The most characters of a picture's media type."""


class _Block(BaseModel):
    """A block of a message; fields that say nothing to a model of text are ignored."""

    model_config = ConfigDict(strict=True)


class TextBlock(_Block):
    """A text."""

    type: Literal["text"]
    text: str


class ImageData(_Block):
    """A picture in the body. Its format is read from the picture."""

    type: Literal["base64"]
    media_type: str = Field(max_length=MAX_MEDIA_TYPE)
    data: str

    @property
    def location(self) -> str:
        """The picture as a `data:` URL."""
        return f"data:{self.media_type};base64,{self.data}"


class ImageAddress(_Block):
    """A picture behind a URL."""

    type: Literal["url"]
    url: str

    @property
    def location(self) -> str:
        """The URL."""
        return self.url


class ImageBlock(_Block):
    """A picture."""

    type: Literal["image"]
    source: Annotated[
        Annotated[ImageData | ImageAddress, Field(discriminator="type")],
        known_type("source", ("base64", "url"), None),
    ]


class ToolUseBlock(_Block):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: Id = Field(min_length=1)
    name: str = Field(min_length=1)
    input: dict[str, Any]


TextContent = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[
        list[Annotated[TextBlock, known_type("block", ("text",), None)]],
        Field(max_length=MAX_PARTS, fail_fast=True),
        Tag("list"),
    ],
    Discriminator(form),
    TEXT_OR_LIST,
]
"""A text, or blocks of text."""


ResultContent = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[
        list[
            Annotated[
                Annotated[TextBlock | ImageBlock, Field(discriminator="type")],
                known_type("block", ("text", "image"), None),
            ]
        ],
        Field(max_length=MAX_PARTS, fail_fast=True),
        Tag("list"),
    ],
    Discriminator(form),
    TEXT_OR_LIST,
]
"""A text, or blocks of text and pictures."""


class ToolResultBlock(_Block):
    """What the call `tool_use_id` returned."""

    type: Literal["tool_result"]
    tool_use_id: Id = Field(min_length=1)
    content: ResultContent | None = None
    is_error: bool | None = None


class ThinkingBlock(_Block):
    """Reasoning of an earlier answer."""

    type: Literal["thinking"]
    thinking: str


class RedactedThinkingBlock(_Block):
    """Reasoning that only its author can read; the model does not see it."""

    type: Literal["redacted_thinking"]
    data: str


Block = Annotated[
    Annotated[
        TextBlock
        | ImageBlock
        | ToolUseBlock
        | ToolResultBlock
        | ThinkingBlock
        | RedactedThinkingBlock,
        Field(discriminator="type"),
    ],
    known_type("block", BLOCK_TYPES, None),
]
"""A block of a message."""

Content = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[Block], Field(max_length=MAX_PARTS, fail_fast=True), Tag("list")],
    Discriminator(form),
    TEXT_OR_LIST,
]
"""The content of a message."""


class MessageParam(Strict):
    """A message of the conversation. The answer continues a last one of the assistant."""

    role: Literal["user", "assistant", "system"]
    content: Content


def _few_blocks(messages: Any) -> Any:
    """Refuses more blocks of all messages than a chat may have parts, before any is looked at."""
    if isinstance(messages, list) and (count := sum(map(_num_blocks, messages))) > MAX_PARTS:
        reason = f"have {count} blocks together; the maximum is {MAX_PARTS}"
        raise PydanticCustomError("too_many_parts", "{reason}", {"reason": reason})
    return messages


def _num_blocks(value: Any) -> int:
    """The blocks of a message, those of its tools' results included."""
    blocks = value.get("content") if isinstance(value, dict) else None
    if not isinstance(blocks, list):
        return 0
    results = (block.get("content") for block in blocks if isinstance(block, dict))
    return len(blocks) + sum(len(result) for result in results if isinstance(result, list))


Conversation = Annotated[
    list[MessageParam],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    BeforeValidator(_few_blocks),
]
"""At least one message."""

System = TextContent
"""What the model is told before the conversation."""


class ClientTool(Bounded):
    """A tool that the client runs; `input_schema` is a JSON schema. Other fields are ignored."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: Literal["custom"] | None = None
    name: Name
    description: UnicodeText | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None


class ServerTool(Bounded):
    """A tool of a type that Anthropic defines. It is left out, and named in a header."""

    model_config = ConfigDict(extra="allow", strict=True)

    type: str


def _tool_form(value: Any) -> str:
    kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
    return "client" if kind in (None, "custom") else "server"


Tools = Annotated[
    list[
        Annotated[
            Annotated[ClientTool, Tag("client")] | Annotated[ServerTool, Tag("server")],
            Discriminator(_tool_form),
        ]
    ],
    Field(max_length=MAX_TOOLS, fail_fast=True),
]
"""The tools of a request."""


class ToolChoice(Strict):
    """Whether the model may (`auto`) or must (`any`, `tool`) call tools."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Strict):
    """Whether the model reasons first and shows it, and after how many tokens it must answer."""

    type: Literal["enabled", "adaptive", "disabled"]
    budget_tokens: int | None = Field(None, ge=1, le=MAX_INT)
    display: Literal["summarized", "omitted"] | None = None


class JsonOutput(Strict):
    """JSON that fits a schema."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    """The effort of reasoning, and the format of the text."""

    effort: ReasoningEffort | None = None
    format: JsonOutput | None = None


class RequestMetadata(Bounded):
    """Who asks; without an effect."""

    model_config = ConfigDict(extra="allow", strict=True)

    user_id: User | None = None


class PromptBody(BaseModel):
    """What the model reads."""

    messages: Conversation
    system: System | None = None
    tools: Tools | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None


class MessagesRequest(GenerationBody, PromptBody):
    """A message. It also takes the sampling fields of a chat, under the same names."""

    format_field = "output_config.format"
    of_other_routes = ChatCompletionRequest.model_fields

    max_tokens: int = Field(ge=1, le=MAX_INT)
    stop: Stop = Field(None, alias="stop_sequences")
    metadata: RequestMetadata | None = None
    output_config: OutputConfig | None = None

    # Known in order to be refused.
    n: Annotated[None, refused(1)] = None
    response_format: Annotated[None, refused(instead="use output_config.format")] = None
    prompt_logprobs: Annotated[None, refused(instead="send a chat")] = None
    thinking_token_budget: Annotated[None, refused(-1, instead="use thinking.budget_tokens")] = None
    repetition_detection: Annotated[None, refused(instead="send a chat")] = None
    return_token_ids: Annotated[None, refused(False, instead="send a chat")] = None
    stream_options: Annotated[None, refused()] = None
    mcp_servers: Annotated[None, refused([])] = None
    container: Annotated[None, refused()] = None

    def own_format(self) -> StructuredOutput | None:
        """The constraint in `output_config.format`. Raises `InvalidField`."""
        if self.output_config is None or self.output_config.format is None:
            return None
        schema = self.output_config.format.schema_
        return schema_constraint(schema, f"{self.format_field}.schema")


class CountTokensRequest(Body, PromptBody):
    """The tokens of a prompt are counted, and nothing is generated."""

    output_config: OutputConfig | None = None
