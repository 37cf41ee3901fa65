"""The plain, frozen types of the seam between the gateway and an engine.

Nothing here imports torch, vLLM, FastAPI or pydantic. `engine_adapter.interface` has the protocols
that exchange these types, `engine_adapter.counts` the statistics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from engine_adapter.counts import SpecStats

NONE = "none"
"""The name of plain decoding, wherever a proposer's name can stand."""


@dataclass(frozen=True, slots=True)
class SpecMethod:
    """A proposer and a draft length: the proposer's name or `none`, and k.

    Attributes:
        proposer: a loaded proposer's name, or `NONE`.
        num_speculative_tokens: k, at most the proposer's own; 0 for `NONE`.
    """

    proposer: str = NONE
    num_speculative_tokens: int = 0


PLAIN = SpecMethod()
"""Plain decoding."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of the default spec method.

    Attributes:
        epoch: grows with every switch; 0 is the method at start. On the wire it is `generation`.
    """

    spec_method: SpecMethod
    epoch: int


NO_SWITCH = Switch(PLAIN, 0)
"""The state before the first switch: no request is older than it."""


class ConstraintKind(StrEnum):
    """How a `StructuredOutput` describes a text."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """The form that a generated text must have, from its first token to its last.

    Attributes:
        kind: how the constraint is given; `JSON_OBJECT` needs none of the values below.
        value: the JSON schema as JSON text, the regular expression, or the EBNF grammar.
        choices: for `CHOICE`, the texts of which one is generated.
        param: the request's field that asked for it, for errors.
    """

    kind: ConstraintKind
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


@dataclass(frozen=True, slots=True)
class SpecDecodeParams:
    """The speculative decoding of one request, as selected at its admission.

    Attributes:
        spec_method: the method that the request has from its first step.
        pinned: the request named its proposer itself; no switch changes it.
        switch_epoch: the epoch of the switch that was active at admission. The engine compares
            it with the last `immediate` switch, which may have overtaken the request.
        prediction: the tokens that the client expects, for a proposer that drafts them.
    """

    spec_method: SpecMethod = PLAIN
    pinned: bool = False
    switch_epoch: int = 0
    prediction: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A LoRA adapter that an engine holds.

    Attributes:
        name: how requests call it.
        path: the folder, or the hub's id, that it was read from.
        id: of this loading of it; never used again.
    """

    name: str
    path: str
    id: int


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. `n` choices and several prompts are several of these.

    Attributes:
        request_id: unique among the live ones.
        prompt_token_ids: at least one token, shorter than the context.
        lora_adapter: the target runs with it; `None` is the base model. Proposers draft with the
            base model in either case.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    spec_decode: SpecDecodeParams = SpecDecodeParams()
    lora_adapter: LoraAdapter | None = None


class FinishReason(StrEnum):
    """Why a sequence ended. A sequence that failed has no reason: `generate` raises."""

    STOP = "stop"
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One candidate token: its text may be a part of a character."""

    token_id: int
    token: str
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log probability and its best alternatives, best first."""

    chosen: Alternative
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """What a sequence gained since the last delta.

    Attributes:
        text: new text; may be empty while a character or a stop string is incomplete.
        token_ids: new tokens; may be more than `text` shows.
        logprobs: one entry per new token, if asked for.
        prompt_logprobs: on the first delta, if asked for; the first token's entry is `None`.
        finish_reason: set on the last delta and on no other.
        stop_reason: the stop string or token id that matched, where one did.
        num_cached_tokens: prompt tokens found in the prefix cache.
        spec: cumulative statistics; on the last delta always, earlier where it is free.
    """

    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    num_cached_tokens: int = 0
    spec: SpecStats | None = None


class ProposerState(StrEnum):
    """The state of a proposer.

    `loading`: it cannot be selected yet. `quarantined`: it failed repeatedly, and the engine no
    longer calls it.
    """

    LOADED = "loaded"
    LOADING = "loading"
    QUARANTINED = "quarantined"


@dataclass(frozen=True, slots=True)
class ProposerInfo:
    """A loaded proposer, as `/v1/proposers` shows it.

    Attributes:
        model: the path or id of its weights, `None` where it has none.
        last_error: why it was quarantined.
        weights_bytes, kv_bytes: what it holds beside the target, summed over the ranks.
        draft_latency_ms: rolling mean time per drafted token, `None` before the first.
    """

    name: str
    method: str
    model: str | None
    num_speculative_tokens: int
    tensor_parallel_size: int = 1
    state: ProposerState = ProposerState.LOADED
    weights_bytes: int = 0
    kv_bytes: int = 0
    draft_latency_ms: float | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What the gateway must know of a started engine.

    Attributes:
        engine: `vllm` or `fake`.
        version: of the engine's library, as `/version` shows it.
        model: the target's path or id.
        tokenizer: path or id of the tokenizer, for transformers.
        max_model_len: the context in tokens, prompt and generation together.
        vocab_size: token ids are in [0, vocab_size).
        max_logprobs: the most alternatives per token that can be asked for.
        max_speculative_tokens: the draft capacity that no proposer's k exceeds.
    """

    engine: str
    version: str
    model: str
    tokenizer: str
    max_model_len: int
    vocab_size: int
    max_logprobs: int
    max_speculative_tokens: int
    proposers: tuple[ProposerInfo, ...]
