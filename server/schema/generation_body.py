"""The fields that completions and chats share."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from engine_adapter.seam.text import short_repr
from engine_adapter.seam.types import RepetitionDetection, StructuredOutput
from server.errors import InvalidField
from server.schema.base import Body, Strict, check_unicode
from server.schema.bounds import (
    MAX_ALLOWED_TOKENS,
    MAX_BAD_WORD_CHARS,
    MAX_BAD_WORDS,
    MAX_BIASES,
    MAX_PARTS,
    MAX_PATTERN,
    MAX_REPEATED_TOKENS,
    MAX_STOP_CHARS,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    too_many,
)
from server.schema.structured import (
    ForeignConstraints,
    ResponseFormat,
    StructuredOutputs,
    constraint_field,
    from_response_format,
    from_structured_outputs,
    not_blank,
)
from server.text import is_unicode

MAX_CHOICES = 128
"""OpenAI's limit of `n`."""

MAX_PROMPTS = 2048
"""OpenAI's limit of prompts in one request."""

MAX_INT = 2**31 - 1
"""The maximum of every other integer field: engines count in 32 bits."""

MAX_BIAS = 100
"""OpenAI's limit of a logit's bias, in both directions."""

_INT64 = 2**63


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _can_stop(values: list[str] | None) -> list[str] | None:
    for value in values or ():
        if len(value) > MAX_STOP_CHARS:
            reason = too_many("characters", MAX_STOP_CHARS, len(value))
            raise ValueError(f"a stop sequence {reason}")
        if not value:
            raise ValueError("an empty string cannot be a stop sequence")
        if not is_unicode(value):
            raise ValueError("a stop sequence must not contain a lone surrogate")
    return values


_StopText = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
StopForms = _StopText | Annotated[list[_StopText], Field(max_length=MAX_STOPS)] | None
"""What a body's `stop` may be, for the API's schema."""

Stop = Annotated[
    Annotated[list[str], Field(max_length=MAX_STOPS, fail_fast=True)] | None,
    BeforeValidator(_as_list, json_schema_input_type=StopForms),
    AfterValidator(_can_stop),
]
"""A string, or a list of them."""


def _biases(values: dict[str, float] | None) -> dict[str, float] | None:
    for token, bias in (values or {}).items():
        if not (token.isascii() and token.isdigit() and len(token) <= 10):
            raise ValueError(f"its keys must be token ids, and {short_repr(token)} is not one")
        if not abs(bias) <= MAX_BIAS:
            raise ValueError(
                f"the bias of {short_repr(token)} must be from -{MAX_BIAS} to {MAX_BIAS}"
            )
    return values


def _few_biases(values: Any) -> Any:
    if isinstance(values, dict) and len(values) > MAX_BIASES:
        raise ValueError(too_many("entries", MAX_BIASES, len(values)))
    return values


_Biases = Annotated[dict[str, float], Field(max_length=MAX_BIASES)]
LogitBias = Annotated[_Biases | None, BeforeValidator(_few_biases), AfterValidator(_biases)]
"""Token ids, as the strings that JSON's keys are, and the biases of their logits."""


class TextPart(BaseModel):
    """A part of a text."""

    model_config = ConfigDict(strict=True)

    type: Literal["text"]
    text: str


def _text_only(value: Any) -> Any:
    if value != "text":
        message = "only text parts are supported"
        raise PydanticCustomError("content_part", "{reason}", {"reason": message})
    return value


class PredictedText(TextPart):
    """A part of a predicted text."""

    type: Annotated[Literal["text"], BeforeValidator(_text_only)]


class Prediction(Strict):
    """The text that a client expects, or most of it."""

    type: Literal["content"]
    content: str | Annotated[list[PredictedText], Field(max_length=MAX_PARTS, fail_fast=True)]

    @property
    def text(self) -> str:
        """The whole text; nothing is inserted between its parts."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class SpecDecode(Strict):
    """The proposer of this request. A `proposer` that is set to null is plain decoding."""

    proposer: str | None = None
    num_speculative_tokens: int | None = Field(default=None, ge=0, le=MAX_INT)


class StreamOptions(Strict):
    """What a stream contains besides the text."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    continuous_spec_stats: bool | None = None
    include_obfuscation: bool | None = None


_PatternSize = Annotated[int, Field(ge=0, le=MAX_PATTERN)]


class Repetition(Strict):
    """vLLM's `repetition_detection`: how long a pattern of tokens is, and how often it stands."""

    max_pattern_size: _PatternSize = 0
    min_pattern_size: _PatternSize = 0
    min_count: int = Field(0, ge=0, le=MAX_INT)

    def detection(self) -> RepetitionDetection | None:
        """What the engine looks for; `None` for a pattern of no tokens.

        Raises `InvalidField`.
        """
        size, count = self.max_pattern_size, self.min_count
        if self.min_pattern_size > size:
            raise _wrong_repetition(
                "min_pattern_size", f"is {self.min_pattern_size}, above max_pattern_size, {size}"
            )
        if size == 0:
            return None
        if count < 2:
            raise _wrong_repetition("min_count", f"must be at least 2, not {count}")
        max_count = MAX_REPEATED_TOKENS // size
        if count > max_count:
            reason = f"can be at most {max_count} with a max_pattern_size of {size}, not {count}"
            raise _wrong_repetition("min_count", reason)
        return RepetitionDetection(size, count, max(self.min_pattern_size, 1))


def _wrong_repetition(name: str, reason: str) -> InvalidField:
    field = f"repetition_detection.{name}"
    return InvalidField(field, f"{field} {reason}.")


AllowedTokens = Annotated[
    list[int], Field(min_length=1, max_length=MAX_ALLOWED_TOKENS, fail_fast=True)
]
"""The only tokens that may be generated."""

BadWords = Annotated[
    list[Annotated[str, Field(max_length=MAX_BAD_WORD_CHARS), AfterValidator(not_blank)]],
    Field(max_length=MAX_BAD_WORDS, fail_fast=True),
]
"""Texts that are never generated."""

MAX_SALT = 1024
"""vLLM's limit of the characters of `cache_salt`."""

Salt = Annotated[str, Field(min_length=1, max_length=MAX_SALT), AfterValidator(check_unicode)]
"""What separates the cached prefixes of some requests from those of others."""


class GenerationBody(Body, ForeignConstraints):
    """Sampling, streaming and the selection of a proposer. Null means "not set" in every field.

    Attributes:
        format_field: the field of the text's format.
    """

    format_field: ClassVar[str] = "response_format"

    n: int | None = Field(None, ge=1, le=MAX_CHOICES)
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    stream_interval: int | None = Field(None, ge=1, le=MAX_INT)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=MAX_INT)
    min_p: float | None = Field(None, ge=0, le=1)
    min_tokens: int | None = Field(None, ge=0, le=MAX_INT)
    stop: Stop = None
    stop_token_ids: (
        Annotated[list[int], Field(max_length=MAX_STOP_TOKENS, fail_fast=True)] | None
    ) = None
    seed: int | None = Field(None, ge=-_INT64, lt=_INT64)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, gt=0)
    thinking_token_budget: int | None = Field(None, ge=-1, le=MAX_INT)
    repetition_detection: Repetition | None = None
    logit_bias: LogitBias = None
    allowed_token_ids: AllowedTokens | None = None
    bad_words: BadWords | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    prompt_logprobs: int | None = Field(None, ge=0, le=MAX_INT)
    return_token_ids: bool | None = None
    truncate_prompt_tokens: int | None = Field(None, ge=-1, le=MAX_INT)
    truncation_side: Literal["left", "right"] | None = None
    cache_salt: Salt | None = None
    priority: int | None = Field(None, ge=-_INT64, lt=_INT64)
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
        """Whether every chunk of the stream contains the usage so far."""
        options = self.stream_options
        return self.include_usage and options is not None and bool(options.continuous_usage_stats)

    @property
    def continuous_spec_stats(self) -> bool:
        """Whether every chunk of the stream contains its choice's statistics so far."""
        options = self.stream_options
        return options is not None and bool(options.continuous_spec_stats)

    def check_stream_options(self) -> None:
        """Raises `InvalidField` for what a stream, or an answer in one piece, cannot have."""
        if self.stream and self.prompt_logprobs is not None:
            message = "prompt_logprobs cannot be combined with stream."
            raise InvalidField("prompt_logprobs", message)
        if self.stream_options is None:
            return
        if not self.stream:
            raise InvalidField("stream_options", "stream_options requires `stream` to be true.")
        if self.stream_options.include_obfuscation:
            param = "stream_options.include_obfuscation"
            raise InvalidField(param, f"{param} is not supported.", "unsupported_parameter")

    def own_format(self) -> StructuredOutput | None:
        """The constraint in OpenAI's field of the endpoint. Raises `InvalidField`."""
        if self.response_format is None:
            return None
        return from_response_format(self.response_format)

    def structured_output(self) -> StructuredOutput | None:
        """The constraint on the text. Raises `InvalidField` for two of them, or an invalid one."""
        of_vllm = self.structured_outputs and from_structured_outputs(self.structured_outputs)
        candidates = (self.own_format(), of_vllm, *self.foreign_constraints())
        constraints = [constraint for constraint in candidates if constraint]
        if len(constraints) > 1:
            first_field, second_field = (
                constraint_field(constraint.param, self.format_field)
                for constraint in constraints[:2]
            )
            message = f"{second_field} and {first_field} are both given; send one of them."
            raise InvalidField(second_field, message)
        return constraints[0] if constraints else None
