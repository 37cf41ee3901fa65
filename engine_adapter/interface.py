"""The seam between the gateway and an engine: plain, frozen types and one protocol.

Nothing here imports torch, vLLM, FastAPI or pydantic. The gateway speaks only these words;
`vllm_engine` and `fake` implement them. It is long because the seam is read in one piece; only
how a sequence is sampled and what is counted stand apart, in `engine_adapter.sampling` and
`engine_adapter.counts`, and are exported from here.
"""

from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from engine_adapter.counts import ProposerCounts as ProposerCounts
from engine_adapter.counts import SpecStats as SpecStats
from engine_adapter.counts import StepReport as StepReport
from engine_adapter.errors import EngineDead
from engine_adapter.sampling import Form as Form
from engine_adapter.sampling import SamplingOptions as SamplingOptions
from engine_adapter.sampling import StructuredOutput as StructuredOutput

NONE = "none"
"""The name of plain decoding, wherever a proposer's name can stand."""


@dataclass(frozen=True, slots=True)
class SpecMethod:
    """What drafts, and how much: a proposer's name or `none`, and k.

    Attributes:
        proposer: a loaded proposer's name, or `NONE`.
        num_speculative_tokens: k, at most the proposer's own; 0 for `NONE`.
    """

    proposer: str = NONE
    num_speculative_tokens: int = 0


PLAIN = SpecMethod()
"""Plain decoding."""


@dataclass(frozen=True, slots=True)
class SpecDecodeParams:
    """The choice made for a request at its admission.

    Attributes:
        method: what drafts for it from its first step on.
        pinned: the request named its proposer itself; no switch changes it.
        generation: the generation of the spec method that was active at admission, by which
            the engine tells whether an `immediate` switch overtook the request.
        prediction: the tokens that the client expects, for a proposer that drafts them.
    """

    method: SpecMethod = PLAIN
    pinned: bool = False
    generation: int = 0
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
        adapter: the target runs with it; `None` is the target alone. Drafts are the base's.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    spec_decode: SpecDecodeParams = SpecDecodeParams()
    adapter: LoraAdapter | None = None


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


@dataclass(frozen=True, slots=True)
class ProposerInfo:
    """A loaded proposer, as `/v1/proposers` shows it.

    Attributes:
        model: the path or id of its weights, `None` where it has none.
        state: `loaded`; `loading`: it cannot be chosen yet; or `quarantined`: it failed again and
            again and is not asked any more.
        last_error: why it was quarantined.
        weights_bytes, kv_bytes: what it holds beside the target, summed over the ranks.
        draft_latency_ms: rolling mean time per drafted token, `None` before the first.
    """

    name: str
    method: str
    model: str | None
    num_speculative_tokens: int
    tensor_parallel_size: int = 1
    state: str = "loaded"
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


class EngineObserver(Protocol):
    """Takes an engine's reports, in order, on the event loop's thread. Must not block."""

    def on_step(self, report: StepReport) -> None:
        """Counts one engine step."""

    def on_restart(self, succeeded: bool) -> None:
        """Counts an attempt to replace a dead engine process."""


class Engine(Protocol):
    """A target model and its proposers.

    `start` comes first and once; then everything else, concurrently, on one event loop; then
    `stop`, which ends what still runs.
    """

    @property
    def info(self) -> EngineInfo:
        """What was started. Raises `EngineNotReady` before `start` has returned."""
        ...

    @property
    def failure(self) -> EngineDead | None:
        """Why the engine is dead and when it should serve again; `None` while it can serve."""
        ...

    async def start(self, on_progress: Callable[[str], None]) -> None:
        """Loads the models. `on_progress` gets a line for each stage.

        Raises:
            EngineConfigError: a setting cannot work; the message names it.
            EngineStartError: loading failed for another reason.
        """
        ...

    def generate(self, request: GenerationRequest) -> AsyncGenerator[Delta, None]:
        """Generates one sequence. Closing the generator is the one way to abort it.

        Raises:
            InvalidRequest: the engine cannot honour a field; nothing was started.
            EngineDead: the engine is dead, or died before the sequence was whole.
        """
        ...

    async def switch(self, method: SpecMethod, generation: int, *, running: bool) -> None:
        """Makes `method` the default from the next step on.

        With `running`, every live request that is not pinned takes it too; without, live
        requests keep theirs. `generation` grows with every switch.

        Raises:
            EngineDead: the engine is gone.
        """
        ...

    async def proposers(self) -> tuple[ProposerInfo, ...]:
        """The loaded proposers with their present figures, and one that is being loaded."""
        ...

    async def load(self, fields: Mapping[str, Any]) -> ProposerInfo:
        """Loads a proposer while requests are served; no stream waits for its weights.

        Args:
            fields: its JSON object, as `--proposer` takes it.

        Raises:
            EngineConfigError: a field, or a file of its weights, cannot work.
            ProposerRefused: not as things are; nothing changed.
            EngineDead: the engine is gone, or died meanwhile; nothing changed.
        """
        ...

    async def unload(self, name: str) -> None:
        """Unloads a proposer and frees its memory. The caller sees to it that nobody uses it.

        Raises:
            ProposerRefused: there is no such proposer, or another one needs it.
            EngineDead: the engine is gone; the next process does not load it.
        """
        ...

    @property
    def adapters(self) -> tuple[LoraAdapter, ...]:
        """The LoRA adapters that requests may ask for."""
        ...

    async def load_adapter(self, name: str, path: str) -> LoraAdapter:
        """Loads a LoRA adapter while requests are served.

        Raises:
            EngineConfigError: what stands at `path` cannot be used.
            AdapterRefused: not as things are; nothing changed.
            EngineDead: the engine is gone, or died meanwhile.
        """
        ...

    async def unload_adapter(self, name: str) -> None:
        """Unloads a LoRA adapter that no request uses.

        Raises:
            AdapterRefused: there is none, or it is in use; nothing changed.
            EngineDead: the engine is gone, and the adapter with it.
        """
        ...

    async def stop(self) -> None:
        """Ends every sequence and frees the models. Safe to call twice."""
        ...
