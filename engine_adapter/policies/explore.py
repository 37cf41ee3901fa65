"""How evidence stays fresh: shadows of lookup proposers, and probes of the others.

A *shadow* is a lookup proposer that drafts for a row beside the row's own proposer. Its draft is
compared with the tokens that the target writes anyway, so it costs its own microseconds only.
A *probe* is one row that another proposer drafts for in one step; the target verifies its draft
like any other. Both have a budget, a share of the engine's time. Only a proposer that has never
drafted is probed without one, until it has `PROVEN_DRAFTS`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from engine_adapter.policies.contract import RowView
from engine_adapter.policies.evidence import Evidence

STALE_STEPS = 64
"""Steps after which the evidence on a proposer that is not in use is worth a probe."""

MAX_SAVED_S = 0.25
"""The most seconds that a budget saves up."""

LEARNING_INTERVAL = 2
"""Steps between two probes of proposers that have never drafted."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One row that a proposer drafts for, to see how it does."""

    request_id: str
    proposer: int


class Explorer:
    """Spends the budgets.

    Args:
        evidence: what is known, and how old it is.
        share: of the engine's time, for probes; as much again for shadows.
    """

    def __init__(self, evidence: Evidence, share: float) -> None:
        self._evidence = evidence
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
        evidence = self._evidence
        self._turn += 1
        if not rows:
            return None
        due = [i for i in evidence.candidates() if i not in in_use]
        unproven = [i for i in due if not evidence.is_proven(i)]
        if unproven:
            if self._turn % LEARNING_INTERVAL:
                return None
            return self._probe_cheapest(rows, unproven[0], free=True)
        stale = [i for i in due if evidence.age(i) >= STALE_STEPS]
        if not stale:
            return None
        return self._probe_cheapest(rows, max(stale, key=evidence.age), free=False)

    def _probe_cheapest(
        self, rows: Sequence[RowView], proposer: int, *, free: bool
    ) -> Probe | None:
        """A probe of the row that lags least; `None` if the budget does not allow it."""
        evidence = self._evidence
        lag = evidence.outlook(rows, [proposer]).lag[:, 0]
        row = int(lag.argmin())
        k = evidence.traits(proposer).num_speculative_tokens
        cost = evidence.draft_times[proposer].seconds(1, k, k, float(lag[row]))
        if not free and cost > self._probe_s:
            return None
        self._probe_s = max(0.0, self._probe_s - cost)
        self.probes += 1
        return Probe(rows[row].request_id, proposer)

    def shadows(
        self, rows: Sequence[RowView], first: Mapping[str, int]
    ) -> dict[str, Sequence[str]]:
        """For each lookup proposer, the rows for which it drafts in the shadow.

        Args:
            rows: rows with room for drafts.
            first: request id -> the proposer that drafts first for it.
        """
        evidence = self._evidence
        planned: dict[str, Sequence[str]] = {}
        for proposer in evidence.candidates():
            traits = evidence.traits(proposer)
            if not traits.lookup:
                continue
            open_rows = [row.request_id for row in rows if first.get(row.request_id) != proposer]
            per_row = max(
                float(np.dot(evidence.draft_times[proposer].fit.weights[:2], (1, 1))), 1e-6
            )
            count = min(int(self._shadow_s / per_row), len(open_rows))
            if count:
                # One after the other, so that every row has its turn.
                start = self._turn % len(open_rows)
                planned[traits.name] = (open_rows * 2)[start : start + count]
                self._shadow_s -= count * per_row
        return planned
