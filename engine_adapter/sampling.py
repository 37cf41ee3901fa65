"""How one sequence is sampled, and which form its text must have. Plain types of the seam."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Form(StrEnum):
    """By what a `StructuredOutput` describes a text."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """The form that a generated text must have, from its first token to its last.

    Attributes:
        form: by what it is described; any JSON object needs none of the values below.
        value: the JSON schema as JSON text, the regular expression, or the EBNF grammar.
        choices: for `CHOICE`, the texts of which one is generated.
        param: the request's field that asked for it, for errors.
    """

    form: Form
    value: str = ""
    choices: tuple[str, ...] = ()
    param: str = "structured_outputs"


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How one sequence is sampled. Defaults are OpenAI's; `None` means "not asked for".

    Attributes:
        max_tokens: most tokens to generate; `None` is "up to the context's end".
        top_k: 0 keeps every token.
        min_p: keeps tokens of at least this share of the likeliest one's probability.
        logit_bias: token id -> what is added to its logit.
        allowed_token_ids: the only tokens that are generated; empty allows all.
        bad_words: words of which none is generated whole.
        structured_output: the form that the text must have.
        seed: makes the sequence repeatable; `None` draws from the engine's generator.
        logprobs: how many alternatives per generated token (0 is the sampled token's own).
        prompt_logprobs: the same for the prompt's tokens.
        stop: strings that end the text; the matched string is left out.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    min_tokens: int = 0
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    structured_output: StructuredOutput | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
