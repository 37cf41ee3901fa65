"""The shapes of the answers of `/v1/completions`."""

from typing import Literal

from pydantic import BaseModel, Field

from server.schema.answers import AnswerMetrics, PromptLogprobs, SpeculativeDecoding, Usage, absent

FinishReason = Literal["stop", "length", "repetition"]
"""Why a choice has ended."""


class CompletionLogprobs(BaseModel):
    """Log probabilities; all lists have one entry per token."""

    tokens: list[str]
    token_logprobs: list[float | None] = Field(description="null for the first token of an echo")
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int] = Field(description="where each token begins in the text")


class CompletionChoice(BaseModel):
    """One choice."""

    index: int = Field(description="choice i of prompt p has the index p * n + i")
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason
    stop_reason: str | int | None = Field(description="the stop string or token id that matched")
    speculative_decoding: SpeculativeDecoding
    token_ids: list[int] = absent("with `return_token_ids`")
    prompt_token_ids: list[int] = absent("with `return_token_ids`")
    prompt_logprobs: PromptLogprobs = absent("with `prompt_logprobs`")


class Completion(BaseModel):
    """A whole answer of `/v1/completions`."""

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Unix time in seconds")
    model: str
    choices: list[CompletionChoice]
    usage: Usage
    metrics: AnswerMetrics


class CompletionChunkChoice(BaseModel):
    """The new text of one choice."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None
    stop_reason: str | int | None = absent("on the chunk that ends the choice")
    speculative_decoding: SpeculativeDecoding = absent(
        "on the chunk that ends the choice, or with `continuous_spec_stats`"
    )
    token_ids: list[int] = absent("with `return_token_ids`")
    prompt_token_ids: list[int] = absent("with `return_token_ids`, on the first chunk")


class CompletionChunk(BaseModel):
    """The data of one event of a stream of `/v1/completions`; that of the last is `[DONE]`."""

    id: str
    object: Literal["text_completion"]
    created: int = Field(description="Unix time in seconds")
    model: str
    choices: list[CompletionChunkChoice] = Field(description="empty on the chunk with the usage")
    usage: Usage | None = absent("with `include_usage`; null until the last chunk")
    metrics: AnswerMetrics = absent("on the last chunk")
