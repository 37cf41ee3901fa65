"""The base of all bodies: strict types, fields that are refused, fields that are ignored.

Types are strict ("5" is not an integer, true is not a number). A declared field is honoured. The
other fields are of three kinds: those in `REFUSED` cannot be honoured and are accepted only with
a neutral value; those in `WITHOUT_EFFECT` do not affect the response; the rest is unknown.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from server.errors import InvalidField
from server.text import clip, is_unicode

REFUSED: Mapping[str, tuple[Any, ...]] = {
    # Sampling methods that are not implemented.
    "length_penalty": (1,),
    "use_beam_search": (False,),
    "logits_processors": ([],),
    "logit_processors": ([],),
    "watermarking": (),
    "repetition_detection": (),
    "thinking_token_budget": (),
    "vllm_xargs": ({},),
    # Older names of vLLM's structured output, which vLLM has dropped too.
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "guided_decoding_backend": (),
    "guided_whitespace_pattern": (),
    # Tools, and outputs besides text.
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": ([], ["text"]),
    "audio": (),
    "reasoning": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    "web_search_options": (),
    "documents": ([],),
    "moderation": (),
    # Other forms of prompts and responses; some belong to the other endpoint.
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
    # Fields that need storage or scheduling.
    "store": (False,),
    "service_tier": ("auto", "default"),
    "priority": (0,),
    "cache_salt": (),
    "lora_request": (),
    "lora_path": (),
    "lora_name": (),
    "kv_transfer_params": ({},),
    "ec_transfer_params": ({},),
}
"""Known fields that are not honoured, with their neutral values; null is always neutral."""

WITHOUT_EFFECT = frozenset(
    {
        "user",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_retention",
        "parallel_tool_calls",
        "include_reasoning",
        "session_id",
        "request_id",
        "truncation_side",
    }
)
"""Known fields that identify the client, or that shape outputs which a text does not have."""


def _check_unicode(text: str) -> str:
    if not is_unicode(text):
        raise ValueError("contains a lone surrogate")
    return text


UnicodeText = Annotated[str, AfterValidator(_check_unicode)]
"""A text that UTF-8 can encode."""


class Strict(BaseModel):
    """A body, or a part of one, that accepts only declared fields."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Body(BaseModel):
    """A body of OpenAI's API: undeclared fields are kept in `model_extra`."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)

    model: str | None = None

    def ignored_fields(self, *, strict: bool) -> tuple[str, ...]:
        """The unknown fields, which are ignored.

        Raises `InvalidField` for a known field that cannot be honoured and, with `strict`,
        for an unknown one.
        """
        ignored = []
        for name, value in (self.model_extra or {}).items():
            if name in REFUSED:
                _check_neutral(name, value)
            elif name not in WITHOUT_EFFECT:
                ignored.append(name)
        if ignored and strict:
            name = ignored[0]
            raise InvalidField(name, f"{clip(name)} is not a known field.", "unknown_parameter")
        return tuple(ignored)


def _check_neutral(name: str, value: Any) -> None:
    if value is not None and value not in REFUSED[name]:
        message = f"{name} is not supported by this server; leave it out."
        raise InvalidField(name, message, "unsupported_parameter")
