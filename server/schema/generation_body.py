"""The fields that completions and chats share."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from engine_adapter.types import StructuredOutput
from server.control.selection import PLAIN_SPELLINGS, MethodRequest
from server.errors import InvalidField, clip
from server.rendering import is_unicode
from server.schema.base import Body, Strict
from server.schema.content import Prediction
from server.schema.structured import (
    ResponseFormat,
    StructuredOutputs,
    Text,
    from_response_format,
    from_structured_outputs,
)

MAX_CHOICES = 128
"""OpenAI's limit of `n`."""

MAX_INT = 2**31 - 1
"""The largest number that any other integer field takes: engines count in 32 bits."""

MAX_BIAS = 100
"""OpenAI's limit of a logit's bias, upward and downward."""

_INT64 = 2**63


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _can_stop(values: list[str] | None) -> list[str] | None:
    for value in values or ():
        if not value:
            raise ValueError("an empty string cannot stop a text")
        if not is_unicode(value):
            raise ValueError("half of a surrogate pair cannot stop a text")
    return values


Stop = Annotated[list[str] | None, BeforeValidator(_as_list), AfterValidator(_can_stop)]
"""A string, or a list of them."""


def _biases(values: dict[str, float] | None) -> dict[str, float] | None:
    for token, bias in (values or {}).items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise ValueError(f"its keys are token ids, and {clip(token)} is none")
        if not abs(bias) <= MAX_BIAS:
            raise ValueError(f"the bias of {clip(token)} must be from -{MAX_BIAS} to {MAX_BIAS}")
    return values


LogitBias = Annotated[dict[str, float] | None, AfterValidator(_biases)]
"""Token ids, as JSON's keys are texts, and what is added to their logits."""


class SpecDecode(Strict):
    """Who drafts for this request. A `proposer` of null is plain decoding, if it is there."""

    proposer: str | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=0, le=MAX_INT)


class StreamOptions(Strict):
    """What a stream carries besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: bool | None = None


class GenerationBody(Body):
    """Sampling, streaming and the choice of a proposer. Null is "not set" everywhere."""

    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=MAX_INT)
    min_p: float | None = Field(None, ge=0, le=1)
    min_tokens: int | None = Field(None, ge=0, le=MAX_INT)
    stop: Stop = None
    stop_token_ids: list[int] | None = None
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    logit_bias: LogitBias = None
    allowed_token_ids: list[int] | None = Field(None, min_length=1)
    bad_words: list[Text] | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    prediction: Prediction | None = None
    spec_decode: SpecDecode | None = None
    speculative_model: str | None = None
    num_speculative_tokens: int | None = Field(None, ge=0, le=MAX_INT)

    @property
    def include_usage(self) -> bool:
        """Whether the stream ends with a usage chunk."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def continuous_usage(self) -> bool:
        """Whether every chunk of the stream carries the usage so far."""
        options = self.stream_options
        return self.include_usage and options is not None and bool(options.continuous_usage_stats)

    def check_stream_options(self) -> None:
        """Raises `InvalidField` where they are given and cannot be honoured."""
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidField("stream_options", "stream_options needs `stream` to be true.")
        if self.stream_options.include_obfuscation:
            param = "stream_options.include_obfuscation"
            raise InvalidField(param, f"{param} is not supported.", "unsupported_parameter")

    def structured_output(self) -> StructuredOutput | None:
        """The form that the text must have. Raises `InvalidField` for two, or for a bad one."""
        openai = self.response_format and from_response_format(self.response_format)
        vllm = self.structured_outputs and from_structured_outputs(self.structured_outputs)
        if openai and vllm:
            message = "structured_outputs and response_format are both given; send one of them."
            raise InvalidField("structured_outputs", message)
        return openai or vllm or None

    def asked(self) -> MethodRequest:
        """The proposer and k that the request names, from `spec_decode` or the flat fields.

        A flat null is "not set", for clients send their unset fields as null. Raises
        `InvalidField` where both forms are used with different values.
        """
        nested = self.spec_decode or SpecDecode()
        named = "proposer" in nested.model_fields_set
        flat = self.speculative_model
        if named and flat is not None and _plain(nested.proposer) != _plain(flat):
            raise _conflict("speculative_model", "spec_decode.proposer")
        k, flat_k = nested.num_speculative_tokens, self.num_speculative_tokens
        if k is not None and flat_k is not None and k != flat_k:
            raise _conflict("num_speculative_tokens", "spec_decode.num_speculative_tokens")
        return MethodRequest(
            proposer=nested.proposer if named else flat,
            num_speculative_tokens=k if k is not None else flat_k,
            is_named=named or flat is not None,
            has_prediction=self.prediction is not None,
            proposer_param="spec_decode.proposer" if named or flat is None else "speculative_model",
            k_param="spec_decode.num_speculative_tokens"
            if k is not None or flat_k is None
            else "num_speculative_tokens",
        )


def _plain(name: str | None) -> str | None:
    """One spelling for all names of plain decoding."""
    return None if name is None or name.lower() in PLAIN_SPELLINGS else name


def _conflict(flat: str, nested: str) -> InvalidField:
    return InvalidField(flat, f"{flat} and {nested} are both given and differ; send one of them.")
