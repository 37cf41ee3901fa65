"""The shapes of the events of a stream of `/v1/responses`, in the order in which they come."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, RootModel

from server.schema.answers import SpeculativeDecoding, absent
from server.schema.chat_answers import TokenLogprob
from server.schema.response_answers import OutputItem, OutputTextPart, ReasoningPart, ResponseObject


class _Event(BaseModel):
    """An event; its place in the stream is counted from 0."""

    sequence_number: int


class ResponseLifecycleEvent(_Event):
    """The whole response, when it begins and when it has ended."""

    type: Literal[
        "response.created",
        "response.queued",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseObject


class ResponseItemEvent(_Event):
    """An item of the output begins, or has ended."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class _PartPlace(_Event):
    item_id: str
    output_index: int
    content_index: int


class ResponsePartEvent(_PartPlace):
    """A part of an item begins, or has ended."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    part: Annotated[OutputTextPart | ReasoningPart, Field(discriminator="type")]


class ResponseTextDelta(_PartPlace):
    """New text."""

    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[TokenLogprob]
    speculative_decoding: SpeculativeDecoding = absent("with `continuous_spec_stats`")


class ResponseTextDone(_PartPlace):
    """The whole text of a part."""

    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[TokenLogprob]


class ResponseReasoningDelta(_PartPlace):
    """New reasoning."""

    type: Literal["response.reasoning_text.delta"]
    delta: str


class ResponseReasoningDone(_PartPlace):
    """The whole reasoning."""

    type: Literal["response.reasoning_text.done"]
    text: str


class ResponseArgumentsDelta(_Event):
    """New text of a call's arguments."""

    type: Literal["response.function_call_arguments.delta"]
    item_id: str
    output_index: int
    delta: str


class ResponseArgumentsDone(_Event):
    """The whole arguments of a call."""

    type: Literal["response.function_call_arguments.done"]
    item_id: str
    output_index: int
    name: str
    arguments: str


class ResponseInputDelta(_Event):
    """The input of a custom tool's call, in one piece."""

    type: Literal["response.custom_tool_call_input.delta"]
    item_id: str
    output_index: int
    delta: str


class ResponseInputDone(_Event):
    """The whole input of a custom tool's call."""

    type: Literal["response.custom_tool_call_input.done"]
    item_id: str
    output_index: int
    input: str


class ResponseErrorEvent(_Event):
    """A stream fails before its response has begun."""

    type: Literal["error"]
    code: str | None
    message: str
    param: str | None


class ResponseEvent(
    RootModel[
        Annotated[
            ResponseLifecycleEvent
            | ResponseItemEvent
            | ResponsePartEvent
            | ResponseTextDelta
            | ResponseTextDone
            | ResponseReasoningDelta
            | ResponseReasoningDone
            | ResponseArgumentsDelta
            | ResponseArgumentsDone
            | ResponseInputDelta
            | ResponseInputDone
            | ResponseErrorEvent,
            Field(discriminator="type"),
        ]
    ]
):
    """The data of one event of a stream of `/v1/responses`; its `type` is the event's name."""
