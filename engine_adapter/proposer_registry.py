"""The proposers as the gateway's process knows them, and what may be loaded and unloaded."""

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from engine_adapter.counts import StepReport
from engine_adapter.errors import EngineConfigError, ProposerRefused
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.draft_model import TENSOR_PARALLEL_SIZE
from engine_adapter.proposers.methods import get_method, parse_spec
from engine_adapter.types import ProposerInfo, ProposerState

_LATENCY_WINDOW = 256

MemoryByRank = Sequence[Mapping[str, tuple[int, int]]]
"""For each rank: proposer -> bytes of weights and of KV."""


class ProposerRegistry:
    """Every proposer that is loaded, or on its way.

    Attributes:
        specs: those that are loaded; a new engine process starts with them.
        loading: the one that is on its way.
        infos: the loaded ones, without their latency.
    """

    def __init__(self, specs: Sequence[ProposerSpec]) -> None:
        self.specs = tuple(specs)
        self.loading: ProposerSpec | None = None
        self.infos: tuple[ProposerInfo, ...] = ()
        # Name -> (seconds, tokens) of the last steps in which the proposer drafted.
        self._latency: dict[str, deque[tuple[float, int]]] = defaultdict(
            lambda: deque(maxlen=_LATENCY_WINDOW)
        )

    def on_engine_started(self, held: MemoryByRank) -> None:
        """A new process has loaded all of `specs`; whoever was quarantined begins anew."""
        self._latency.clear()
        self.infos = tuple(_info(spec, held) for spec in self.specs)

    # -- loading and unloading, one at a time ------------------------------------------------

    def check_load(self, fields: Mapping[str, Any], capacity: int) -> ProposerSpec:
        """The spec of a proposer that may be loaded now.

        Args:
            fields: its JSON object.
            capacity: the draft capacity, which no k may exceed.

        Raises:
            EngineConfigError: a field cannot work.
            ProposerRefused: not as things are.
        """
        self._refuse_two()
        spec = parse_spec(fields, self.specs)
        if spec.name in (known.name for known in self.specs):
            raise ProposerRefused("proposer_exists", f"There is a proposer {spec.name!r} already.")
        if spec.num_speculative_tokens > capacity:
            raise EngineConfigError(
                "proposer",
                f"num_speculative_tokens: {spec.num_speculative_tokens} is above {capacity}, the "
                "engine's capacity; --max-speculative-tokens raises it at the next start",
                "num_speculative_tokens",
            )
        if get_method(spec.method).capabilities.draft_kv:
            raise ProposerRefused(
                "needs_restart",
                f"{spec.method} keeps KV of its own, which is reserved when the engine starts: "
                f"give {spec.name!r} to --proposer and restart the server.",
            )
        return spec

    def check_unload(self, name: str) -> None:
        """Raises `ProposerRefused` unless the proposer may be unloaded now."""
        self._refuse_two()
        known = {spec.name: spec for spec in self.specs}
        if name not in known:
            raise ProposerRefused("proposer_not_found", f"There is no proposer {name!r}.")
        if get_method(known[name].method).capabilities.draft_kv:
            raise ProposerRefused(
                "needs_restart",
                f"{known[name].method} keeps KV of its own, which stays reserved while the engine "
                f"runs: leave {name!r} out of --proposer and restart the server.",
            )
        for spec in self.specs:
            if name in spec.options.get("members", ()):
                raise ProposerRefused(
                    "proposer_in_use", f"{name!r} is a member of {spec.name!r}; unload that first."
                )

    def _refuse_two(self) -> None:
        if self.loading is not None:
            raise ProposerRefused(
                "load_in_progress", f"{self.loading.name!r} is being loaded; try again later."
            )

    def add(self, spec: ProposerSpec, held: MemoryByRank) -> ProposerInfo:
        """A proposer was loaded."""
        info = _info(spec, held)
        self.specs += (spec,)
        self.infos += (info,)
        return info

    def remove(self, name: str) -> None:
        """A proposer is loaded no longer."""
        self.specs = tuple(spec for spec in self.specs if spec.name != name)
        self.infos = tuple(info for info in self.infos if info.name != name)
        self._latency.pop(name, None)

    # -- figures -----------------------------------------------------------------------------

    def record_step(self, report: StepReport) -> None:
        """Updates latencies and states from a step's report."""
        for name, seconds in report.draft_seconds.items():
            self._latency[name].append((seconds, report.drafted.get(name, 0)))
        for name in report.quarantined:
            self.infos = tuple(
                replace(info, state=ProposerState.QUARANTINED, last_error=report.faults[name])
                if info.name == name
                else info
                for info in self.infos
            )

    def snapshot(self) -> tuple[ProposerInfo, ...]:
        """Every proposer with its latency, the one that is on its way last."""
        loaded = (
            replace(info, draft_latency_ms=self._latency_ms(info.name)) for info in self.infos
        )
        coming = (
            ()
            if self.loading is None
            else (replace(_info(self.loading), state=ProposerState.LOADING),)
        )
        return (*loaded, *coming)

    def _latency_ms(self, name: str) -> float | None:
        steps = self._latency.get(name, ())
        tokens = sum(count for _, count in steps)
        return 1e3 * sum(seconds for seconds, _ in steps) / tokens if tokens else None


def _info(spec: ProposerSpec, held: MemoryByRank = ()) -> ProposerInfo:
    of_ranks = [rank[spec.name] for rank in held if spec.name in rank]
    return ProposerInfo(
        name=spec.name,
        method=spec.method,
        model=spec.model,
        num_speculative_tokens=spec.num_speculative_tokens,
        tensor_parallel_size=spec.options.get(TENSOR_PARALLEL_SIZE) or len(of_ranks) or 1,
        weights_bytes=sum(weights for weights, _ in of_ranks),
        kv_bytes=sum(kv for _, kv in of_ranks),
    )
