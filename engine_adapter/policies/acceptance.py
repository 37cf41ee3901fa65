"""How many drafts the target accepts: by proposer, class of request and position, and per request.

For position i of a draft two things are counted: how often the proposer had a token there when it
was asked for one (`offers`), and how often the target accepted it after all before it (`hazards`,
strictly their complement). Means of accepted lengths would mix both, and would depend on the k
that was asked for; hazards do not. Every count decays with the steps in which it changes, so old
traffic is forgotten. A position without evidence has the value of the position before it.

A request may differ from its class, so it has two factors: its accepted tokens, and its drafts,
over those that its class predicts. Source: a synthesis of SpecDec++ (arXiv 2405.19715, hazards)
and TurboSpec (arXiv 2406.14066, decayed means).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_adapter.policies.contract import RequestClass

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

CLASS_DECAY = 0.99
"""Per step in which a proposer's drafts of the class are verified: half is forgotten in 69."""

ROW_DECAY = 0.95
"""The same for one request."""

CLASS_WEIGHT, ROW_WEIGHT = 4.0, 8.0
"""Trials that a prior counts as: the position before, or the class."""

REFRESH_STEPS = 4
"""Observed steps after which the ratios are computed again: they change slowly."""

PRIOR_ACCEPTED, PRIOR_OFFERED = 0.6, 0.5
"""Of a proposer that has no evidence yet."""

_LOW, _HIGH = 0.01, 0.99


class AcceptanceModel:
    """Counts of all proposers, and the factors of live requests.

    Args:
        num_proposers: J; `grow` adds to it.
        max_k: K, the longest draft.

    Attributes:
        drafts: observed drafts by proposer and class, not decayed, float64 [J, C].
    """

    def __init__(self, num_proposers: int, max_k: int) -> None:
        self._max_k = max_k
        shape = num_proposers, len(RequestClass), max_k
        # For each position: times that a token was asked for, offered, verified and accepted.
        self._asked, self._offered, self._verified, self._accepted = (
            np.zeros(shape) for _ in range(4)
        )
        self.drafts = np.zeros(shape[:2])
        self._offer = np.full(shape, PRIOR_OFFERED)
        self._hazard = np.full(shape, PRIOR_ACCEPTED)
        self._stale_steps = 0
        # Of each slot and proposer: accepted tokens and drafts with a token, seen and predicted.
        self._rows = np.zeros((0, num_proposers, 4))

    def grow(self, num_proposers: int, num_slots: int) -> None:
        """Makes room for more proposers, or for more live requests."""
        more = num_proposers - len(self.drafts)
        if more > 0:
            for name in ("_asked", "_offered", "_verified", "_accepted", "drafts"):
                setattr(self, name, _extended(getattr(self, name), more, 0.0))
            self._offer = _extended(self._offer, more, PRIOR_OFFERED)
            self._hazard = _extended(self._hazard, more, PRIOR_ACCEPTED)
        rows = np.zeros((max(num_slots, len(self._rows)), len(self.drafts), 4))
        rows[: len(self._rows), : self._rows.shape[1]] = self._rows
        self._rows = rows

    def forget_proposer(self, proposer: int) -> None:
        """Drops a proposer's counts: it was unloaded."""
        for counts in (self._asked, self._offered, self._verified, self._accepted, self.drafts):
            counts[proposer] = 0
        self._rows[:, proposer] = 0
        self._refresh()

    def start_row(self, slot: int) -> None:
        """A new request has the slot."""
        self._rows[slot] = 0

    def observe(
        self, slot: Ints, proposer: Ints, kind: Ints, asked: Ints, drafted: Ints, accepted: Ints
    ) -> None:
        """Takes N drafts that the target has read, or whose tokens it has written by itself.

        Args:
            slot: the requests' rows, [N].
            proposer, kind: proposers by index, and classes of request, [N].
            asked, drafted, accepted: the k asked for, and tokens, [N]; 0 drafted tokens are a
                proposer that found nothing.
        """
        # A row is compared with its class as it is now, also while nothing plans with it.
        self._freshen()
        position = np.arange(self._max_k)
        offered = position < drafted[:, None]
        # The first position without a token was asked for in vain.
        wanted = (position <= drafted[:, None]) & (position < asked[:, None])
        verified = offered & (position <= accepted[:, None])
        hit = position < accepted[:, None]
        self._observe_rows(slot, proposer, kind, (asked > 0) & (drafted > 0), verified, accepted)
        self._observe_class(proposer, kind, (wanted, offered, verified, hit))
        self._stale_steps += 1

    def _observe_rows(
        self,
        slot: Ints,
        proposer: Ints,
        kind: Ints,
        found: npt.NDArray[np.bool_],
        verified: npt.NDArray[np.bool_],
        accepted: Ints,
    ) -> None:
        predicted = (self._hazard[proposer, kind] * verified).sum(axis=1)
        seen = np.stack((accepted, predicted, found, self._offer[proposer, kind, 0]), axis=1)
        # A row may have two drafts of one proposer in a step: one that was verified, and a miss.
        self._rows[slot, proposer] *= ROW_DECAY
        np.add.at(self._rows, (slot, proposer), seen)

    def _observe_class(
        self, proposer: Ints, kind: Ints, seen: tuple[npt.NDArray[np.bool_], ...]
    ) -> None:
        changed = np.zeros_like(self.drafts)
        np.add.at(changed, (proposer, kind), 1)
        self.drafts += changed
        decay = np.where(changed > 0, CLASS_DECAY, 1.0)[:, :, None]
        for counts, values in zip(
            (self._asked, self._offered, self._verified, self._accepted), seen, strict=True
        ):
            counts *= decay
            np.add.at(counts, (proposer, kind), values)

    def _freshen(self) -> None:
        """Computes the ratios again if enough has been observed since."""
        if self._stale_steps >= REFRESH_STEPS:
            self._refresh()

    def _refresh(self) -> None:
        """Ratios of the counts; the prior of a class is all classes, then the position before."""
        self._stale_steps = 0
        for ratio, hits, trials, prior in (
            (self._offer, self._offered, self._asked, PRIOR_OFFERED),
            (self._hazard, self._accepted, self._verified, PRIOR_ACCEPTED),
        ):
            before = np.full((len(ratio), 1), prior)
            all_hits, all_trials = hits.sum(axis=1), trials.sum(axis=1)
            for i in range(self._max_k):
                pooled = (all_hits[:, i, None] + CLASS_WEIGHT * before) / (
                    all_trials[:, i, None] + CLASS_WEIGHT
                )
                ratio[:, :, i] = (hits[:, :, i] + CLASS_WEIGHT * pooled) / (
                    trials[:, :, i] + CLASS_WEIGHT
                )
                before = pooled

    def offers(self, slots: Ints, kinds: Ints, proposers: Ints) -> Floats:
        """The chance that a draft reaches each position, if it is accepted so far: [B, J, K]."""
        self._freshen()
        rows = self._rows[slots[:, None], proposers]
        factor = (rows[:, :, 2] + ROW_WEIGHT) / (rows[:, :, 3] + ROW_WEIGHT)
        offer = self._offer[proposers, kinds[:, None]]
        offer[:, :, 0] = np.clip(offer[:, :, 0] * factor, _LOW, 1.0)
        return np.multiply.accumulate(offer, axis=2)

    def survivals(self, slots: Ints, kinds: Ints, proposers: Ints) -> Floats:
        """The chance that the target accepts each position of a draft that has it: [B, J, K]."""
        self._freshen()
        rows = self._rows[slots[:, None], proposers]
        factor = (rows[:, :, 0] + ROW_WEIGHT) / (rows[:, :, 1] + ROW_WEIGHT)
        hazard = self._hazard[proposers, kinds[:, None]] * factor[:, :, None]
        return np.multiply.accumulate(np.clip(hazard, _LOW, _HIGH), axis=2)

    def summary(self, proposer: int, k: int) -> dict[str, Any]:
        """A proposer's drafts, offers and hazards by class, for people."""
        self._freshen()
        return {
            kind.name.lower(): {
                "drafts": int(self.drafts[proposer, kind]),
                "found": round(float(self._offer[proposer, kind, 0]), 3),
                "accepted_by_position": [
                    round(float(value), 3) for value in self._hazard[proposer, kind, :k]
                ],
            }
            for kind in RequestClass
            if self.drafts[proposer, kind]
        }

    def mean_rate(self, proposer: int, kind: int, k: int) -> float:
        """The share of accepted tokens among the k drafted, as the hazards predict it."""
        self._freshen()
        return float(np.multiply.accumulate(self._hazard[proposer, kind, :k]).mean())

    def export(self, proposer: int) -> list[Any]:
        """A proposer's counts, as `restore` takes them."""
        counts = (self._asked, self._offered, self._verified, self._accepted)
        return [
            [np.round(one[proposer], 4).tolist() for one in counts],
            self.drafts[proposer].tolist(),
        ]

    def restore(self, proposer: int, exported: Sequence[Any]) -> None:
        """Takes the counts of a process before. Does nothing if they have another shape."""
        counts, drafts = exported
        arrays = [np.array(one, np.float64) for one in counts]
        if len(arrays) == 4 and all(one.shape == self._asked.shape[1:] for one in arrays):
            for mine, given in zip(
                (self._asked, self._offered, self._verified, self._accepted), arrays, strict=True
            ):
                mine[proposer] = given
            self.drafts[proposer] = drafts
            self._refresh()


def _extended(array: Floats, more: int, value: float) -> Floats:
    return np.concatenate((array, np.full((more, *array.shape[1:]), value)))
