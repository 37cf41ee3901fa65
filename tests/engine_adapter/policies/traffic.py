"""Proposers and made-up traffic for tests of policies: a planner, and steps that it learns from."""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from engine_adapter.policies.contract import (
    DraftOutcome,
    DraftTime,
    ProposerTraits,
    RequestClass,
    RowView,
    StepPlan,
    StepView,
)
from engine_adapter.policies.measurements import Measurements
from engine_adapter.policies.planner import Planner, StepOutcome
from engine_adapter.seam.types import SpecMethod

MAX_K = 6
NGRAM = ProposerTraits("ngram", 5, lookup=True)
SUFFIX = ProposerTraits("suffix", 6, lookup=True)
DRAFT = ProposerTraits("draft", 4, keeps_kv=True)
MEDUSA = ProposerTraits("medusa", 3)
CASCADE = ProposerTraits("cascade", 5, selectable=False)
PROPOSERS = (NGRAM, SUFFIX, DRAFT, MEDUSA, CASCADE)

ACCEPTED = {"ngram": 0.8, "suffix": 0.7, "draft": 0.6, "medusa": 0.4, "cascade": 0.9, "late": 0.9}
STEP_S, TOKEN_S, CALL_S = 0.03, 0.0005, 0.001


class Traffic:
    """Steps of one planner: what it plans is drafted, and its outcome is drawn from a seed.

    Args:
        policy: the method of every row.
        rows: how many decode, for ever.
    """

    def __init__(
        self,
        policy: str,
        rows: int = 4,
        proposers: Sequence[ProposerTraits] = PROPOSERS,
        seed: int = 0,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.planner = Planner(proposers, MAX_K, parameters)
        self.method = SpecMethod(policy, MAX_K)
        self.accepted = dict(ACCEPTED)
        self.random = random.Random(seed)
        self.lengths = {f"r{i}": 100 + i for i in range(rows)}
        self.budget = 50
        self.ks = {traits.name: traits.num_speculative_tokens for traits in proposers}
        self._drafts: list[DraftOutcome] = []
        for number, request_id in enumerate(self.lengths):
            kind = list(RequestClass)[number % 3]
            self.planner.measurements.admit(request_id, kind)

    @property
    def measurements(self) -> Measurements:
        return self.planner.measurements

    def view(self) -> StepView:
        """The next step. Every seventh row is short of budget."""
        rows = [
            RowView(r, self.method, 2 if i % 7 == 6 else self.budget, n, list(RequestClass)[i % 3])
            for i, (r, n) in enumerate(self.lengths.items())
        ]
        return StepView(rows, len(rows))

    def step(self, seconds: float | None = None) -> StepPlan:
        """Plans, runs and observes one step; returns its plan."""
        view = self.view()
        plan = self.planner.plan(view)
        self.finish(plan, seconds)
        return plan

    def steps(self, count: int) -> list[StepPlan]:
        """Several steps."""
        return [self.step() for _ in range(count)]

    def replace_row(self, old: str, new: str) -> None:
        """A request ends, and another one begins."""
        del self.lengths[old]
        self._drafts = [outcome for outcome in self._drafts if outcome.request_id != old]
        self.measurements.free(old)
        self.lengths[new] = 50
        self.measurements.admit(new, RequestClass.GREEDY)

    def finish(self, plan: StepPlan, seconds: float | None = None) -> None:
        """The step that verifies the drafts before, and drafts `plan`."""
        seen, self._drafts = self._drafts, []
        emitted = len(self.lengths) + sum(outcome.accepted for outcome in seen)
        tokens = len(self.lengths) + sum(outcome.verified for outcome in seen)
        for request_id in self.lengths:
            self.lengths[request_id] += 1
        for outcome in seen:
            self.lengths[outcome.request_id] += outcome.accepted
        verified = bool(seen)
        for request_id, method in plan.drafts.items():
            k, verify_caps = method.num_speculative_tokens, plan.verify_caps.get(request_id)
            asked = k if verify_caps is None else self.ks[method.proposer]
            outcome = self._outcome(request_id, method.proposer, asked)
            kept = outcome.drafted if verify_caps is None else min(k, verify_caps[outcome.drafted])
            cut = outcome._replace(verified=kept, accepted=min(kept, outcome.accepted))
            (self._drafts if kept else seen).append(cut)
        for name, requests in plan.shadows.items():
            seen += [self._outcome(r, name, self.ks.get(name, 4)) for r in requests]
        usual = STEP_S + TOKEN_S * max(0, tokens - 4)
        self.planner.observe(
            StepOutcome(
                drafts=seen,
                work=list(self._work(plan)),
                rows=len(self.lengths),
                tokens=tokens,
                context=float(sum(self.lengths.values())),
                emitted=emitted,
                verified=verified,
                prefill=False,
                seconds=usual if seconds is None else seconds,
            )
        )

    def _outcome(self, request_id: str, name: str, k: int) -> DraftOutcome:
        found = name not in ("ngram", "suffix") or self.random.random() < 0.7
        accepted = 0
        while found and accepted < k and self.random.random() < self.accepted[name]:
            accepted += 1
        return DraftOutcome(request_id, name, k, k * found, k * found, accepted)

    def _work(self, plan: StepPlan) -> Iterator[tuple[str, DraftTime]]:
        for name in self.ks:
            ks = [m.num_speculative_tokens for m in plan.drafts.values() if m.proposer == name]
            ks += [self.ks[name]] * len(plan.shadows.get(name, ()))
            if ks:
                lookup = name in ("ngram", "suffix")
                seconds = 2e-5 * len(ks) if lookup else CALL_S * (1 + max(ks))
                yield name, DraftTime(seconds, len(ks), max(ks), sum(ks), 0)


def numbers(value: Any) -> Iterator[float]:
    """Every number in plain JSON."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from numbers(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from numbers(one)
    elif isinstance(value, (int, float)):
        yield float(value)
