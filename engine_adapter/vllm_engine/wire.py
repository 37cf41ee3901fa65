"""What Specgate puts into vLLM's free dictionaries, and how it is read back on the other side."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from engine_adapter.counts import ProposerCounts, SpecStats, StepKind, StepReport
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import get_method
from engine_adapter.types import SpecDecodeParams, SpecMethod, Switch

KEY = "specgate"
"""The one key under which Specgate's data stand in a dictionary of vLLM's."""

NUM_TOTALS = 4
"""How many totals a list of counts begins with; entries for each draft position follow."""

READING, READY, REFUSED, FAILED = "reading", "ready", "refused", "failed"
"""How far a worker is with a proposer that it loads: still at it, done, given something that cannot
work, ended by anything else."""


@dataclass(frozen=True, slots=True)
class SpecgateConfig:
    """Rides in `VllmConfig.additional_config` to the engine's processes.

    Attributes:
        proposers: what to load.
        progress_pipe: the named pipe that takes progress lines, or `None`.
    """

    proposers: tuple[ProposerSpec, ...] = ()
    progress_pipe: str | None = None

    @property
    def needs_draft_kv(self) -> bool:
        """Whether any proposer writes KV of its own."""
        return any(get_method(spec.method).capabilities.draft_kv for spec in self.proposers)

    def to_additional_config(self) -> dict[str, Any]:
        """The dictionary for vLLM."""
        specs = [asdict(spec) for spec in self.proposers]
        return {KEY: {"proposers": specs, "progress_pipe": self.progress_pipe}}

    @classmethod
    def of(cls, vllm_config: Any) -> "SpecgateConfig":
        """Reads it back from a `VllmConfig`."""
        fields = vllm_config.additional_config[KEY]
        specs: Sequence[dict[str, Any]] = fields["proposers"]
        return cls(tuple(ProposerSpec(**spec) for spec in specs), fields["progress_pipe"])


def to_extra_args(params: SpecDecodeParams) -> dict[str, Any]:
    """A request's choice, for `SamplingParams.extra_args`."""
    method = params.spec_method
    fields = [method.proposer, method.num_speculative_tokens, params.pinned, params.switch_epoch]
    return {KEY: [*fields, list(params.prediction)]}


def from_extra_args(sampling_params: Any) -> SpecDecodeParams:
    """Reads it back; plain decoding for a request that is not the gateway's (a warm-up)."""
    fields = (sampling_params.extra_args or {}).get(KEY) if sampling_params else None
    if fields is None:
        return SpecDecodeParams()
    proposer, k, pinned, epoch, prediction = fields
    return SpecDecodeParams(SpecMethod(proposer, k), pinned, epoch, tuple(prediction))


@dataclass(slots=True)
class DraftReport:
    """What the drafting of one step took: written by the runner, read by the scheduler.

    Attributes:
        seconds: time in each proposer.
        drafted: tokens that each drafted.
        catchup: lag, in tokens, that each removed.
        faults: those that failed, and why.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    drafted: dict[str, int] = field(default_factory=dict)
    catchup: dict[str, int] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)


def decode_counts(wire: list[int]) -> ProposerCounts:
    """A `Tally`'s list as the frozen type."""
    return ProposerCounts(
        drafts=wire[0],
        drafted=wire[1],
        accepted=wire[2],
        emitted=wire[3],
        accepted_per_position=tuple(wire[NUM_TOTALS:]),
    )


def decode_request(params: Mapping[str, Any] | None) -> SpecStats | None:
    """`RowState.to_wire` as the frozen type; `None` where an output brought none."""
    if not params or KEY not in params:
        return None
    steps, tokens, tallies = params[KEY]
    return SpecStats(steps, tokens, {name: decode_counts(w) for name, w in tallies.items()})


def decode_step(stats: Mapping[str, Any]) -> StepReport:
    """`StepTally.to_wire` as the frozen type."""
    kind, seconds, tallies, draft_seconds, drafted, catchup, faults, quarantined = stats[KEY]
    verified = {name: decode_counts(wire) for name, wire in tallies.items()}
    return StepReport(
        kind=StepKind(kind),
        seconds=seconds,
        verified=verified,
        draft_seconds=draft_seconds,
        drafted=drafted,
        catchup_tokens=catchup,
        faults=faults,
        quarantined=tuple(quarantined),
    )


def switch_to_wire(switch: Switch) -> tuple[str, int, int]:
    """The arguments of the utility call `specgate_switch`."""
    method = switch.spec_method
    return method.proposer, method.num_speculative_tokens, switch.epoch
