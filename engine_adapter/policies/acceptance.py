"""How many drafts the target accepts: by proposer, class of request, length and position.

Two things are counted of each proposer. `lengths`: how long the drafts are that it finds; a lookup
finds a long draft where it is sure, so the length tells how good the draft is. `hazards`: how often
the target accepts position i of a draft of length n, after all before it; statistics calls the
chance of the contrary a hazard. Means of accepted lengths would depend on the k that was asked for,
these figures do not. A proposer with a model drafts what it is asked for, so all its drafts have
the longest length. If it may end a draft early, where it is not sure, `ends` counts how often it
does so at a position that it was asked for, after all before it were accepted. A position that is
not drafted is not a rejection: the hazards count drafted positions only. Every count decays with
the steps in which it changes, so old traffic is forgotten.

What is not known yet is taken from what is near: a length's hazards from all lengths', a class's
from all classes', and a position's from the position before it.

A request may differ from its class, so it has its own lengths, and one factor: its accepted tokens
over those that its class predicts. Source: a synthesis of SpecDec++ (arXiv 2405.19715, hazards) and
TurboSpec (arXiv 2406.14066, decayed means); the lengths are our own.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_adapter.policies.contract import RequestClass

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

CLASS_DECAY = 0.98
"""Per step in which drafts of a proposer and class are observed: half is forgotten in 34."""

ROW_DECAY = 0.98
"""The same for one request."""

CLASS_WEIGHT, LENGTHS_WEIGHT, HITS_WEIGHT = 4.0, 8.0, 24.0
"""Trials that a prior counts as: the next wider counts, and, for a request, its class's lengths
and its class's hazards. The length of a draft says most of what is particular to a request."""

REFRESH_STEPS = 4
"""Observed steps after which the ratios are computed again: they change slowly."""

PRIOR_ACCEPTED, PRIOR_FOUND = 0.6, 0.5
"""Of a proposer that has no measurements yet."""

FADING = 0.97
"""Per draft: what is left of the weight of the prior of lengths. Counts decay, so a prior that did
not fade would always have its share: even 1 % for long drafts that never come would promise more
than a draft costs."""

SURPLUS_DECAY = 0.8
"""Per step in which drafts of a proposer are observed."""

_LOW, _HIGH = 0.01, 0.99


@dataclass(frozen=True, slots=True)
class DraftCases:
    """The kinds of drafts that can come: Q pairs of a proposer and a length.

    Attributes:
        proposer: index of the proposer, [Q].
        length: tokens of the draft, [Q].
    """

    proposer: Ints
    length: Ints


class AcceptanceModel:
    """Counts of all proposers, and what is particular to live requests.

    Args:
        num_proposers: J; `grow` adds to it.
        max_k: K, the longest draft.

    Attributes:
        drafts: observed drafts by proposer and class, not decayed, float64 [J, C].
        surplus: accepted tokens per draft beyond those that were predicted: a decayed sum, at
            least 0, float64 [J]. It is high where the traffic has changed in a proposer's favour.
            Source: Page's test for a change (CUSUM, 1954).
    """

    def __init__(self, num_proposers: int, max_k: int) -> None:
        self._max_k = max_k
        classes = len(RequestClass)
        # How often a draft of each length came, and each position's verified and accepted tokens.
        self._length_counts = np.zeros((num_proposers, classes, max_k + 1))
        self._verified = np.zeros((num_proposers, classes, max_k + 1, max_k))
        self._accepted = np.zeros_like(self._verified)
        # How often a model ended a draft before each position, after all before it were accepted.
        self._ends = np.zeros((num_proposers, classes, max_k))
        self.drafts = np.zeros((num_proposers, classes))
        self.surplus = np.zeros(num_proposers)
        self._stale_steps = 0
        # Of each slot and proposer: drafts by length, and accepted tokens, seen and predicted.
        self._row_length_counts = np.zeros((0, num_proposers, max_k + 1))
        self._row_hits = np.zeros((0, num_proposers, 2))
        self._refresh()

    @property
    def _counts(self) -> tuple[Floats, ...]:
        return self._length_counts, self._verified, self._accepted, self._ends, self.drafts

    def grow(self, num_proposers: int, num_slots: int) -> None:
        """Makes room for more proposers, or for more live requests."""
        num_new = num_proposers - len(self.drafts)
        if num_new > 0:
            self._length_counts, self._verified, self._accepted, self._ends, self.drafts = (
                np.concatenate((counts, np.zeros((num_new, *counts.shape[1:]))))
                for counts in self._counts
            )
            self.surplus = np.concatenate((self.surplus, np.zeros(num_new)))
            self._refresh()
        size = max(num_slots, len(self._row_hits)), num_proposers
        if size == self._row_hits.shape[:2]:
            return
        self._row_length_counts = _enlarged(self._row_length_counts, size)
        self._row_hits = _enlarged(self._row_hits, size)

    def forget_proposer(self, proposer: int) -> None:
        """Drops a proposer's counts: it was unloaded."""
        for counts in self._counts:
            counts[proposer] = 0
        self._row_length_counts[:, proposer] = 0
        self._row_hits[:, proposer] = 0
        self.surplus[proposer] = 0
        self._refresh()

    def start_row(self, slot: int) -> None:
        """A new request has the slot."""
        self._row_length_counts[slot] = 0
        self._row_hits[slot] = 0

    # -- observing -----------------------------------------------------------------------------

    def observe(
        self,
        slot: Ints,
        proposer: Ints,
        kind: Ints,
        length: Ints,
        verified: Ints,
        accepted: Ints,
        *,
        ended_early: npt.NDArray[np.bool_] | None = None,
    ) -> None:
        """Takes N drafts that the target has read, or whose tokens it has written by itself.

        Args:
            slot: the requests' rows, [N].
            proposer, kind: proposers by index, and classes of request, [N].
            length: tokens that were found, [N]; 0 where there was no draft.
            verified, accepted: tokens of each that were compared, and that agreed, [N].
            ended_early: whether all agreed, and the proposer drafted no more although it was asked
                for more, [N]; `None` if none did.
        """
        # A row is compared with its class as it is now, also while nothing plans with it.
        self._freshen()
        position = np.arange(self._max_k)
        is_verified = (position < verified[:, None]) & (position <= accepted[:, None])
        is_accepted = position < accepted[:, None]
        predicted = (self._hazard[proposer, kind, length] * is_verified).sum(axis=1)
        self._note_surplus(proposer, accepted - predicted)
        # A row may have two drafts of one proposer in a step: one that was verified, and a miss.
        self._row_length_counts[slot, proposer] *= ROW_DECAY
        self._row_hits[slot, proposer] *= ROW_DECAY
        np.add.at(self._row_length_counts, (slot, proposer, length), 1.0)
        np.add.at(self._row_hits, (slot, proposer), np.stack((accepted, predicted), axis=1))

        num_drafts = np.zeros_like(self.drafts)
        np.add.at(num_drafts, (proposer, kind), 1)
        self.drafts += num_drafts
        decay = np.where(num_drafts > 0, CLASS_DECAY, 1.0)
        self._length_counts *= decay[:, :, None]
        self._verified *= decay[:, :, None, None]
        self._accepted *= decay[:, :, None, None]
        self._ends *= decay[:, :, None]
        np.add.at(self._length_counts, (proposer, kind, length), 1.0)
        np.add.at(self._verified, (proposer, kind, length), is_verified)
        np.add.at(self._accepted, (proposer, kind, length), is_accepted)
        if ended_early is not None and ended_early.any():
            np.add.at(
                self._ends, (proposer[ended_early], kind[ended_early], verified[ended_early]), 1.0
            )
        self._stale_steps += 1

    def _note_surplus(self, proposer: Ints, excess: Floats) -> None:
        """Adds what was accepted beyond the prediction to each proposer's surplus."""
        count = np.bincount(proposer, minlength=len(self.surplus))
        mean = np.bincount(proposer, excess, len(self.surplus)) / np.maximum(count, 1)
        raised = np.maximum(SURPLUS_DECAY * self.surplus + mean, 0.0)
        self.surplus = np.where(count > 0, raised, self.surplus)

    def _freshen(self) -> None:
        """Computes the ratios again if enough has been observed since."""
        if self._stale_steps >= REFRESH_STEPS:
            self._refresh()

    def _refresh(self) -> None:
        """The ratios of the counts, each with the next wider ones as its prior."""
        self._stale_steps = 0
        prior = np.zeros(self._max_k + 1)
        prior[0], prior[-1] = 1 - PRIOR_FOUND, PRIOR_FOUND
        all_classes = self._length_counts.sum(axis=1, keepdims=True)
        length_prior = _share(all_classes, all_classes.sum(axis=2, keepdims=True), prior, 1.0)
        weight = (CLASS_WEIGHT * FADING**self.drafts)[:, :, None]
        total = self._length_counts.sum(axis=2, keepdims=True)
        self._length = _share(self._length_counts, total, length_prior, weight)

        by_class = self._accepted.sum(axis=2), self._verified.sum(axis=2)
        hits, trials = by_class[0].sum(axis=1), by_class[1].sum(axis=1)
        position_hazard = np.empty_like(hits)
        previous = np.full(len(hits), PRIOR_ACCEPTED)
        for i in range(self._max_k):
            previous = position_hazard[:, i] = _share(hits[:, i], trials[:, i], previous)
        self._any_length = _share(*by_class, position_hazard[:, None])
        length_hazard = _share(
            self._accepted.sum(axis=1), self._verified.sum(axis=1), position_hazard[:, None, :]
        )
        self._hazard = _share(self._accepted, self._verified, length_hazard[:, None])

        ends, drafted = (
            self._ends.sum(axis=1, keepdims=True),
            by_class[1].sum(axis=1, keepdims=True),
        )
        continue_prior = _share(drafted, drafted + ends, np.ones(1))
        self._p_reached = np.multiply.accumulate(
            _share(by_class[1], by_class[1] + self._ends, continue_prior), axis=2
        )

    # -- looking ahead -------------------------------------------------------------------------

    def p_length(self, slots: Ints, kinds: Ints, cases: DraftCases) -> Floats:
        """The chance of each case for each row: [B, Q]."""
        self._freshen()
        proposer = cases.proposer
        counts = self._row_length_counts[slots[:, None], proposer, cases.length]
        total = self._row_length_counts[slots].sum(axis=2)[:, proposer]
        prior = self._length[proposer, kinds[:, None], cases.length]
        return _share(counts, total, prior, LENGTHS_WEIGHT * FADING**total)

    def p_accepted(self, slots: Ints, kinds: Ints, cases: DraftCases) -> Floats:
        """The chance that the target accepts each case up to each position: [B, Q, K]."""
        self._freshen()
        hits = self._row_hits[slots[:, None], cases.proposer]
        factor = (hits[:, :, 0] + HITS_WEIGHT) / (hits[:, :, 1] + HITS_WEIGHT)
        hazard = self._hazard[cases.proposer, kinds[:, None], cases.length] * factor[:, :, None]
        return np.multiply.accumulate(np.clip(hazard, _LOW, _HIGH), axis=2)

    def p_reached(self, kinds: Ints, cases: DraftCases) -> Floats:
        """The chance that each case is drafted up to each position, as far as asked: [B, Q, K].

        It is 1 for a proposer that ends no draft early.
        """
        self._freshen()
        p_reached: Floats = self._p_reached[cases.proposer, kinds[:, None]]
        return p_reached

    def mean_rate(self, proposer: int, kind: int, k: int) -> float:
        """The share of accepted tokens among the k drafted, as the hazards predict it."""
        self._freshen()
        return float(np.multiply.accumulate(self._any_length[proposer, kind, :k]).mean())

    # -- for people, and for the next process ----------------------------------------------------

    def summary(self, proposer: int, k: int) -> dict[str, Any]:
        """A proposer's drafts, their lengths and hazards by class, for people."""
        self._freshen()
        return {
            kind.name.lower(): {
                "drafts": int(self.drafts[proposer, kind]),
                "found": round(1 - float(self._length[proposer, kind, 0]), 3),
                "accepted_by_position": [
                    round(float(value), 3) for value in self._any_length[proposer, kind, :k]
                ],
            }
            for kind in RequestClass
            if self.drafts[proposer, kind]
        }

    def export(self, proposer: int) -> list[Any]:
        """A proposer's counts, as `restore` takes them."""
        return [np.round(counts[proposer], 4).tolist() for counts in self._counts]

    def restore(self, proposer: int, exported: Sequence[Any]) -> None:
        """Takes the counts of a process before. Does nothing if they have another shape."""
        arrays = [np.array(counts, np.float64) for counts in exported]
        if [counts.shape for counts in arrays] == [counts.shape[1:] for counts in self._counts]:
            for counts, restored in zip(self._counts, arrays, strict=True):
                counts[proposer] = restored
            self._refresh()


def _share(
    hits: Floats, trials: Floats, prior: Floats, weight: float | Floats = CLASS_WEIGHT
) -> Floats:
    """Hits over trials, with a prior that counts as `weight` trials."""
    share: Floats = (hits + weight * prior) / (trials + weight)
    return share


def _enlarged(array: Floats, size: tuple[int, int]) -> Floats:
    enlarged = np.zeros((*size, array.shape[2]))
    enlarged[: array.shape[0], : array.shape[1]] = array
    return enlarged
