"""What `/v1/messages` answers, for the OpenAPI document; nothing is validated."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel

from server.schema.answers import AnswerMetrics, ErrorDetail


class TokenCount(BaseModel):
    """The tokens of a prompt."""

    input_tokens: int


class AnswerText(BaseModel):
    """Text of the answer."""

    type: Literal["text"]
    text: str


class AnswerThinking(BaseModel):
    """The reasoning before it, with a reasoning parser."""

    type: Literal["thinking"]
    thinking: str
    signature: str = Field(description="always empty")


class AnswerToolUse(BaseModel):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


AnswerBlock = Annotated[AnswerText | AnswerThinking | AnswerToolUse, Field(discriminator="type")]


class MessageUsage(BaseModel):
    """Tokens of a message."""

    input_tokens: int = Field(description="of the prompt, without those whose KV was reused")
    cache_creation_input_tokens: int = Field(description="always 0: this is not counted")
    cache_read_input_tokens: int = Field(description="of the prompt, whose KV was reused")
    output_tokens: int
    num_draft_tokens: int = Field(description="drafted and verified")
    num_accepted_draft_tokens: int = Field(description="of these")


StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]


class Message(BaseModel):
    """A message of the assistant."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock]
    stop_reason: StopReason
    stop_sequence: str | None
    usage: MessageUsage
    metrics: AnswerMetrics


class BegunMessage(BaseModel):
    """A message that has no content yet."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[AnswerBlock] = Field(max_length=0)
    stop_reason: None
    stop_sequence: None
    usage: MessageUsage


class MessageStart(BaseModel):
    """A message begins."""

    type: Literal["message_start"]
    message: BegunMessage


class BlockStart(BaseModel):
    """A block begins; it is empty."""

    type: Literal["content_block_start"]
    index: int
    content_block: AnswerBlock


class TextDelta(BaseModel):
    """New text."""

    type: Literal["text_delta"]
    text: str


class ThinkingDelta(BaseModel):
    """New reasoning."""

    type: Literal["thinking_delta"]
    thinking: str


class InputDelta(BaseModel):
    """New text of a call's input, which is JSON in all."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(BaseModel):
    """A block grows."""

    type: Literal["content_block_delta"]
    index: int
    delta: Annotated[TextDelta | ThinkingDelta | InputDelta, Field(discriminator="type")]


class BlockStop(BaseModel):
    """A block is complete."""

    type: Literal["content_block_stop"]
    index: int


class MessageEnd(BaseModel):
    """Why a message ended."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(BaseModel):
    """The end of a message, and its figures."""

    type: Literal["message_delta"]
    delta: MessageEnd
    usage: MessageUsage
    metrics: AnswerMetrics


class MessageStop(BaseModel):
    """The last event."""

    type: Literal["message_stop"]


class MessageError(BaseModel):
    """Why a stream fails; Anthropic's `type`, and the fields of this server's errors."""

    type: Literal["error"]
    error: ErrorDetail
    request_id: str | None = None


class MessageEvent(
    RootModel[
        Annotated[
            MessageStart
            | BlockStart
            | BlockDelta
            | BlockStop
            | MessageDelta
            | MessageStop
            | MessageError,
            Field(discriminator="type"),
        ]
    ]
):
    """The data of one event of a stream of `/v1/messages`; its `type` is the event's name."""
