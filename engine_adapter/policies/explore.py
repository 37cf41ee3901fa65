"""How measurements stay fresh: shadows of lookup proposers, and probes of the others.

A *shadow* is a lookup proposer that drafts for a row beside the row's own proposer. Its draft is
compared with the tokens that the target writes anyway, so it costs its own microseconds only.
A *probe* is a row, or a few of a large batch, that another proposer drafts for in one step; the
target verifies its drafts like any other. Both have a budget, a share of the engine's time. If far
more of a probe is accepted than was predicted, the next ones follow at once, on credit, until the
prediction is right. Only a proposer that has never drafted is probed without a budget, until it has
`PROVEN_DRAFTS`; the budget then owes what that took, up to `MAX_SAVED_S`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine_adapter.policies.contract import RowView
from engine_adapter.policies.measurements import Measurements
from engine_adapter.seam.types import SpecMethod

STALE_STEPS = 64
"""Steps after which the measurements of a proposer that is not in use are worth a probe."""

MAX_SAVED_S = 0.25
"""The most seconds that a budget saves up, and that it may owe."""

PROBED_ROWS = 4
"""The most rows of one probe."""

LEARNING_INTERVAL = 2
"""Steps between two probes of a proposer that has never drafted, or has become better."""


@dataclass(frozen=True, slots=True)
class Probe:
    """A few rows that a proposer drafts for, to see how it does.

    Attributes:
        proposer: its index.
        lengths: request id -> tokens to draft.
    """

    proposer: int
    lengths: Mapping[str, int]


class Explorer:
    """Spends the budgets.

    Args:
        measurements: what is known, and how old it is.
        share: of the engine's time, for probes; as much again for shadows.
    """

    def __init__(self, measurements: Measurements, share: float) -> None:
        self._measurements = measurements
        self._share = share
        self._probe_s = 0.0
        self._shadow_s = 0.0
        self._turn = 0
        self.probes = 0

    def earn(self, seconds: float) -> None:
        """A step took this long: the budgets grow by their share of it."""
        self._probe_s = min(self._probe_s + self._share * seconds, MAX_SAVED_S)
        self._shadow_s = min(self._shadow_s + self._share * seconds, MAX_SAVED_S)

    def probe(self, rows: Sequence[RowView], in_use: frozenset[int]) -> Probe | None:
        """The probe of this step, if one is due and affordable.

        Args:
            rows: rows with room for drafts.
            in_use: proposers that draft in this step anyway.
        """
        measurements = self._measurements
        self._turn += 1
        if not rows:
            return None
        unused = [i for i in measurements.candidates() if i not in in_use]
        unproven = [i for i in unused if not measurements.is_proven(i)]
        # The measurements of a lookup do not wait for probes: it drafts in the shadow.
        outdated = [
            i for i in unused if measurements.is_outdated(i) and not measurements.traits(i).lookup
        ]
        if unproven or outdated:
            if self._turn % LEARNING_INTERVAL:
                return None
            if unproven:
                return self._probe_cheapest(rows, unproven[0], allowed_s=math.inf)
            return self._probe_cheapest(rows, outdated[0], allowed_s=self._probe_s + MAX_SAVED_S)
        stale = [i for i in unused if measurements.age(i) >= STALE_STEPS]
        if not stale:
            return None
        oldest = max(stale, key=measurements.age)
        return self._probe_cheapest(rows, oldest, allowed_s=self._probe_s)

    def _probe_cheapest(
        self, rows: Sequence[RowView], proposer: int, *, allowed_s: float
    ) -> Probe | None:
        """A probe of the rows that lag least; `None` if it takes more than `allowed_s`."""
        measurements = self._measurements
        k = measurements.traits(proposer).num_speculative_tokens
        times = measurements.draft_times[proposer]
        if times.seconds(1, k, k, 0) > allowed_s:
            return None
        lag = measurements.lags(rows, proposer)
        # A model's passes cost the same for a few rows as for one.
        probed_rows = lag.argsort(kind="stable")[: max(1, min(PROBED_ROWS, len(rows) // 4))]
        lengths = {rows[i].request_id: min(k, rows[i].limit) for i in probed_rows}
        count = len(lengths)
        cost = times.seconds(count, k, count * k, float(lag[probed_rows].sum()))
        if cost > allowed_s:
            return None
        self._probe_s = max(-MAX_SAVED_S, self._probe_s - cost)
        self.probes += 1
        return Probe(proposer, lengths)

    def shadows(
        self, rows: Sequence[RowView], drafts: Mapping[str, SpecMethod]
    ) -> dict[str, Sequence[str]]:
        """For each lookup proposer, the rows for which it drafts in the shadow.

        Args:
            rows: rows with room for drafts.
            drafts: request id -> what drafts first for it.
        """
        measurements = self._measurements
        planned: dict[str, Sequence[str]] = {}
        for proposer in measurements.candidates():
            traits = measurements.traits(proposer)
            if not traits.lookup:
                continue
            weights = measurements.draft_times[proposer].fit.weights
            count = int(self._shadow_s / max(float(weights[0] + weights[1]), 1e-6))
            if not count:
                continue
            # One after the other, so that every row has its turn.
            candidates = (
                rows[(self._turn + i) % len(rows)].request_id for i in range(min(count, len(rows)))
            )
            request_ids = [
                r for r in candidates if r not in drafts or drafts[r].proposer != traits.name
            ]
            if request_ids:
                planned[traits.name] = request_ids
                self._shadow_s -= float(weights[0] + weights[1] * len(request_ids))
        return planned
