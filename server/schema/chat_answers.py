"""The shapes of the answers of `/v1/chat/completions`."""

from typing import Literal

from pydantic import BaseModel, Field

from server.schema.answers import AnswerMetrics, PromptLogprobs, SpeculativeDecoding, Usage, absent

FinishReason = Literal["stop", "length", "repetition", "tool_calls"]
"""Why a choice has ended."""


class TopLogprob(BaseModel):
    """A token that could have been written."""

    token: str
    logprob: float
    bytes: list[int] | None = Field(description="null for a part of a character")


class TokenLogprob(TopLogprob):
    """A written token, and the likeliest ones at its place."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(BaseModel):
    """Log probabilities of a message."""

    content: list[TokenLogprob]
    refusal: None


class ToolCallFunction(BaseModel):
    """The function of a call."""

    name: str
    arguments: str = Field(description="JSON, incomplete if the finish reason is length")


class ToolCall(BaseModel):
    """A call that the model makes."""

    id: str
    type: Literal["function"]
    function: ToolCallFunction


class AssistantMessage(BaseModel):
    """The message that the model has written."""

    role: Literal["assistant"]
    content: str | None = Field(description="null if there are only calls or reasoning")
    refusal: None
    reasoning_content: str = absent("with a reasoning parser")
    reasoning: str = absent("the same under another name")
    tool_calls: list[ToolCall] = absent()


class ChatChoice(BaseModel):
    """One choice."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None = Field(description="the stop string or token id that matched")
    speculative_decoding: SpeculativeDecoding
    token_ids: list[int] = absent("with `return_token_ids`")
    prompt_token_ids: list[int] = absent("with `return_token_ids`, of a batch")
    prompt_logprobs: PromptLogprobs = absent("with `prompt_logprobs`, of a batch")


class ChatCompletion(BaseModel):
    """A whole answer of `/v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"]
    created: int = Field(description="Unix time in seconds")
    model: str
    choices: list[ChatChoice]
    usage: Usage
    metrics: AnswerMetrics
    prompt_token_ids: list[int] = absent("with `return_token_ids`")
    prompt_logprobs: PromptLogprobs = absent("with `prompt_logprobs`")


class FunctionDelta(BaseModel):
    """What a chunk adds to the function of a call."""

    name: str = absent("on the first chunk of a call")
    arguments: str


class ToolCallDelta(BaseModel):
    """What a chunk adds to a call."""

    index: int = Field(description="of the call in the message")
    id: str = absent("on the first chunk of a call")
    type: Literal["function"] = absent("on the first chunk of a call")
    function: FunctionDelta


class ChatDelta(BaseModel):
    """What a chunk adds to the message."""

    role: Literal["assistant"] = absent("on the first chunk of a choice")
    content: str | None = absent("null on the first chunk if no text can follow")
    reasoning_content: str = absent("with a reasoning parser")
    reasoning: str = absent("the same under another name")
    tool_calls: list[ToolCallDelta] = absent()


class ChatChunkChoice(BaseModel):
    """The new part of one choice."""

    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = absent("on the chunk that ends the choice")
    speculative_decoding: SpeculativeDecoding = absent(
        "on the chunk that ends the choice, or with `continuous_spec_stats`"
    )
    token_ids: list[int] = absent("with `return_token_ids`")
    prompt_token_ids: list[int] = absent("with `return_token_ids`, of a batch, on its first chunk")


class ChatCompletionChunk(BaseModel):
    """The data of one event of a stream of `/v1/chat/completions`; that of the last is `[DONE]`."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int = Field(description="Unix time in seconds")
    model: str
    choices: list[ChatChunkChoice] = Field(description="empty on the chunk with the usage")
    usage: Usage | None = absent("with `include_usage`; null until the last chunk")
    metrics: AnswerMetrics = absent("on the last chunk")
    prompt_token_ids: list[int] = absent("with `return_token_ids`, on the first chunk")
