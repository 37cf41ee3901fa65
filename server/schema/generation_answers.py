"""The shapes of the answers of `/inference/v1/generate`."""

from typing import Literal

from pydantic import BaseModel, Field

from server.schema.answers import AnswerMetrics, PromptLogprobs, SpeculativeDecoding, Usage, absent
from server.schema.chat_answers import ChatLogprobs
from server.schema.completion_answers import FinishReason


class TokenCandidate(BaseModel):
    """A token that was, or could have been, generated."""

    token_id: int
    logprob: float
    rank: int


class GeneratedToken(TokenCandidate):
    """A generated token and its best alternatives, best first."""

    top_logprobs: list[TokenCandidate]


class TokenLogprobs(BaseModel):
    """Log probabilities of the generated tokens."""

    content: list[GeneratedToken]


class GenerationChoice(BaseModel):
    """One choice."""

    index: int
    token_ids: list[int]
    text: str = absent("with the `output_mode` text")
    logprobs: TokenLogprobs | ChatLogprobs | None = Field(
        description="with the `output_mode` text those of a chat"
    )
    finish_reason: FinishReason
    stop_reason: str | int | None = Field(description="the stop string or token id that matched")
    speculative_decoding: SpeculativeDecoding


class Generation(BaseModel):
    """A whole answer of `/inference/v1/generate`."""

    id: str
    request_id: str
    object: Literal["generation"]
    created: int = Field(description="Unix time in seconds")
    model: str
    output_mode: Literal["tokens", "text"]
    choices: list[GenerationChoice]
    prompt_token_ids: list[int] = absent("with `return_token_ids`")
    prompt_logprobs: PromptLogprobs = absent("with `prompt_logprobs`")
    usage: Usage
    metrics: AnswerMetrics


class GenerationChunkChoice(BaseModel):
    """The new tokens of one choice."""

    index: int
    token_ids: list[int]
    text: str = absent("with the `output_mode` text")
    logprobs: TokenLogprobs | ChatLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = absent("on the chunk that ends the choice")
    speculative_decoding: SpeculativeDecoding = absent(
        "on the chunk that ends the choice, or with `continuous_spec_stats`"
    )


class GenerationChunk(BaseModel):
    """The data of one event of a stream; that of the last is `[DONE]`."""

    id: str
    request_id: str
    object: Literal["generation.chunk"]
    created: int = Field(description="Unix time in seconds")
    model: str
    output_mode: Literal["tokens", "text"]
    choices: list[GenerationChunkChoice] = Field(description="empty on the chunk with the usage")
    usage: Usage | None = absent("with `include_usage`; null until the last chunk")
    metrics: AnswerMetrics = absent("on the last chunk")
