"""The plain, frozen types of the seam: methods, requests, deltas, proposers and engines.

The protocols that exchange them are in `engine_adapter.seam.interface`, the statistics in
`engine_adapter.seam.counts`. Nothing here imports torch, vLLM, FastAPI or pydantic.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from engine_adapter.seam.counts import SpecStats
from engine_adapter.seam.media import MediaPrompt, MediaSupport

NONE = "none"
"""The name of plain decoding, used like the name of a proposer."""


@dataclass(frozen=True, slots=True)
class SpecMethod:
    """A proposer, or a policy that chooses one at every step, and a draft length.

    Attributes:
        proposer: the name of a loaded proposer, of a policy, or `NONE`.
        num_speculative_tokens: k, at most the proposer's own k; under a policy the most that it
            may choose; 0 for `NONE`.
    """

    proposer: str = NONE
    num_speculative_tokens: int = 0


PLAIN = SpecMethod()
"""Plain decoding."""


@dataclass(frozen=True, slots=True)
class Switch:
    """A change of the default spec method.

    Attributes:
        epoch: the number of the switch; 0 is the method at start. In the API: `generation`.
    """

    spec_method: SpecMethod
    epoch: int


NO_SWITCH = Switch(PLAIN, 0)
"""The state before the first switch: its epoch, 0, is never later than a request's."""


class ConstraintKind(StrEnum):
    """How a `StructuredOutput` states its constraint."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    CHOICE = "choice"
    GRAMMAR = "grammar"


@dataclass(frozen=True, slots=True)
class StructuredOutput:
    """A constraint on the whole generated text.

    Attributes:
        kind: how the constraint is stated; `JSON_OBJECT` needs neither `value` nor `choices`.
        value: the JSON schema as JSON text, the regular expression, or the EBNF grammar.
        choices: for `CHOICE`, the allowed texts.
        param: the request's field that holds the constraint, for errors.
        unenforced: keywords of the request's schema that `value` leaves out.
    """

    kind: ConstraintKind
    value: str = ""
    choices: tuple[str, ...] = ()
    param: str = "structured_outputs"
    unenforced: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RepetitionDetection:
    """Ends a text whose last tokens are one pattern, `min_count` times without a gap.

    Attributes:
        max_pattern_size, min_pattern_size: the lengths of the pattern, in tokens.
    """

    max_pattern_size: int
    min_count: int
    min_pattern_size: int = 1


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """How one sequence is sampled. Defaults are OpenAI's; `None` means "not set".

    Attributes:
        max_tokens: the most tokens to generate; `None` generates up to the end of the context.
        top_k: 0 keeps every token.
        min_p: removes tokens whose probability is below this share of the likeliest token's.
        logit_bias: token id -> the number added to its logit.
        allowed_token_ids: the only tokens that may be generated; empty allows all.
        structured_output: the constraint on the text.
        seed: makes the sequence repeatable.
        logprobs, prompt_logprobs: alternatives per token; 0 returns only the token's own.
        stop: strings that end the text; the text ends before the matched string.
        thinking_token_budget: after so many tokens of reasoning its end is forced; `None` does not.
        repetition_detection: ends a text that repeats itself; not before `min_tokens`.
        spaces_between_special_tokens: without `skip_special_tokens`, added tokens that follow
            each other are decoded as other tokens are, not as they are written.
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
    thinking_token_budget: int | None = None
    repetition_detection: RepetitionDetection | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    structured_output: StructuredOutput | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False


@dataclass(frozen=True, slots=True)
class SpecDecodeParams:
    """The speculative decoding of one request, as selected at its admission.

    Attributes:
        pinned: the request names its method itself or a routing rule does; no switch changes it.
        switch_epoch: the epoch at admission. If the engine has applied a later `immediate` switch
            since, a request that is not pinned starts with that switch's method.
        prediction: the tokens that the client expects, for a proposer that drafts them.
        streams_stats: every delta carries the statistics so far, not only the last one.
    """

    spec_method: SpecMethod = PLAIN
    pinned: bool = False
    switch_epoch: int = 0
    prediction: tuple[int, ...] = ()
    streams_stats: bool = False


@dataclass(frozen=True, slots=True)
class LoraAdapter:
    """A LoRA adapter of an engine.

    Attributes:
        path: its folder, or its id on the hub.
        folder: the absolute path of its files.
        id: unique for each load; never reused.
    """

    name: str
    path: str
    folder: str
    id: int


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One sequence to generate. A body with `n` choices or several prompts makes several.

    Attributes:
        request_id: unique among the live requests.
        prompt_token_ids: at least one token, and fewer than `EngineInfo.max_model_len`.
        lora_adapter: the target's. Proposers always draft with the base model.
        template_variables: the client's variables of the chat template, for a reasoning parser.
        cache_salt: only requests with the same salt share blocks of the prefix cache.
        priority: a lower one is scheduled earlier, if the engine schedules by priority.
        media: the prompt's media, if it has any; `prompt_token_ids` are its tokens.
        stream_interval: the fewest tokens of a delta, but for the first, which comes at once, and
            the last.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    spec_decode: SpecDecodeParams = SpecDecodeParams()
    lora_adapter: LoraAdapter | None = None
    template_variables: Mapping[str, Any] = field(default_factory=dict)
    cache_salt: str | None = None
    priority: int = 0
    media: MediaPrompt | None = None
    stream_interval: int = 1


class FinishReason(StrEnum):
    """Why a sequence ended. A failed sequence has no reason: `generate` raises."""

    STOP = "stop"
    LENGTH = "length"
    REPETITION = "repetition"


@dataclass(frozen=True, slots=True)
class Alternative:
    """One candidate token. Its text may be a part of a character; `rank` 1 is the likeliest."""

    token_id: int
    token: str
    logprob: float
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token's log probability and its best alternatives, best first."""

    actual: Alternative
    top: tuple[Alternative, ...] = ()


@dataclass(frozen=True, slots=True)
class Delta:
    """The output of a sequence since the last delta.

    Attributes:
        text: new text; may be empty while a character or a stop string is incomplete.
        token_ids: new tokens; may be more than `text` shows.
        logprobs: one entry per new token, if the request asks for them.
        prompt_logprobs: on the first delta, if requested; the first token's entry is `None`.
        finish_reason: set only on the last delta.
        stop_reason: the stop string or token id that matched, if there was one.
        num_cached_tokens: prompt tokens found in the prefix cache.
        spec: cumulative statistics; always on the last delta, earlier if they cost nothing.
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
    """A proposer, as `/v1/proposers` shows it.

    Attributes:
        model: the path or id of its weights; `None` if it has none.
        weights_bytes, kv_bytes: its memory beside the target's, summed over the ranks.
        draft_latency_ms: rolling mean time per drafted token; `None` before the first.
        last_error: why it is quarantined.
        settings: its JSON object, as `--proposer` and `/v1/load_proposer` have it.
        can_unload: whether it can be unloaded, and loaded again, while the engine serves.
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
    settings: Mapping[str, Any] = field(default_factory=dict)
    can_unload: bool = False


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    """A policy, as `/v1/spec_policy` shows it.

    Attributes:
        parameters: its parameters in force, as they were given and with the defaults.
        state: what it did lately: plain JSON, for people.
    """

    name: str
    parameters: Mapping[str, Any]
    state: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ParserChoice:
    """A parser of the target's texts.

    Attributes:
        name: `None` without a parser.
        reason: why it is this one, or why there is none.
    """

    name: str | None
    reason: str


NO_PARSER = ParserChoice(None, "it is turned off")
"""The choice of a server that is told to have no parser."""


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """A started engine, as the gateway sees it.

    Attributes:
        engine, version: `vllm` or `fake`, and the version of its library.
        model, tokenizer: their paths or ids; the tokenizer's is for transformers.
        max_model_len: the context length in tokens, of prompt and output together.
        max_num_seqs: the most sequences in one step.
        vocab_size: token ids are in [0, vocab_size).
        max_logprobs: the most alternatives per token.
        max_speculative_tokens: the draft capacity: the upper limit of every k.
        tool_call_parser: finds the calls that the target makes by itself.
        reasoning_parser: tells the target's reasoning from its answer.
        has_thinking_budget: the target's reasoning begins and ends with a token that the engine
            knows, so `SamplingOptions.thinking_token_budget` can be set.
        media: what media the target takes; `None` if it takes text only.
    """

    engine: str
    version: str
    model: str
    tokenizer: str
    max_model_len: int
    max_num_seqs: int
    vocab_size: int
    max_logprobs: int
    max_speculative_tokens: int
    proposers: tuple[ProposerInfo, ...]
    tool_call_parser: ParserChoice = NO_PARSER
    reasoning_parser: ParserChoice = NO_PARSER
    has_thinking_budget: bool = False
    media: MediaSupport | None = None
