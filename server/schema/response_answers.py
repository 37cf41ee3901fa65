"""The shapes of the answers of `/v1/responses`: a response, its items, and lists of items."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, RootModel

from server.schema.answers import AnswerMetrics, CompletionTokensDetails, absent
from server.schema.chat_answers import TokenLogprob

Status = Literal["in_progress", "completed", "incomplete"]


class OutputTextPart(BaseModel):
    """A text of the answer."""

    type: Literal["output_text"]
    text: str
    annotations: list[dict[str, Any]] = Field(description="always empty")
    logprobs: list[TokenLogprob] = absent("empty unless `include` asks for them")


class InputTextPart(BaseModel):
    """A text that the client wrote."""

    type: Literal["input_text"]
    text: str


class InputImagePart(BaseModel):
    """A picture that the client sent."""

    type: Literal["input_image"]
    image_url: str
    detail: Literal["auto"]


class RefusalPart(BaseModel):
    """A refusal in an earlier answer."""

    type: Literal["refusal"]
    refusal: str


class ReasoningPart(BaseModel):
    """Reasoning as the model wrote it."""

    type: Literal["reasoning_text"]
    text: str


class SummaryPart(BaseModel):
    """A summary of reasoning in an input; this server writes none."""

    type: Literal["summary_text"]
    text: str


class OutputMessage(BaseModel):
    """A message of the answer."""

    id: str
    type: Literal["message"]
    status: Status
    role: Literal["assistant"]
    content: list[OutputTextPart]


class ReasoningOutput(BaseModel):
    """Reasoning."""

    id: str
    type: Literal["reasoning"]
    status: Status
    summary: list[SummaryPart]
    content: list[ReasoningPart]


class FunctionCall(BaseModel):
    """A call of a function."""

    id: str
    type: Literal["function_call"]
    status: Status
    call_id: str
    name: str
    namespace: str = absent("of a tool that is in one")
    arguments: str = Field(description="JSON, complete if the status is completed")


class CustomCall(BaseModel):
    """A call of a custom tool."""

    id: str
    type: Literal["custom_tool_call"]
    status: Status
    call_id: str
    name: str
    namespace: str = absent("of a tool that is in one")
    input: str = Field(description="free text, complete if the status is completed")


class ListedMessage(BaseModel):
    """A message of the input."""

    id: str
    type: Literal["message"]
    status: Status
    role: Literal["user", "assistant", "system", "developer"]
    content: list[
        Annotated[
            InputTextPart | InputImagePart | OutputTextPart | RefusalPart,
            Field(discriminator="type"),
        ]
    ]


class FunctionCallOutput(BaseModel):
    """What a function returned."""

    id: str
    type: Literal["function_call_output"]
    status: Status
    call_id: str
    output: str | list[InputTextPart | InputImagePart]


class CustomCallOutput(BaseModel):
    """What a custom tool returned."""

    id: str
    type: Literal["custom_tool_call_output"]
    status: Status
    call_id: str
    output: str | list[InputTextPart | InputImagePart]


class Compaction(BaseModel):
    """The summary of a conversation."""

    id: str
    type: Literal["compaction"]
    encrypted_content: str = Field(description="to be sent back as it is")


OutputItem = Annotated[
    OutputMessage | ReasoningOutput | FunctionCall | CustomCall, Field(discriminator="type")
]
ListedItem = Annotated[
    ListedMessage
    | ReasoningOutput
    | FunctionCall
    | FunctionCallOutput
    | CustomCall
    | CustomCallOutput
    | Compaction,
    Field(discriminator="type"),
]


class FailedResponse(BaseModel):
    """Why a response has failed."""

    code: str
    message: str
    type: str = Field(description="the code that the same error has as a response of its own")
    param: str | None


class IncompleteDetails(BaseModel):
    """Why a response is incomplete."""

    reason: Literal["max_output_tokens"]


class InputTokensDetails(BaseModel):
    """Of the input's tokens."""

    cached_tokens: int = Field(description="tokens whose KV was reused")
    cache_write_tokens: int = Field(description="always 0: this is not counted")


class OutputTokensDetails(CompletionTokensDetails):
    """Of the generated tokens."""

    reasoning_tokens: int


class ResponseUsage(BaseModel):
    """Tokens of a response."""

    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int


class ResponseReasoning(BaseModel):
    """How the response was to reason."""

    effort: str | None
    summary: Literal["auto", "concise", "detailed"] | None = Field(
        description="as the request had it; none is made"
    )


class ResponseText(BaseModel):
    """The format of the text."""

    format: dict[str, Any] = Field(description="as the request had it, or of the type text")
    verbosity: str


class ConversationOf(BaseModel):
    """The conversation that a response belongs to."""

    id: str


class ResponseObject(BaseModel):
    """A response of `/v1/responses`, whole or in an event."""

    id: str
    object: Literal["response"]
    created_at: int = Field(description="Unix time in seconds")
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    completed_at: int | None = Field(description="Unix time in seconds")
    error: FailedResponse | None
    incomplete_details: IncompleteDetails | None
    model: str
    output: list[OutputItem]
    instructions: str | None
    previous_response_id: str | None
    conversation: ConversationOf | None
    store: bool
    background: bool
    metadata: dict[str, str]
    temperature: float
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    max_output_tokens: int | None
    max_tool_calls: int | None
    text: ResponseText
    reasoning: ResponseReasoning
    tools: list[dict[str, Any]] = Field(description="as the request had them")
    tool_choice: str | dict[str, Any]
    parallel_tool_calls: bool
    truncation: str
    service_tier: str
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    usage: ResponseUsage | None
    metrics: AnswerMetrics = absent("of a response that has ended")


class CompactedResponse(BaseModel):
    """`POST /v1/responses/compact`."""

    id: str
    object: Literal["response.compaction"]
    created_at: int = Field(description="Unix time in seconds")
    output: list[Annotated[ListedMessage | Compaction, Field(discriminator="type")]] = Field(
        description="the user's messages, then one compaction"
    )
    usage: ResponseUsage
    metrics: AnswerMetrics


class InputTokenCount(BaseModel):
    """`POST /v1/responses/input_tokens`."""

    object: Literal["response.input_tokens"]
    input_tokens: int


class DeletedResponse(BaseModel):
    """`DELETE /v1/responses/{response_id}`."""

    id: str
    object: Literal["response"]
    deleted: Literal[True]


class InputItemList(BaseModel):
    """A page of the items that a response was generated from."""

    object: Literal["list"]
    data: list[ListedItem]
    first_id: str = Field(description="empty for an empty page")
    last_id: str = Field(description="empty for an empty page")
    has_more: bool


class ConversationObject(BaseModel):
    """A conversation of `/v1/conversations`, without its items."""

    id: str
    object: Literal["conversation"]
    created_at: int = Field(description="Unix time in seconds")
    metadata: dict[str, str]


class DeletedConversation(BaseModel):
    """`DELETE /v1/conversations/{conversation_id}`."""

    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]


class ConversationItem(RootModel[ListedItem]):
    """An item of a conversation."""
