"""What the policies know: the loaded proposers, what is accepted, costs and lags. One for all."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from engine_adapter.policies.acceptance import AcceptanceModel, DraftCases, Floats, Ints
from engine_adapter.policies.contract import (
    DraftOutcome,
    DraftTime,
    ProposerTraits,
    RequestClass,
    RowView,
)
from engine_adapter.policies.live_requests import LiveRequests
from engine_adapter.policies.timing import DraftTimeModel, StepTimeModel
from engine_adapter.seam.types import SpecMethod

PROVEN_DRAFTS = 12
"""Drafts after which a proposer's measurements count; until then it is only probed."""

OUTDATED_SURPLUS = 0.5
"""Accepted tokens of a draft beyond those predicted, at which a proposer has become better."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What can be expected of J proposers for the B rows of a step.

    Attributes:
        proposers: their indices, [J].
        cases: the drafts that can come, Q of them, ordered by proposer; `cases.proposer` counts
            among the J. Each length of a lookup's draft is a case; a model has one case.
        p_length: the chance of each case, if its proposer is asked, [B, Q].
        p_accepted: the chance that the target accepts each case up to each position, if it is
            drafted so far, [B, Q, K]; 0 beyond the length and beyond a row's or a proposer's limit.
        p_reached: the chance that it is drafted so far, if it is asked for, [B, Q, K]. Below 1 for
            a model that may end its drafts early; a lookup's cases have their lengths.
        lag: tokens that each has not read of each row, [B, J].
        remaining: the tokens that can still be drafted for each row until it ends, [B].
    """

    proposers: Ints
    cases: DraftCases
    p_length: Floats
    p_accepted: Floats
    p_reached: Floats
    lag: Floats
    remaining: Ints


class Measurements:
    """All measurements, and the live requests that they belong to.

    Args:
        proposers: the loaded proposers.
        max_k: K, the draft capacity.

    Attributes:
        requests: the live requests.
        verify_all: for `StepPlan.verify_caps`: a lookup is asked for its whole k, so that its
            length is known, and only the plan's k limits what is verified.
        step_time: the target's part of a step.
        draft_times: each proposer's part, by index.
        unavailable: names of proposers that must not be chosen now: quarantined ones.
        steps: steps observed.
    """

    def __init__(self, proposers: Sequence[ProposerTraits], max_k: int) -> None:
        self._max_k = max_k
        self.verify_all = tuple(range(max_k + 1))
        self._traits: list[ProposerTraits | None] = []
        self._index: dict[str, int] = {}
        self._readers: dict[str, int] = {}  # those with KV
        self.acceptance = AcceptanceModel(0, max_k)
        self.step_time = StepTimeModel()
        self.draft_times: list[DraftTimeModel] = []
        self.unavailable: frozenset[str] = frozenset()
        self.steps = 0
        self.requests = LiveRequests()
        self._last_seen: list[int] = []
        self._proven: set[int] = set()
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
            self.acceptance.grow(len(self._traits), self.requests.size)
        self._traits[index] = traits
        self._index[traits.name] = index
        if traits.keeps_kv:
            self._readers[traits.name] = index

    def remove_proposer(self, name: str) -> None:
        """A proposer was unloaded: it is not chosen, and its counts are dropped."""
        self._readers.pop(name, None)
        if (index := self._index.get(name)) is not None:
            self._traits[index] = None
            self._proven.discard(index)
            self.acceptance.forget_proposer(index)
            self.draft_times[index] = DraftTimeModel()
            self.requests.forget_proposer(index)

    @property
    def loaded(self) -> Mapping[str, int]:
        """Name -> index of the proposers that are loaded."""
        return {t.name: i for i, t in enumerate(self._traits) if t is not None}

    def traits(self, proposer: int) -> ProposerTraits:
        """The proposer with this index; it must be loaded."""
        traits = self._traits[proposer]
        assert traits is not None
        return traits

    def k_of(self, name: str) -> int:
        """The whole k of a loaded proposer."""
        return self.traits(self._index[name]).num_speculative_tokens

    def candidates(self) -> list[int]:
        """The proposers that policies may choose now, by index."""
        return [
            i
            for i, traits in enumerate(self._traits)
            if traits is not None and traits.selectable and traits.name not in self.unavailable
        ]

    def is_proven(self, proposer: int) -> bool:
        """Whether it has drafted often enough for its measurements to count."""
        return proposer in self._proven

    def is_outdated(self, proposer: int) -> bool:
        """Whether far more of its newest drafts was accepted than its measurements predicted."""
        return bool(self.acceptance.surplus[proposer] >= OUTDATED_SURPLUS)

    def age(self, proposer: int) -> int:
        """Steps since the last draft of this proposer was observed."""
        return self.steps - self._last_seen[proposer]

    # -- requests ----------------------------------------------------------------------------

    def admit(self, request_id: str, request_class: RequestClass) -> None:
        """A request begins."""
        slot = self.requests.admit(request_id, request_class)
        self.acceptance.grow(len(self._traits), self.requests.size)
        self.acceptance.start_row(slot)

    def free(self, request_id: str) -> None:
        """A request ended."""
        self.requests.free(request_id)

    def note_lengths(self, rows: Sequence[RowView]) -> None:
        """Notes the tokens of each row of a step, if a proposer has to read them."""
        if self._readers:
            self.requests.note_lengths(rows)

    def mark_read(self, drafts: Iterable[tuple[str, SpecMethod]]) -> Floats:
        """Proposers with KV read their rows up to the end, as it was at `note_lengths`.

        Returns:
            The tokens that each proposer has to read for that, by index, [J].
        """
        readers, num_proposers = self._readers, len(self._traits)
        pairs = [(r, readers[m.proposer]) for r, m in drafts if m.proposer in readers]
        return self.requests.mark_read(pairs, num_proposers)

    def lags(self, rows: Sequence[RowView], proposer: int) -> Floats:
        """The tokens of each row that the proposer has not read, [R]."""
        if not self.traits(proposer).keeps_kv:
            return np.zeros(len(rows))
        return self.requests.lags(rows, proposer)

    # -- observing a step --------------------------------------------------------------------

    def observe_drafts(self, outcomes: Iterable[DraftOutcome]) -> None:
        """Takes the drafts whose outcome this step decided.

        Those of ended requests and unloaded proposers are ignored, and those of lookups that were
        asked for less than they can draft: their length says nothing.
        """
        index, slot_of, drafts = self._index.get, self.requests.slot, []
        for request_id, name, requested_k, length, verified, accepted in outcomes:
            slot, proposer = slot_of(request_id), index(name)
            traits = None if proposer is None else self._traits[proposer]
            if slot is None or proposer is None or traits is None:
                continue
            ended_early = (
                traits.ends_early and accepted == length < requested_k and not traits.lookup
            )
            if not traits.lookup:
                length = self._max_k if length else 0
            elif requested_k < traits.num_speculative_tokens:
                continue
            drafts.append((slot, proposer, length, verified, accepted, ended_early))
        if not drafts:
            return
        slot_, proposer_, length_, verified_, accepted_, ended_ = np.array(drafts, np.intp).T
        kind, ends = self.requests.kinds[slot_], (ended_ > 0) & (length_ > 0)
        self.acceptance.observe(
            slot_, proposer_, kind, length_, verified_, accepted_, ended_early=ends
        )
        for proposer in set(proposer_.tolist()):
            self._last_seen[proposer] = self.steps
            if proposer not in self._proven:
                total = float(self.acceptance.drafts[proposer].sum())
                if total >= PROVEN_DRAFTS:
                    self._proven.add(proposer)

    def observe_work(self, work: Iterable[tuple[str, DraftTime]], lag: Floats) -> None:
        """Takes the calls of proposers in a step.

        Args:
            lag: the tokens that each proposer with KV had to read, by index, as `mark_read` gave
                them when the step was planned: a prompt that the target reads in the same step is
                among them. A proposer that was loaded later has no entry.
        """
        for name, call in work:
            proposer = self._index.get(name)
            if proposer is not None and self._traits[proposer] is not None:
                catchup = int(lag[proposer]) if proposer < len(lag) else 0
                self.draft_times[proposer].add(
                    call.rows, call.longest, call.tokens, catchup, call.seconds
                )

    def observe_step(self, rows: int, tokens: int, context: float, seconds: float) -> float:
        """Takes the target's part of a step without prefill; returns the prediction for it."""
        self.steps += 1
        return self.step_time.add(rows, tokens, context, seconds)

    # -- looking ahead -----------------------------------------------------------------------

    def forecast(self, rows: Sequence[RowView], proposers: Sequence[int]) -> Forecast:
        """What can be expected of these proposers for these rows."""
        slots = self.requests.slots(rows)
        limit = np.array([row.limit for row in rows], np.intp)
        index = np.array(proposers, np.intp)
        lag = np.zeros((len(rows), len(proposers)))
        for column, proposer in enumerate(proposers):
            lag[:, column] = self.lags(rows, proposer)
        cases, length = self._cases(proposers)
        indexed_cases = DraftCases(index[cases.proposer], cases.length)
        kinds = self.requests.kinds[slots]
        p_accepted = self.acceptance.p_accepted(slots, kinds, indexed_cases)
        p_accepted *= np.arange(self._max_k) < np.minimum(limit[:, None], length)[:, :, None]
        p_length = self.acceptance.p_length(slots, kinds, indexed_cases)
        p_reached = self.acceptance.p_reached(kinds, indexed_cases)
        remaining = np.array([row.draft_budget for row in rows], np.intp)
        return Forecast(index, cases, p_length, p_accepted, p_reached, lag, remaining)

    def _cases(self, proposers: Sequence[int]) -> tuple[DraftCases, Ints]:
        """The cases of these proposers, and the tokens of each, [Q].

        A model's draft has the length that it is asked for, or ends early, and counts as the
        longest; see `acceptance`.
        """
        cases: list[tuple[int, int]] = []
        lengths: list[int] = []
        for j, proposer in enumerate(proposers):
            traits = self.traits(proposer)
            k = traits.num_speculative_tokens
            case_lengths = range(1, k + 1) if traits.lookup else [k]
            cases.extend((j, n if traits.lookup else self._max_k) for n in case_lengths)
            lengths.extend(case_lengths)
        proposer_, length_ = np.array(cases, np.intp).reshape(-1, 2).T
        return DraftCases(proposer_, length_), np.array(lengths, np.intp)

    # -- keeping ------------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """All measurements as plain JSON: for people, and for `restore`."""
        proposers = {}
        for name, i in self.loaded.items():
            fit, parts = self.draft_times[i].fit, ("call", "row", "pass", "token", "catchup_token")
            proposers[name] = {
                "acceptance": self.acceptance.summary(i, self.traits(i).num_speculative_tokens),
                "draft_ms": dict(zip(parts, (fit.weights * 1e3).round(4).tolist(), strict=True)),
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
        for name, saved in snapshot.get("proposers", {}).items():
            if (index := self.loaded.get(name)) is not None:
                self.acceptance.restore(index, saved["state"]["counts"])
                if float(self.acceptance.drafts[index].sum()) >= PROVEN_DRAFTS:
                    self._proven.add(index)
                self.draft_times[index].fit.restore(saved["state"]["time"])
        if "step_time" in snapshot:
            self.step_time.fit.restore(snapshot["step_time"]["state"])
