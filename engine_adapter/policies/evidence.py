"""What the policies know: the loaded proposers, what is accepted, what costs how much, who lags.

One object for all policies, fed by every step, whatever chose its drafts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_adapter.policies.acceptance import AcceptanceModel, Floats, Ints
from engine_adapter.policies.contract import RequestClass, RowView
from engine_adapter.policies.proposers import DraftTime, ProposerTraits
from engine_adapter.policies.timing import DraftTimeModel, StepTimeModel
from engine_adapter.types import SpecMethod

PROVEN_DRAFTS = 12
"""Drafts after which a proposer's evidence counts; until then it is only probed."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What can be expected of J proposers for the B rows of a step.

    Attributes:
        proposers: their indices, [J].
        offer: the chance that a draft reaches each position, if accepted so far, [B, J, K].
        survival: the chance that the target accepts a draft up to each position, [B, J, K]; 0
            beyond a row's or a proposer's limit.
        lag: tokens that each has not read of each row, [B, J].
        limit: the most tokens of each row, [B].
    """

    proposers: Ints
    offer: Floats
    survival: Floats
    lag: Floats
    limit: Ints


class Evidence:
    """All measurements, and the live requests that they belong to.

    Args:
        proposers: the loaded proposers.
        max_k: K, the draft capacity.

    Attributes:
        step_time: the target's part of a step.
        draft_times: each proposer's part, by index.
        unavailable: names of proposers that must not be chosen now: quarantined ones.
        steps: steps observed.
    """

    def __init__(self, proposers: Sequence[ProposerTraits], max_k: int) -> None:
        self._max_k = max_k
        self._traits: list[ProposerTraits | None] = []
        self._index: dict[str, int] = {}
        self.acceptance = AcceptanceModel(0, max_k)
        self.step_time = StepTimeModel()
        self.draft_times: list[DraftTimeModel] = []
        self.unavailable: frozenset[str] = frozenset()
        self.steps = 0
        self._slots: dict[str, int] = {}
        self._free: list[int] = []
        self._read_upto = np.zeros((0, 0))
        self._kinds = np.zeros(0, np.intp)
        self._lengths = np.zeros(0, np.intp)
        self._last_seen: list[int] = []
        self._proven: set[int] = set()
        self._planned_lag = np.zeros(0)
        for traits in proposers:
            self.add_proposer(traits)

    # -- proposers ---------------------------------------------------------------------------

    def add_proposer(self, traits: ProposerTraits) -> None:
        """A proposer was loaded. One of the same name has the place of the old one."""
        index = self._index.get(traits.name, len(self._traits))
        if index == len(self._traits):
            self._traits.append(None)
            self.draft_times.append(DraftTimeModel())
            self._last_seen.append(0)
            self._planned_lag = np.append(self._planned_lag, 0.0)
            self.acceptance.grow(len(self._traits), len(self._kinds))
            self._read_upto = _grown(self._read_upto, len(self._kinds), len(self._traits))
        self._traits[index] = traits
        self._index[traits.name] = index

    def remove_proposer(self, name: str) -> None:
        """A proposer was unloaded: it is not chosen, and its counts are dropped."""
        index = self._index.get(name)
        if index is not None:
            self._traits[index] = None
            self._proven.discard(index)
            self.acceptance.forget_proposer(index)
            self.draft_times[index] = DraftTimeModel()
            self._read_upto[:, index] = 0

    @property
    def loaded(self) -> Mapping[str, int]:
        """Name -> index of the proposers that are loaded."""
        return {t.name: i for i, t in enumerate(self._traits) if t is not None}

    def traits(self, proposer: int) -> ProposerTraits:
        """The proposer with this index; it must be loaded."""
        traits = self._traits[proposer]
        assert traits is not None
        return traits

    def candidates(self) -> list[int]:
        """The proposers that policies may choose now, by index."""
        return [
            i
            for i, traits in enumerate(self._traits)
            if traits is not None and traits.selectable and traits.name not in self.unavailable
        ]

    def is_proven(self, proposer: int) -> bool:
        """Whether it has drafted often enough for its evidence to count."""
        return proposer in self._proven

    def age(self, proposer: int) -> int:
        """Steps since the last draft of this proposer was observed."""
        return self.steps - self._last_seen[proposer]

    # -- requests ----------------------------------------------------------------------------

    def admit(self, request_id: str, request_class: RequestClass) -> None:
        """A request begins."""
        if not self._free:
            size = len(self._kinds)
            more = max(16, size)
            self._free = list(range(size + more - 1, size - 1, -1))
            self._kinds = np.concatenate((self._kinds, np.zeros(more, np.intp)))
            self._lengths = np.concatenate((self._lengths, np.zeros(more, np.intp)))
            self._read_upto = _grown(self._read_upto, size + more, len(self._traits))
            self.acceptance.grow(len(self._traits), size + more)
        slot = self._slots[request_id] = self._free.pop()
        self._kinds[slot] = request_class
        self._read_upto[slot] = 0
        self.acceptance.start_row(slot)

    def free(self, request_id: str) -> None:
        """A request ended."""
        slot = self._slots.pop(request_id, None)
        if slot is not None:
            self._free.append(slot)

    def note_lengths(self, rows: Sequence[RowView]) -> None:
        """Notes the tokens of each row of a step."""
        self._lengths[self._slots_of(rows)] = [row.num_tokens for row in rows]

    def mark_read(self, drafts: Iterable[tuple[str, SpecMethod]]) -> None:
        """Proposers read their rows up to the end, as it was at `note_lengths`."""
        index, slots = self._index, self._slots
        pairs = [(slots[r], index[m.proposer]) for r, m in drafts if m.proposer in index]
        if pairs:
            slot, proposer = np.array(pairs, np.intp).T
            lag = self._lengths[slot] - self._read_upto[slot, proposer]
            np.add.at(self._planned_lag, proposer, lag)
            self._read_upto[slot, proposer] = self._lengths[slot]

    def lags(self, rows: Sequence[RowView], proposer: int) -> Floats:
        """The tokens of each row that the proposer has not read, [R]."""
        slots = self._slots_of(rows)
        if not self.traits(proposer).keeps_kv:
            return np.zeros(len(rows))
        lags: Floats = np.array([row.num_tokens for row in rows]) - self._read_upto[slots, proposer]
        return lags

    def _slots_of(self, rows: Sequence[RowView]) -> Ints:
        slots = self._slots
        return np.array([slots[row.request_id] for row in rows], np.intp)

    def forget_reads(self, request_id: str) -> None:
        """No proposer has read the row any more: it was preempted, and its KV is gone."""
        self._read_upto[self._slots[request_id]] = 0

    # -- observing a step --------------------------------------------------------------------

    def observe_drafts(self, seen: Iterable[tuple[str, str, int, int, int]]) -> None:
        """Takes the drafts whose fate this step decided.

        Args:
            seen: request id, proposer, k asked for, tokens drafted, tokens accepted; ended
                requests and unloaded proposers are ignored.
        """
        slots, index, drafts = self._slots, self._index, []
        for request_id, name, asked, drafted, accepted in seen:
            slot, proposer = slots.get(request_id), index.get(name)
            if slot is not None and proposer is not None and self._traits[proposer] is not None:
                drafts.append((slot, proposer, asked, drafted, accepted))
        if not drafts:
            return
        slot_, proposer_, asked_, drafted_, accepted_ = np.array(drafts, np.intp).T
        kind = self._kinds[slot_]
        self.acceptance.observe(slot_, proposer_, kind, asked_, drafted_, accepted_)
        for proposer in set(proposer_.tolist()):
            self._last_seen[proposer] = self.steps
            if proposer not in self._proven:
                total = float(self.acceptance.drafts[proposer].sum())
                if total >= PROVEN_DRAFTS:
                    self._proven.add(proposer)

    def observe_work(self, work: Iterable[tuple[str, DraftTime]]) -> None:
        """Takes the calls of proposers in a step.

        The tokens that a proposer with KV had to read are those that it lacked when the step was
        planned: a prompt that the target reads in the same step is among them.
        """
        for name, one in work:
            proposer = self._index.get(name)
            if proposer is not None:
                traits = self._traits[proposer]
                reads = traits is not None and traits.keeps_kv
                lag = int(self._planned_lag[proposer]) if reads else 0
                self.draft_times[proposer].add(one.rows, one.longest, one.tokens, lag, one.seconds)
        self._planned_lag[:] = 0

    def observe_step(self, rows: int, tokens: int, context: float, seconds: float) -> float:
        """Takes the target's part of a step without prefill; returns the prediction for it."""
        self.steps += 1
        return self.step_time.add(rows, tokens, context, seconds)

    # -- looking ahead -----------------------------------------------------------------------

    def outlook(self, rows: Sequence[RowView], proposers: Sequence[int]) -> Outlook:
        """What can be expected of these proposers for these rows."""
        slots = self._slots_of(rows)
        limit = np.array([row.limit for row in rows], np.intp)
        tokens = np.array([float(row.num_tokens) for row in rows])
        index = np.array(proposers, np.intp)
        kinds = self._kinds[slots]
        ks = np.array([self.traits(i).num_speculative_tokens for i in proposers], np.intp)
        keeps = np.array([self.traits(i).keeps_kv for i in proposers], np.bool_)
        most = np.minimum(limit[:, None], ks)
        survival = self.acceptance.survivals(slots, kinds, index)
        survival *= np.arange(self._max_k) < most[:, :, None]
        lag = np.where(keeps, tokens[:, None] - self._read_upto[slots[:, None], index], 0.0)
        offer = self.acceptance.offers(slots, kinds, index)
        return Outlook(index, offer, survival, lag, limit)

    # -- keeping ------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """All measurements as plain JSON: for people, and for `restore`."""
        proposers = {}
        for name, i in self.loaded.items():
            fit = self.draft_times[i].fit
            proposers[name] = {
                "acceptance": self.acceptance.summary(i, self.traits(i).num_speculative_tokens),
                "draft_ms": dict(
                    zip(
                        ("call", "row", "pass", "token", "catchup_token"),
                        (fit.weights * 1e3).round(4).tolist(),
                        strict=True,
                    )
                ),
                "state": {"counts": self.acceptance.export(i), "time": fit.export()},
            }
        fit = self.step_time.fit
        return {
            "steps": self.steps,
            "proposers": proposers,
            "step_time": {
                "plain_ms": {
                    str(rows): round(1e3 * self.step_time.plain_seconds(rows, 0.0), 3)
                    for rows in (1, 4, 16, 64)
                },
                "error": round(fit.error, 3),
                "state": fit.export(),
            },
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Takes the measurements of an engine process before this one."""
        for name, known in snapshot.get("proposers", {}).items():
            index = self.loaded.get(name)
            if index is not None:
                self.acceptance.restore(index, known["state"]["counts"])
                if float(self.acceptance.drafts[index].sum()) >= PROVEN_DRAFTS:
                    self._proven.add(index)
                self.draft_times[index].fit.restore(known["state"]["time"])
        if "step_time" in snapshot:
            self.step_time.fit.restore(snapshot["step_time"]["state"])


def _grown(array: npt.NDArray[np.float64], rows: int, columns: int) -> npt.NDArray[np.float64]:
    grown = np.zeros((rows, columns))
    grown[: array.shape[0], : array.shape[1]] = array
    return grown
