"""The items of a response's input: messages, calls with their outputs, reasoning, summaries."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag
from pydantic_core import PydanticCustomError

from engine_adapter.seam.text import short_repr
from server.schema.bounds import MAX_INPUT_ITEMS, MAX_PARTS
from server.schema.identifiers import Id, ItemId
from server.schema.tools import Name

ITEM_TYPES = (
    "message",
    "function_call",
    "function_call_output",
    "custom_tool_call",
    "custom_tool_call_output",
    "reasoning",
    "compaction",
)
"""The kinds of items that a request may have; an item without a type is a message."""

PART_TYPES = ("input_text", "input_image", "output_text", "refusal")
"""The kinds of parts that a message may have."""

Status = Literal["in_progress", "completed", "incomplete"]


def known_type(kind: str, types: tuple[str, ...], default: str | None) -> BeforeValidator:
    """Refuses a part of another kind by its name, before its fields are looked at."""

    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if (type_name := value.get("type")) is None and default is not None:
            return {**value, "type": default}
        if type_name is not None and type_name not in types:
            reason = (
                f"the {kind} type {short_repr(type_name)} is not supported; use {', '.join(types)}"
            )
            context = {"reason": reason, "code": "unsupported_parameter"}
            raise PydanticCustomError("unsupported_type", "{reason}", context)
        return value

    return BeforeValidator(check)


def form(value: Any) -> str:
    """Which of the two forms a value has, so that an error is about that form only."""
    return "text" if isinstance(value, str) else "list"


def _text_or_list(value: Any) -> Any:
    if not isinstance(value, str | list):
        raise PydanticCustomError("text_or_list", "must be a text or a list")
    return value


TEXT_OR_LIST = BeforeValidator(_text_or_list)
"""Refuses what has neither form."""


class _Part(BaseModel):
    """A part of an item; fields that say nothing to a model of text are ignored."""

    model_config = ConfigDict(strict=True)


class InputText(_Part):
    """A text that the client wrote."""

    type: Literal["input_text"]
    text: str


class InputImage(_Part):
    """A picture that the client sends; `detail` says nothing to the models served here."""

    type: Literal["input_image"]
    image_url: str


class OutputText(_Part):
    """A text that a model wrote; its annotations and log probabilities are ignored."""

    type: Literal["output_text"]
    text: str


class Refusal(_Part):
    """A model's refusal to answer."""

    type: Literal["refusal"]
    refusal: str


MessagePart = Annotated[
    Annotated[InputText | InputImage | OutputText | Refusal, Field(discriminator="type")],
    known_type("part", PART_TYPES, None),
]
"""A part of a message."""

OutputPart = Annotated[
    Annotated[InputText | InputImage, Field(discriminator="type")],
    known_type("part", ("input_text", "input_image"), None),
]
"""A part of what a function returned."""


Content = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[MessagePart], Field(max_length=MAX_PARTS, fail_fast=True), Tag("list")],
    Discriminator(form),
    TEXT_OR_LIST,
]
"""The content of a message."""

Returned = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[list[OutputPart], Field(max_length=MAX_PARTS, fail_fast=True), Tag("list")],
    Discriminator(form),
    TEXT_OR_LIST,
]
"""What a function returned."""


class MessageItem(_Part):
    """A message. `id` and `status` are those of an item that a server returned earlier."""

    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: Content
    id: ItemId | None = None
    status: Status | None = None


class FunctionCallItem(_Part):
    """A call that a model made; `arguments` is JSON text."""

    type: Literal["function_call"]
    call_id: Id = Field(min_length=1)
    name: str = Field(min_length=1)
    namespace: Name | None = None
    arguments: str
    id: ItemId | None = None
    status: Status | None = None


class FunctionCallOutputItem(_Part):
    """What the call `call_id` returned."""

    type: Literal["function_call_output"]
    call_id: Id = Field(min_length=1)
    output: Returned
    id: ItemId | None = None
    status: Status | None = None


class CustomCallItem(_Part):
    """A call of a custom tool that a model made; `input` is free text."""

    type: Literal["custom_tool_call"]
    call_id: Id = Field(min_length=1)
    name: str = Field(min_length=1)
    namespace: Name | None = None
    input: str
    id: ItemId | None = None
    status: Status | None = None


class CustomCallOutputItem(_Part):
    """What the custom tool's call `call_id` returned."""

    type: Literal["custom_tool_call_output"]
    call_id: Id = Field(min_length=1)
    output: Returned
    id: ItemId | None = None
    status: Status | None = None


class SummaryText(_Part):
    """A summary of reasoning."""

    type: Literal["summary_text"]
    text: str


class ReasoningText(_Part):
    """Reasoning as the model wrote it."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(_Part):
    """Reasoning of an earlier answer. `encrypted_content` can be read by its author only."""

    type: Literal["reasoning"]
    summary: Annotated[list[SummaryText], Field(max_length=MAX_PARTS, fail_fast=True)] = []
    content: Annotated[list[ReasoningText] | None, Field(max_length=MAX_PARTS, fail_fast=True)] = (
        None
    )
    encrypted_content: str | None = None
    id: ItemId | None = None
    status: Status | None = None


class CompactionItem(_Part):
    """A summary that `/v1/responses/compact` of this server made."""

    type: Literal["compaction"]
    encrypted_content: str
    id: ItemId | None = None


ItemWithStatus = (
    MessageItem
    | FunctionCallItem
    | FunctionCallOutputItem
    | CustomCallItem
    | CustomCallOutputItem
    | ReasoningItem
)

InputItem = Annotated[
    Annotated[ItemWithStatus | CompactionItem, Field(discriminator="type")],
    known_type("item", ITEM_TYPES, "message"),
]
"""An item of a request's input."""

Input = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[
        list[InputItem],
        Field(min_length=1, max_length=MAX_INPUT_ITEMS, fail_fast=True),
        Tag("list"),
    ],
    Discriminator(form),
    TEXT_OR_LIST,
]
"""The input of a response: a text is a user's message."""
