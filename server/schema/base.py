"""The base of all bodies: strict types, fields that are refused, fields that are ignored.

Types are strict ("5" is not an integer, true is not a number). A declared field is honoured. The
other fields are of four kinds: those in `REFUSED` cannot be honoured and are accepted only with
a neutral value; those in `IGNORED` ask for what cannot make an answer wrong; those in
`WITHOUT_EFFECT` do not affect the response; the rest is unknown. `IGNORED` and unknown fields are
ignored with notice.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError

from engine_adapter.seam.text import short_repr
from server.errors import InvalidField
from server.schema.identifiers import check_lengths
from server.text import did_you_mean, is_unicode

LEAVE_OUT = "leave it out"
"""What to do about a refused field that has no substitute."""

REFUSED: Mapping[str, tuple[Any, ...]] = {
    # Sampling methods that are not implemented.
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "logits_processors": ([],),
    "logit_processors": ([],),
    "watermarking": (False,),
    "thinking_token_budget": (-1,),
    "vllm_xargs": ({},),
    # Constraints on the text that other servers have.
    "guided_decoding_backend": ("auto", "guidance"),
    "guided_whitespace_pattern": (),
    "structural_tag": (),
    # Tools, and outputs besides text.
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": ([], ["text"]),
    "audio": (),
    "reasoning": (),
    "web_search_options": (),
    "documents": ([],),
    "moderation": (),
    # Other forms of prompts and responses; some belong to the other endpoint.
    "messages": ([],),
    "prompt": (),
    "suffix": ("",),
    "echo": (False,),
    "best_of": (1,),
    "top_logprobs": (0,),
    "max_completion_tokens": (),
    "prompt_embeds": (),
    "prompt_logprobs": (),
    "logprob_token_ids": ([],),
    "chat_template": (),
    "media_io_kwargs": ({},),
    "mm_processor_kwargs": ({},),
    "truncate_prompt_tokens": (),
    "spaces_between_special_tokens": (True,),
    "return_tokens_as_token_ids": (False,),
    "return_token_ids": (False,),
    "return_token_offsets": (False,),
    "return_prompt_text": (False,),
    "routed_experts_prompt_start": (0,),
    # Fields that need another engine.
    "priority": (0,),
    "cache_salt": (),
    "lora_request": (),
    "lora_path": (),
    "lora_name": (),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
}
"""Known fields that are not honoured, with their neutral values; null is always neutral.

A body that declares one of them honours it.
"""

INSTEAD: Mapping[str, str] = {
    "messages": "send a chat to /v1/chat/completions",
    "prompt": "send a text to /v1/completions",
    "suffix": "send a text to /v1/completions",
    "guided_decoding_backend": "set structured_outputs_config in --engine-args",
    "guided_whitespace_pattern": "set structured_outputs_config in --engine-args",
    "structural_tag": "send response_format or structured_outputs",
    "functions": "send tools",
    "function_call": "send tool_choice",
    "reasoning": "send reasoning_effort",
    "use_beam_search": "send n: beam search cannot be drafted for",
    "length_penalty": "beam search is not served",
    "media_io_kwargs": "start the server with --media-io-kwargs",
    "mm_processor_kwargs": "send a chat to /v1/chat/completions",
    "kv_transfer_params": "this engine has no KV connector",
    "ec_transfer_params": "this engine has no KV connector",
    "vllm_xargs": "this engine runs no logits processors that read it",
    "chat_template": "start the server with --chat-template",
    "lora_request": "send the adapter's name as model",
    "lora_path": "send the adapter's name as model",
    "lora_name": "send the adapter's name as model",
    "logits_processors": "send logit_bias, bad_words or allowed_token_ids",
    "logit_processors": "send logit_bias, bad_words or allowed_token_ids",
}
"""Refused fields that have a substitute."""

IGNORED: Mapping[str, tuple[Any, ...]] = {
    "store": (False,),
    "service_tier": ("auto", "default"),
    "verbosity": ("medium",),
    "reasoning_effort": ("none",),
    "request_id": (),
}
"""Known fields that are ignored with notice, with values that ask for nothing: without notice.

They state a wish about storing, scheduling or style. A right answer stays right without it.
"""

WITHOUT_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "include_reasoning",
        "session_id",
        "mm_payload",
        "return_mm_kwargs",
    }
)
"""Known fields that identify the client, or that shape outputs which a text does not have."""


def check_unicode(text: str) -> str:
    """The text itself. Raises `ValueError` for one that UTF-8 cannot encode."""
    if not is_unicode(text):
        raise ValueError("contains a lone surrogate")
    return text


UnicodeText = Annotated[str, AfterValidator(check_unicode)]
"""A text that UTF-8 can encode."""

Reason = Annotated[str, Field(max_length=200), AfterValidator(check_unicode)]
"""Why an administrator changes something: stored in the audit record."""

MAX_FIELDS = 256
"""The most fields of an object, unknown ones included: each costs an error or a notice."""


class Bounded(BaseModel):
    """An object with a bounded number of fields, checked before any of them is looked at."""

    @model_validator(mode="before")
    @classmethod
    def _check_number(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MAX_FIELDS:
            reason = f"has {len(value)} fields; the maximum is {MAX_FIELDS}"
            raise PydanticCustomError("too_many_fields", "{reason}", {"reason": reason})
        return value


class Strict(Bounded):
    """A body, or a part of one, that accepts only declared fields."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Body(Bounded):
    """A body of OpenAI's API: undeclared fields are kept in `model_extra`."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    of_other_routes: ClassVar[Collection[str]] = ()
    """Fields of another route that are refused, unless they are declared or null."""

    model: str | None = None

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """The schema, with the refused fields that are not declared."""
        reference = handler(core_schema)
        properties = handler.resolve_ref_schema(reference)["properties"]
        for name in cls.of_other_routes:
            properties.setdefault(name, {"type": "null", "description": _refusal(LEAVE_OUT)})
        for name, neutral in REFUSED.items():
            accepted = [*map(_exactly, neutral), {"type": "null"}]
            description = _refusal(INSTEAD.get(name, LEAVE_OUT))
            properties.setdefault(name, {"anyOf": accepted, "description": description})
        return reference

    def ignored_fields(self, *, strict: bool) -> tuple[str, ...]:
        """The fields that are ignored with notice.

        Raises `InvalidField` for a known field that is too long or cannot be honoured and, with
        `strict`, for one that would be ignored with notice.
        """
        extra = self.model_extra or {}
        check_lengths(extra)
        for name, value in extra.items():
            if name in REFUSED:
                _check_neutral(name, value)
        ignored = tuple(name for name, value in extra.items() if _is_noticed(name, value))
        if ignored and strict:
            known_names = (*type(self).model_fields, *IGNORED, *WITHOUT_EFFECT)
            raise refused_when_strict(ignored[0], known_names)
        return ignored


def refused_when_strict(name: str, known_names: Iterable[str] = ()) -> InvalidField:
    """The error of a field that is ignored with notice unless `--strict-fields` is set.

    Args:
        known_names: the fields that an unknown one may have been meant to be.
    """
    if name in IGNORED:
        return without_effect(name)
    hint = did_you_mean(name, known_names) or "."
    return InvalidField(name, f"{short_repr(name)} is not a known field{hint}", "unknown_parameter")


def without_effect(name: str) -> InvalidField:
    """The error of a field that is known, and ignored unless `--strict-fields` is set."""
    message = f"{name} has no effect on this server; leave it out."
    return InvalidField(name, message, "unsupported_parameter")


def _is_noticed(name: str, value: Any) -> bool:
    if name in IGNORED:
        return value is not None and not _is_in(value, IGNORED[name])
    return name not in REFUSED and name not in WITHOUT_EFFECT


def _check_neutral(name: str, value: Any) -> None:
    if value is not None and not _is_in(value, REFUSED[name]):
        instead = INSTEAD.get(name, LEAVE_OUT)
        message = f"{name} is not supported by this server; {instead}."
        raise InvalidField(name, message, "unsupported_parameter")


def _is_in(value: Any, values: tuple[Any, ...]) -> bool:
    """Whether the value is one of `values`; 0 is not false, and 1 is not true."""
    return any(
        value == other and isinstance(value, bool) == isinstance(other, bool) for other in values
    )


def unsupported(reason: str) -> PydanticCustomError:
    """The error of a value that this server does not support; `reason` follows its field."""
    context = {"reason": reason, "code": "unsupported_parameter"}
    return PydanticCustomError("unsupported", "{reason}", context)


def _refusal(instead: str) -> str:
    """What the API's schema says of a refused field."""
    return f"Refused by this server; {instead}."


def _exactly(value: Any) -> JsonSchemaValue:
    """The schema of a neutral value. Objects are empty."""
    match value:
        case dict():
            return {"type": "object", "maxProperties": 0}
        case list():
            size = {"minItems": len(value), "maxItems": len(value)}
            return {"type": "array", "items": {"enum": value} if value else {}, **size}
        case bool():
            return {"type": "boolean", "const": value}
        case _:
            return {"type": "string" if isinstance(value, str) else "integer", "const": value}


@dataclass(frozen=True, slots=True)
class Refused(BeforeValidator):
    """Refuses a field, and says so in the API's schema."""

    instead: str = LEAVE_OUT

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return {**handler(core_schema), "description": _refusal(self.instead)}


def refused(*neutral: Any, instead: str = LEAVE_OUT, keeps: bool = False) -> Refused:
    """A known field that cannot be honoured; only null and its neutral values are accepted.

    Args:
        keeps: the field keeps a neutral value; otherwise it becomes null.
    """

    def check(value: Any) -> Any:
        # `type`, because 1 == true.
        is_neutral = any(type(value) is type(other) and value == other for other in neutral)
        if value is not None and not is_neutral:
            raise unsupported(f"is not supported by this server; {instead}")
        return value if keeps else None

    words = tuple(value for value in neutral if isinstance(value, str | int))
    accepted: Any = Literal[words] | None if words else None
    return Refused(check, accepted, instead)
