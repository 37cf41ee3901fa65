"""What Specgate puts into vLLM's free dictionaries, and how it is read back on the other side."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from engine_adapter.interface import SpecDecodeParams, SpecMethod
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import method
from engine_adapter.vllm_engine.core.counting import KEY

READING, READY, REFUSED, FAILED = "reading", "ready", "refused", "failed"
"""How far a worker is with a proposer that it loads: still at it, done, given something that cannot
work, ended by anything else."""


@dataclass(frozen=True, slots=True)
class Extension:
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
        return any(method(spec.method).capabilities.draft_kv for spec in self.proposers)

    def to_additional_config(self) -> dict[str, Any]:
        """The dictionary for vLLM."""
        specs = [asdict(spec) for spec in self.proposers]
        return {KEY: {"proposers": specs, "progress_pipe": self.progress_pipe}}

    @classmethod
    def of(cls, vllm_config: Any) -> "Extension":
        """Reads it back from a `VllmConfig`."""
        fields = vllm_config.additional_config[KEY]
        specs: Sequence[dict[str, Any]] = fields["proposers"]
        return cls(tuple(ProposerSpec(**spec) for spec in specs), fields["progress_pipe"])


def to_extra_args(params: SpecDecodeParams) -> dict[str, Any]:
    """A request's choice, for `SamplingParams.extra_args`."""
    chosen = params.method
    fields = [chosen.proposer, chosen.num_speculative_tokens, params.pinned, params.generation]
    return {KEY: [*fields, list(params.prediction)]}


def from_extra_args(sampling_params: Any) -> SpecDecodeParams:
    """Reads it back; plain decoding for a request that is not the gateway's (a warm-up)."""
    fields = (sampling_params.extra_args or {}).get(KEY) if sampling_params else None
    if fields is None:
        return SpecDecodeParams()
    proposer, k, pinned, generation, prediction = fields
    return SpecDecodeParams(SpecMethod(proposer, k), pinned, generation, tuple(prediction))
