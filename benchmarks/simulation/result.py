"""The steps of a simulation, and the figures that are computed from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np

from engine_adapter.seam.types import NONE

SETTLED_STEPS = 64
"""Steps over which the speed after a change is averaged."""


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    Attributes:
        end_s: the simulated time at its end.
        phase: the phase of the requests that begin, an index.
        rows, emitted: rows, and tokens that they emitted.
        target_s, draft_s, probe_s: time of the target, of all proposers, and of probes among them.
        method: the proposer that was planned for most rows.
        prefill: whether a prompt was read.
        suspended: whether a guard holds its policy at plain decoding.
    """

    end_s: float
    phase: int
    rows: int
    emitted: int
    target_s: float
    draft_s: float
    probe_s: float
    method: str
    prefill: bool
    suspended: bool


@dataclass(slots=True)
class Result:
    """A replay.

    Attributes:
        phases: their names.
        starts: for each phase that has begun, the number of its first step.
        latencies_s: of each request, from its arrival to its end.
        suspensions: how often guards suspended policies.
    """

    phases: tuple[str, ...]
    steps: list[Step] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    suspensions: int = 0

    @property
    def tokens(self) -> int:
        """All emitted tokens."""
        return sum(step.emitted for step in self.steps)

    @property
    def busy_s(self) -> float:
        """The time of all steps, without pauses in which no request ran."""
        return sum(step.target_s + step.draft_s for step in self.steps)

    @property
    def tokens_per_s(self) -> float:
        """All emitted tokens over the time of all steps."""
        return self.tokens / self.busy_s if self.steps else 0.0

    @property
    def mean_latency_s(self) -> float:
        """Of all requests."""
        return sum(self.latencies_s) / max(len(self.latencies_s), 1)

    @property
    def probe_share(self) -> float:
        """The share of the time that probes took."""
        return sum(step.probe_s for step in self.steps) / self.busy_s if self.steps else 0.0

    @property
    def switches_per_1000(self) -> float:
        """Changes of the main proposer per 1,000 steps; see `switches`."""
        return 1000 * switches([step.method for step in self.steps]) / max(len(self.steps), 1)

    def span(self, phase: int) -> Sequence[Step]:
        """The steps from the beginning of a phase to the beginning of the next one."""
        ends = [*self.starts[1:], len(self.steps)]
        return self.steps[self.starts[phase] : ends[phase]]

    def phase_rate(self, phase: int, skip: int = 0) -> float:
        """Tokens per second of a phase's steps after the first `skip`."""
        return rate(self.span(phase)[skip:])

    def steps_to_reach(self, phase: int, tokens_per_s: float) -> int | None:
        """Steps of a phase before the first `SETTLED_STEPS` whose mean speed is this high.

        `None` if there are none. At the end of the phase fewer steps may count.
        """
        span = self.span(phase)
        for start in range(max(len(span) - SETTLED_STEPS // 2, 1)):
            if rate(span[start : start + SETTLED_STEPS]) >= tokens_per_s:
                return start
        return None

    def shares(self) -> dict[str, float]:
        """The share of the steps in which each proposer had most rows."""
        names, counts = np.unique([step.method for step in self.steps], return_counts=True)
        return {str(n): float(c) / len(self.steps) for n, c in zip(names, counts, strict=True)}


def rate(steps: Sequence[Step]) -> float:
    """Tokens per second."""
    seconds = sum(step.target_s + step.draft_s for step in steps)
    return sum(step.emitted for step in steps) / seconds if seconds else 0.0


def switches(methods: Sequence[str]) -> int:
    """How often the main proposer changes.

    Leaving the main proposer for one step is not a change: it is a probe, or the plain step that
    refreshes the time of plain decoding.
    """
    smooth = list(methods)
    for i in range(1, len(smooth) - 1):
        if smooth[i - 1] == smooth[i + 1]:
            smooth[i] = smooth[i - 1]
    return sum(name != next_name for name, next_name in pairwise(smooth))


def main_method(proposers: Sequence[str]) -> str:
    """The proposer of most rows, `NONE` included; of equals the first by name."""
    counts: dict[str, int] = {}
    for name in proposers:
        counts[name] = counts.get(name, 0) + 1
    return min(counts, key=lambda name: (-counts[name], name)) if counts else NONE
