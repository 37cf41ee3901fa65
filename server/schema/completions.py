"""The bodies of `/v1/completions` and `/inference/v1/generate`."""

from typing import Annotated, Any, Literal

from pydantic import Field, PlainValidator
from pydantic_core import PydanticCustomError

from server.schema.base import Body
from server.schema.generation_body import (
    MAX_INT,
    MAX_PROMPTS,
    GenerationBody,
    Salt,
    SpecDecode,
    StreamOptions,
)

Prompt = str | list[int]
"""One prompt: a text, or token ids."""


_Text = Annotated[str, Field(min_length=1)]
_Ids = Annotated[list[int], Field(min_length=1)]

PromptForms = (
    _Text
    | _Ids
    | Annotated[list[_Text], Field(min_length=1, max_length=MAX_PROMPTS)]
    | Annotated[list[_Ids], Field(min_length=1, max_length=MAX_PROMPTS)]
)
"""What a body's `prompt` may be, for the API's schema."""


def _prompts(value: Any) -> list[Prompt]:
    """The prompts of a request, from any of the four forms."""
    if _is_prompt(value):
        return [value]
    if not isinstance(value, list) or not all(isinstance(p, str | list) for p in value):
        raise _error("must be a string, a list of strings, token ids or a list of token ids")
    if not value:
        raise _error("must not be empty")
    if len(value) > MAX_PROMPTS:
        raise _error(f"has {len(value)} prompts; the maximum is {MAX_PROMPTS}")
    if len({type(p) for p in value}) > 1:
        raise _error("mixes texts and token ids")
    for i, prompt in enumerate(value):
        if not _is_prompt(prompt):
            raise _error(
                f"entry {i} must be a string or a list of token ids, and must not be empty"
            )
    return value


def _is_prompt(value: Any) -> bool:
    if isinstance(value, str):
        return True
    # `type` instead of `isinstance`, because true is an int; a set, because there can be a million.
    return isinstance(value, list) and set(map(type, value)) == {int}


def _error(reason: str) -> PydanticCustomError:
    return PydanticCustomError("prompt", "{reason}", {"reason": reason})


class CompletionFields(GenerationBody):
    """A text completion without its prompts."""

    max_tokens: int | None = Field(None, ge=0, le=MAX_INT)
    best_of: int | None = Field(None, ge=1, le=MAX_INT)
    echo: bool | None = None
    suffix: str | None = None
    add_special_tokens: bool | None = None
    logprobs: int | None = Field(None, ge=0, le=MAX_INT)
    return_tokens_as_token_ids: bool | None = None


class CompletionRequest(CompletionFields):
    """A text completion. `prompt` is always a list here."""

    prompt: Annotated[list[Prompt], PlainValidator(_prompts, json_schema_input_type=PromptForms)]


class GenerateRequest(Body):
    """Token ids in, token ids out, as in vLLM. Null means "not set" in every field."""

    token_ids: Annotated[list[int], Field(min_length=1, fail_fast=True)]
    sampling_params: CompletionFields | None = None
    output_mode: Literal["tokens", "text"] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    cache_salt: Salt | None = None
    priority: int | None = None
    return_token_ids: bool | None = None
    spec_decode: SpecDecode | None = None
    speculative_model: str | None = None
    num_speculative_tokens: int | None = None
    features: None = Field(None, description="not supported: pictures need a chat")
    content_parts: None = Field(None, description="not supported: pictures need a chat")

    def completion(self, max_tokens: int) -> CompletionRequest:
        """The completion that generates the tokens, by default `max_tokens` of them.

        Raises `ValidationError`.
        """
        sampling = self.sampling_params or CompletionFields()
        own_names = {"token_ids", "sampling_params", "output_mode"}
        fields = {
            "max_tokens": max_tokens,
            **sampling.model_dump(exclude_none=True, by_alias=True),
            **self.model_dump(exclude_none=True, by_alias=True, exclude=own_names),
            "prompt": self.token_ids,
        }
        return CompletionRequest.model_validate(fields)
