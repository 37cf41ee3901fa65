"""The data of Specgate's that cross a process, and their form in vLLM's free dictionaries.

Gateway to engine: the configuration in `VllmConfig.additional_config`, a request's spec method in
`SamplingParams.extra_args`, a switch as the arguments of a utility call. Engine to gateway:
statistics instead of a KV connector's, encoded in `core.counting` and decoded here, and the state
of a load. Worker to scheduler: `DraftReport`; the scheduler reads that of rank 0.
"""

import hashlib
import json
from collections import UserDict
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from engine_adapter.policies.contract import DraftOutcome, DraftTime, ProposerTraits
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import get_method, proposer_traits
from engine_adapter.seam.config import DEFAULT_GRAMMAR_BYTES
from engine_adapter.seam.counts import (
    CompiledGrammars,
    PolicyStep,
    ProposerCounts,
    SpecStats,
    StepKind,
    StepReport,
)
from engine_adapter.seam.types import SpecDecodeParams, SpecMethod, Switch

KEY = "specgate"
"""The key of statistics in a dictionary of vLLM's."""

COMPILED_FOR = "specgate_compiled_for"
"""The key of the proposer whose model is compiled."""

FAILURE = "specgate_failure"
"""The key of the reason for which a request's constraint has ended it."""

GRAMMARS_FULL = "grammars_full"
"""The reason if the grammars of running requests leave no room for its own."""

GRAMMAR_BYTES = "specgate_grammar_bytes"
"""The key of the bytes that the grammar of a request's constraint takes."""

# -- gateway to engine -----------------------------------------------------------------------


class AdditionalConfig(UserDict[str, Any]):
    """The dictionary of `VllmConfig.additional_config`, and what it means for compiled code.

    vLLM keeps compiled models in folders whose names come from its configuration, this one
    included. Of a plain dictionary it takes everything: each start would compile again, since each
    has a progress pipe of its own, and drafts with equal weights would share code, in which are the
    names of layers.
    """

    def compute_hash(self) -> str:
        """Called by vLLM: differs where compiled code may differ, or the names of layers in it.

        The target's code depends on the heads that read its layers. A head may be replaced at its
        path, so its layout counts too, as vLLM counts a model's path and its configuration.
        """
        config = self.data[KEY]
        models = sorted(
            (spec["method"], spec["model"] or "", config["layouts"].get(spec["name"], ""))
            for spec in config["proposers"]
        )
        factors = json.dumps([models, self.data.get(COMPILED_FOR)])
        return hashlib.sha256(factors.encode()).hexdigest()

    def compiled_for(self, proposer: str) -> "AdditionalConfig":
        """The same for the code of a proposer's model."""
        return AdditionalConfig(self.data | {COMPILED_FOR: proposer})


@dataclass(frozen=True, slots=True)
class SpecgateConfig:
    """The configuration that `VllmConfig.additional_config` carries to the engine's processes.

    Attributes:
        proposers: the proposers to load.
        progress_pipe: path of the named pipe for progress lines, or `None`.
        policies: policy -> its parameters, where they are not the defaults.
        primary: the primary proposer, if there is one.
        layouts: head -> a hash of its configuration, and of its tensors' names and shapes.
        max_grammar_bytes: the most bytes of all compiled grammars of a process.
    """

    proposers: tuple[ProposerSpec, ...] = ()
    progress_pipe: str | None = None
    policies: Mapping[str, Any] = field(default_factory=dict)
    primary: str | None = None
    layouts: Mapping[str, str] = field(default_factory=dict)
    max_grammar_bytes: int = DEFAULT_GRAMMAR_BYTES

    @property
    def traits(self) -> tuple[ProposerTraits, ...]:
        """The proposers as policies see them."""
        return tuple(proposer_traits(spec, self.proposers) for spec in self.proposers)

    @property
    def needs_draft_kv(self) -> bool:
        """Whether any proposer writes KV of its own."""
        return any(get_method(spec.method).capabilities.draft_kv for spec in self.proposers)

    def to_additional_config(self) -> "AdditionalConfig":
        """The dictionary for vLLM."""
        specs = [asdict(spec) for spec in self.proposers]
        names = ("progress_pipe", "policies", "primary", "layouts", "max_grammar_bytes")
        settings = {name: getattr(self, name) for name in names}
        return AdditionalConfig({KEY: {"proposers": specs, **settings}})

    @classmethod
    def from_vllm_config(cls, vllm_config: Any) -> "SpecgateConfig":
        """Reads it from a `VllmConfig`."""
        fields = vllm_config.additional_config[KEY]
        specs = tuple(ProposerSpec(**spec) for spec in fields["proposers"])
        return cls(**{**fields, "proposers": specs})


def to_extra_args(params: SpecDecodeParams, grammar_bytes: int | None = None) -> dict[str, Any]:
    """A request's spec method, for `SamplingParams.extra_args`.

    Args:
        grammar_bytes: what the grammar of its constraint takes; `None` if that is not known.
    """
    method = params.spec_method
    fields = [method.proposer, method.num_speculative_tokens, params.pinned, params.switch_epoch]
    size = {} if grammar_bytes is None else {GRAMMAR_BYTES: grammar_bytes}
    return {KEY: [*fields, list(params.prediction), params.streams_stats], **size}


def grammar_bytes_of(sampling_params: Any) -> int | None:
    """What the grammar of a request's constraint takes; `None` if that is not known."""
    return (sampling_params.extra_args or {}).get(GRAMMAR_BYTES) if sampling_params else None


def from_extra_args(sampling_params: Any) -> SpecDecodeParams:
    """Reads it. Plain decoding for a request that is not the gateway's, as in a warm-up."""
    fields = (sampling_params.extra_args or {}).get(KEY) if sampling_params else None
    if fields is None:
        return SpecDecodeParams()
    proposer, k, pinned, epoch, prediction, streams_stats = fields
    method = SpecMethod(proposer, k)
    return SpecDecodeParams(method, pinned, epoch, tuple(prediction), streams_stats)


def switch_to_wire(switch: Switch) -> tuple[str, int, int]:
    """The arguments of the utility call `specgate_switch`."""
    method = switch.spec_method
    return method.proposer, method.num_speculative_tokens, switch.epoch


def without_kv(scheduler_output: Any) -> set[str]:
    """The requests that lost their drafts and their KV, from vLLM's `SchedulerOutput`.

    They are those that were preempted. Some may have ended since.
    """
    preempted: set[str] = scheduler_output.preempted_req_ids or set()
    return preempted


# -- worker to scheduler ---------------------------------------------------------------------


@dataclass(slots=True)
class DraftReport:
    """The drafting of one step: written by the runner, read by the scheduler.

    Attributes:
        seconds: proposer -> time spent in it.
        proposed: proposer -> tokens that it drafted in this step; a plan may drop some of them.
        catchup: proposer -> tokens of lag that it removed.
        faults: proposer that failed -> cause.
        work: each call of a proposer, in the shadow too, for the policies.
        fallbacks: requests for which the plan's second proposer was called.
        drafted: request id -> tokens that wait for verification, of drafts that the scheduler does
            not get, since they are made late.
        full_lengths: request id -> tokens of its draft before the plan cut it.
        dropped: requests whose first draft the plan dropped.
        outcomes: of drafts that the step decided without verification: shadows and dropped ones.
        constraint_times: request id -> CPU seconds of its constraint's matcher, and its calls.
        unread: what `complete` calls.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    proposed: dict[str, int] = field(default_factory=dict)
    catchup: dict[str, int] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)
    work: list[tuple[str, DraftTime]] = field(default_factory=list)
    fallbacks: list[str] = field(default_factory=list)
    drafted: dict[str, int] = field(default_factory=dict)
    full_lengths: dict[str, int] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)
    outcomes: list[DraftOutcome] = field(default_factory=list)
    constraint_times: dict[str, tuple[float, int]] = field(default_factory=dict)
    unread: list[Callable[[], None]] = field(default_factory=list)

    def complete(self) -> None:
        """Takes what only the device can tell; waits for drafts that are not made late."""
        for read_device in self.unread:
            read_device()
        self.unread.clear()

    def __getstate__(self) -> object:
        """For another process, which has no device: all is read."""
        self.complete()
        return object.__getstate__(self)

    def add_drafts(self, name: str, tokens: int, catchup: int) -> None:
        """Counts the drafts that a proposer made for the next step."""
        self.proposed[name] = self.proposed.get(name, 0) + tokens
        if catchup:
            self.catchup[name] = self.catchup.get(name, 0) + catchup

    def add_seconds(self, name: str, seconds: float) -> None:
        """Adds time that was spent in a proposer."""
        self.seconds[name] = self.seconds.get(name, 0.0) + seconds


# -- engine to gateway -----------------------------------------------------------------------

NUM_TOTALS = 4
"""Totals at the head of a list of counts; one entry per draft position follows."""


class LoadState(StrEnum):
    """The state of a proposer that a worker loads while the engine serves.

    `refused`: its options or weights cannot be used. `no_room`: they do not fit into the device's
    memory. `failed`: it ended with any other error.
    """

    READING = "reading"
    READY = "ready"
    REFUSED = "refused"
    NO_ROOM = "no_room"
    FAILED = "failed"


def decode_counts(wire: list[int]) -> ProposerCounts:
    """The counts of `core.counting.Tally.wire`."""
    return ProposerCounts(
        drafts=wire[0],
        drafted=wire[1],
        accepted=wire[2],
        emitted=wire[3],
        accepted_per_position=tuple(wire[NUM_TOTALS:]),
    )


def decode_request(params: Mapping[str, Any] | None) -> SpecStats | None:
    """The statistics of `RowState.to_wire`; `None` for an output without any."""
    if not params or KEY not in params:
        return None
    steps, tokens, tallies = params[KEY]
    return SpecStats(steps, tokens, {name: decode_counts(w) for name, w in tallies.items()})


def decode_failure(params: Mapping[str, Any] | None) -> str | None:
    """Why the request's constraint has ended it; `None` if it has not."""
    return params.get(FAILURE) if params else None


def decode_step(stats: Mapping[str, Any]) -> StepReport:
    """The report of `StepTally.to_wire`."""
    kind, seconds, tallies, draft_seconds, proposed, catchup, faults, *engine_state = stats[KEY]
    quarantined, policy, evidence, grammars = engine_state
    verified = {name: decode_counts(wire) for name, wire in tallies.items()}
    return StepReport(
        kind=StepKind(kind),
        seconds=seconds,
        verified=verified,
        draft_seconds=draft_seconds,
        proposed_tokens=proposed,
        catchup_tokens=catchup,
        faults=faults,
        quarantined=tuple(quarantined),
        policy=None if policy is None else PolicyStep(*policy),
        evidence=evidence,
        grammars=CompiledGrammars(*grammars),
    )
