"""Counting drafts: mutable while a step runs, frozen at the seam."""

from engine_adapter.counts import ProposerCounts, SpecStats
from engine_adapter.types import NONE


class Tally:
    """Adds up what one proposer did."""

    def __init__(self) -> None:
        """Starts at zero."""
        self._drafts = self._drafted = self._accepted = self._emitted = 0
        self._per_position: list[int] = []

    def add(self, drafted: int, accepted: int, emitted: int) -> None:
        """Counts one row of one step; `drafted` is 0 for a row without drafts."""
        self._drafts += drafted > 0
        self._drafted += drafted
        self._accepted += accepted
        self._emitted += emitted
        self._per_position += [0] * (drafted - len(self._per_position))
        for i in range(accepted):
            self._per_position[i] += 1

    def counts(self) -> ProposerCounts:
        """The sums so far."""
        return ProposerCounts(
            self._drafts,
            self._drafted,
            self._accepted,
            tuple(self._per_position),
            self._emitted,
        )


class Tallies:
    """A tally per proposer; `none` is one of them."""

    def __init__(self) -> None:
        """Starts empty."""
        self._by_proposer: dict[str, Tally] = {}

    def add(self, proposer: str, drafted: int, accepted: int, emitted: int) -> None:
        """Counts one row of one step."""
        self._by_proposer.setdefault(proposer, Tally()).add(drafted, accepted, emitted)

    def counts(self) -> dict[str, ProposerCounts]:
        """The sums so far by proposer."""
        return {name: tally.counts() for name, tally in self._by_proposer.items()}


class SpecTally:
    """A request's speculation, the step that ends its prefill left out."""

    def __init__(self) -> None:
        """Starts at zero."""
        self._steps = self._tokens = 0
        self._tallies = Tallies()

    def add(self, proposer: str, drafted: int, accepted: int, emitted: int) -> None:
        """Counts one decode step."""
        self._steps += 1
        self._tokens += emitted
        if proposer != NONE:
            self._tallies.add(proposer, drafted, accepted, emitted)

    def stats(self) -> SpecStats:
        """The sums so far."""
        return SpecStats(self._steps, self._tokens, self._tallies.counts())
