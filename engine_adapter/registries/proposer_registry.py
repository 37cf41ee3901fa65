"""The proposers of an engine: which are loaded, and which may be loaded or unloaded."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_model import TENSOR_PARALLEL_SIZE
from engine_adapter.proposers.methods import get_method, parse_spec, to_fields
from engine_adapter.seam.counts import StepReport
from engine_adapter.seam.errors import EngineConfigError, ProposerRefused
from engine_adapter.seam.types import ProposerInfo, ProposerState

_LATENCY_WINDOW = 256

MemoryByRank = Sequence[Mapping[str, tuple[int, int]]]
"""For each rank: proposer -> (bytes of weights, bytes of KV)."""


class ProposerRegistry:
    """The proposers that are loaded, and one that is being loaded.

    Args:
        specs: the proposers at start.
        capacity: the draft capacity, the upper limit of every k.

    Attributes:
        specs: the loaded proposers; a new engine process starts with them.
        loading: the proposer that is being loaded.
        infos: the loaded proposers, without their latency.
    """

    def __init__(self, specs: Sequence[ProposerSpec], capacity: int) -> None:
        self._capacity = capacity
        self.specs = tuple(specs)
        self.loading: ProposerSpec | None = None
        self.infos: tuple[ProposerInfo, ...] = ()
        # Name -> (seconds, tokens) of the last steps in which the proposer drafted.
        self._latency: dict[str, deque[tuple[float, int]]] = defaultdict(
            lambda: deque(maxlen=_LATENCY_WINDOW)
        )

    def on_engine_started(self, memory: MemoryByRank) -> None:
        """A new process has loaded all of `specs`; none of them is quarantined in it."""
        self._latency.clear()
        self.infos = tuple(_info(spec, memory) for spec in self.specs)

    # -- loading and unloading, one at a time ------------------------------------------------

    def check_load(self, fields: Mapping[str, Any]) -> ProposerSpec:
        """The spec of a proposer that may be loaded now.

        Args:
            fields: the proposer's JSON object.

        Raises:
            EngineConfigError: a field cannot work.
            ProposerRefused: it cannot be loaded in the current state.
        """
        self._check_not_loading()
        spec = parse_spec(fields, self.specs)
        if spec.name in (loaded.name for loaded in self.specs):
            raise ProposerRefused("proposer_exists", f"A proposer {spec.name!r} is loaded already.")
        if spec.num_speculative_tokens > self._capacity:
            raise EngineConfigError(
                "proposer",
                f"num_speculative_tokens: {spec.num_speculative_tokens} is above the engine's "
                f"draft capacity, {self._capacity}; set fewer, or restart the server with a larger "
                "--max-speculative-tokens",
                "num_speculative_tokens",
            )
        if get_method(spec.method).capabilities.draft_kv:
            raise ProposerRefused(
                "needs_restart",
                f"{spec.method} keeps its own KV, which is reserved when the engine starts: "
                f"add {spec.name!r} with --proposer and restart the server.",
            )
        return spec

    def check_unload(self, name: str) -> None:
        """Raises `ProposerRefused` unless the proposer may be unloaded now."""
        self._check_not_loading()
        loaded = {spec.name: spec for spec in self.specs}
        if name not in loaded:
            raise ProposerRefused("proposer_not_found", f"No proposer {name!r} is loaded.")
        if get_method(loaded[name].method).capabilities.draft_kv:
            raise ProposerRefused(
                "needs_restart",
                f"{loaded[name].method} keeps its own KV, which stays reserved while the engine "
                f"runs: remove {name!r} from --proposer and restart the server.",
            )
        for spec in self.specs:
            if name in spec.options.get("members", ()):
                raise ProposerRefused(
                    "proposer_in_use",
                    f"{name!r} is a member of {spec.name!r}; unload {spec.name!r} first.",
                )

    def _check_not_loading(self) -> None:
        if self.loading is not None:
            raise ProposerRefused(
                "load_in_progress", f"{self.loading.name!r} is being loaded; try again later."
            )

    def add(self, spec: ProposerSpec, memory: MemoryByRank) -> ProposerInfo:
        """Registers a proposer that was loaded."""
        info = _info(spec, memory)
        self.specs += (spec,)
        self.infos += (info,)
        return info

    def remove(self, name: str) -> None:
        """Removes a proposer and its latency."""
        self.specs = tuple(spec for spec in self.specs if spec.name != name)
        self.infos = tuple(info for info in self.infos if info.name != name)
        self._latency.pop(name, None)

    # -- figures -----------------------------------------------------------------------------

    def record_step(self, report: StepReport) -> None:
        """Updates latencies and states from a step's report."""
        for name, seconds in report.draft_seconds.items():
            self._latency[name].append((seconds, report.proposed_tokens.get(name, 0)))
        for name in report.quarantined:
            self.infos = tuple(
                replace(info, state=ProposerState.QUARANTINED, last_error=report.faults[name])
                if info.name == name
                else info
                for info in self.infos
            )

    def snapshot(self) -> tuple[ProposerInfo, ...]:
        """The proposers with their latency; the one that is being loaded comes last."""
        loaded = (
            replace(info, draft_latency_ms=self._latency_ms(info.name)) for info in self.infos
        )
        if self.loading is None:
            return tuple(loaded)
        return (*loaded, replace(_info(self.loading), state=ProposerState.LOADING))

    def _latency_ms(self, name: str) -> float | None:
        steps = self._latency.get(name, ())
        tokens = sum(count for _, count in steps)
        return 1e3 * sum(seconds for seconds, _ in steps) / tokens if tokens else None


def _info(spec: ProposerSpec, memory: MemoryByRank = ()) -> ProposerInfo:
    by_rank = [rank[spec.name] for rank in memory if spec.name in rank]
    return ProposerInfo(
        name=spec.name,
        method=spec.method,
        model=spec.model,
        num_speculative_tokens=spec.num_speculative_tokens,
        tensor_parallel_size=spec.options.get(TENSOR_PARALLEL_SIZE) or len(by_rank) or 1,
        weights_bytes=sum(weights for weights, _ in by_rank),
        kv_bytes=sum(kv for _, kv in by_rank),
        settings=to_fields(spec),
        can_unload=not get_method(spec.method).capabilities.draft_kv,
    )
