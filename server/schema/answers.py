"""Shapes of answers, for the OpenAPI document; the answers themselves are made without them.

A field without a default is in every answer. A field with `absent()` may be missing, but is not
null unless its type says so.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


def absent(description: str | None = None) -> Any:
    """The default of a field that some answers do not have."""
    return Field(default=None, description=description, json_schema_extra=_without_default)


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


class ErrorDetail(BaseModel):
    """What went wrong, in OpenAI's four fields."""

    message: str
    type: str = Field(description="invalid_request_error, server_error and so on")
    param: str | None = Field(description="the dotted path of the field at fault")
    code: str | None


class ErrorResponse(BaseModel):
    """The body of every error, and the data of the event of a stream that fails."""

    error: ErrorDetail


class PromptTokensDetails(BaseModel):
    """Of the prompt's tokens."""

    cached_tokens: int = Field(description="tokens whose KV was reused")


class CompletionTokensDetails(BaseModel):
    """Of the generated tokens, and of those drafted for them."""

    num_draft_tokens: int = Field(description="drafted and verified")
    num_accepted_draft_tokens: int = Field(description="of these")
    reasoning_tokens: int = absent("with a reasoning parser")
    accepted_prediction_tokens: int = absent("with a prediction: drafted from it and accepted")
    rejected_prediction_tokens: int = absent("with a prediction: drafted from it and rejected")


class RankedLogprob(BaseModel):
    """A token at a place of the prompt."""

    logprob: float
    rank: int | None = Field(description="1 for the likeliest token")
    decoded_token: str


PromptLogprobs = list[dict[str, RankedLogprob] | None]
"""For each token of the prompt: token id -> its probability there; null for the first token."""


class Usage(BaseModel):
    """Tokens; each prompt counts once, for any number of choices."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class DraftCounts(BaseModel):
    """What one proposer drafted for a request."""

    drafts: int = Field(description="steps that verified its drafts")
    drafted: int
    accepted: int


class SpeculativeDecoding(BaseModel):
    """Statistics of speculation: of one choice, or of all choices of an answer."""

    mean_acceptance_length: float = Field(description="tokens per step that verified drafts")
    mean_tokens_per_step: float = Field(description="tokens per decode step")
    draft_acceptance_rate: float = Field(description="accepted / drafted; 0 without drafts")
    acceptance_histogram: list[int] = Field(
        description="entry j: steps that accepted exactly j drafts"
    )
    num_spec_steps: int = Field(description="steps that verified drafts")
    num_draft_tokens: int
    num_accepted_draft_tokens: int
    num_spec_tokens: int = Field(description="draft tokens per step as chosen at admission")
    proposer: str = Field(description="the proposer or policy chosen at admission, or none")
    by_proposer: dict[str, DraftCounts]


class AnswerMetrics(BaseModel):
    """Figures of the whole answer."""

    speculative_decoding: SpeculativeDecoding


class Model(BaseModel):
    """A served name: the target's, or an adapter's."""

    id: str
    object: Literal["model"]
    created: int = Field(description="Unix time in seconds")
    owned_by: str
    root: str = Field(description="the path or id of the weights")
    parent: str | None = Field(description="of an adapter: the target's first name")
    max_model_len: int = Field(description="context in tokens")
    tool_call_parser: str | None = Field(description="of the calls that the model makes by itself")
    reasoning_parser: str | None = Field(description="of the model's reasoning")


class ModelList(BaseModel):
    """`GET /v1/models`."""

    object: Literal["list"]
    data: list[Model]


class UnloadedAdapter(BaseModel):
    """`POST /v1/unload_lora_adapter`."""

    id: str
    object: Literal["model"]
    deleted: Literal[True]


class TokenizeResponse(BaseModel):
    """`POST /tokenize`."""

    count: int
    max_model_len: int = Field(description="context in tokens")
    tokens: list[int]
    token_strs: list[str] | None = Field(description="with `return_token_strs`")


class DetokenizeResponse(BaseModel):
    """`POST /detokenize`."""

    prompt: str


class TokenizerInfo(BaseModel):
    """`GET /tokenizer_info`: what the tokenizer's `tokenizer_config.json` has."""

    model_config = ConfigDict(extra="allow")

    tokenizer_class: str
    chat_template: Any = absent("the template that renders chats; some tokenizers have several")


class ServerLoad(BaseModel):
    """`GET /load`."""

    server_load: int = Field(description="requests that generate or wait")


class Health(BaseModel):
    """`GET /health`."""

    status: Literal["ok"]
    engines: list[str] = absent("state of each of several engines: serving, restarting or dead")


class Readiness(BaseModel):
    """`GET /ready`."""

    status: Literal["ready"]
    engines: list[str] = absent("state of each of several engines: serving, restarting or dead")


class Versions(BaseModel):
    """`GET /version`."""

    version: str
    engine: str = Field(description="vllm or fake")
    engine_version: str | None = Field(description="null while the engine loads")
