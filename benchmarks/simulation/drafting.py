"""The drafting of a simulated step, as `worker.dispatch` does it: drafts, fallbacks, shadows."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.simulation.costs import Clock
from benchmarks.simulation.rows import Draft, Row
from benchmarks.simulation.trace import Trace
from engine_adapter.policies.contract import DraftOutcome, DraftTime, StepPlan
from engine_adapter.seam.types import SpecMethod


@dataclass(slots=True)
class Report:
    """What was drafted in one step.

    Attributes:
        work: each call of a proposer, by name.
        outcomes: of shadows that the step decided, and of first proposers of which nothing is
            verified.
    """

    work: list[tuple[str, DraftTime]] = field(default_factory=list)
    outcomes: list[DraftOutcome] = field(default_factory=list)

    def seconds_of(self, name: str) -> float:
        """The time of one proposer's calls."""
        return sum(work.seconds for proposer, work in self.work if proposer == name)


class Drafting:
    """Drafts for the rows of a simulation.

    Args:
        trace: what every proposer drafts, and what it costs.
        clock: measures the calls.
    """

    def __init__(self, trace: Trace, clock: Clock) -> None:
        self._costs = trace.costs.drafts
        self._columns = {traits.name: i for i, traits in enumerate(trace.proposers)}
        self._traits = {traits.name: traits for traits in trace.proposers}
        self._clock = clock

    def draft(
        self,
        plan: StepPlan,
        rows: Sequence[Row],
        computed: Mapping[str, int],
        emitted: Mapping[str, int],
    ) -> Report:
        """Makes the drafts that the next step verifies, and the shadows.

        Args:
            rows: of the step, after it emitted.
            computed, emitted: request id -> tokens read before the step, tokens emitted in it.
        """
        report = Report()
        by_id = {row.request_id: row for row in rows}
        for row in rows:
            report.outcomes.extend(row.decided())
        methods = {
            r: self._whole(m) if r in plan.verify_caps else m for r, m in plan.drafts.items()
        }
        empty = self._call_all(methods, by_id, computed, emitted, report)
        empty |= self._keep(plan, by_id, report)
        fallbacks = {r: method for r, method in plan.fallbacks.items() if r in empty}
        report.outcomes.extend(draft.outcome(r) for r, draft in empty.items() if not draft.found)
        missed = self._call_all(fallbacks, by_id, computed, emitted, report)
        report.outcomes.extend(missed[r].outcome(r) for r in missed)
        for name, requests in plan.shadows.items():
            self._shadow(name, [by_id[r] for r in requests if r in by_id], report)
        return report

    def _whole(self, method: SpecMethod) -> SpecMethod:
        return SpecMethod(method.proposer, self._traits[method.proposer].num_speculative_tokens)

    def _keep(self, plan: StepPlan, rows: Mapping[str, Row], report: Report) -> dict[str, Draft]:
        """Cuts the drafts of lookups; returns those that are dropped, and lets them wait."""
        dropped = {}
        for request_id, verify_caps in plan.verify_caps.items():
            row = rows.get(request_id)
            draft = None if row is None else row.pending
            if row is None or draft is None:
                continue
            length = min(verify_caps[draft.found], plan.drafts[request_id].num_speculative_tokens)
            row.pending = draft.cut(length) if length else None
            if not length:
                dropped[request_id] = draft.cut(0)
                if draft.proposer in row.waiting:
                    report.outcomes.append(dropped[request_id].outcome(request_id))
                else:
                    row.waiting[draft.proposer] = draft
        return dropped

    def _call_all(
        self,
        methods: Mapping[str, SpecMethod],
        rows: Mapping[str, Row],
        computed: Mapping[str, int],
        emitted: Mapping[str, int],
        report: Report,
    ) -> dict[str, Draft]:
        """Calls each proposer once, for its rows; returns the drafts that found nothing."""
        empty: dict[str, Draft] = {}
        for name in dict.fromkeys(method.proposer for method in methods.values()):
            own_methods = [(r, m) for r, m in methods.items() if m.proposer == name and r in rows]
            drafts, lag, unread = [], 0, 0
            for request_id, method in own_methods:
                row, k = rows[request_id], method.num_speculative_tokens
                if not emitted[request_id] and not self._traits[name].keeps_kv:
                    continue
                draft = row.draft(name, self._columns[name], k if emitted[request_id] else 0)
                drafts.append(draft)
                if self._traits[name].keeps_kv:
                    caught_up, num_read = row.catch_up(
                        name, computed[request_id], emitted[request_id]
                    )
                    lag, unread = lag + caught_up, unread + num_read
                row.pending = draft if draft.drafted else None
                if k and not draft.drafted:
                    empty[request_id] = draft
            self._work(name, drafts, lag, unread, report)
        return empty

    def _shadow(self, name: str, rows: Iterable[Row], report: Report) -> None:
        """Makes one shadow draft for each row that waits for none of this proposer."""
        drafts = []
        for row in rows:
            if name in row.waiting or row.unread:
                continue
            k = self._traits[name].num_speculative_tokens
            draft = row.draft(name, self._columns[name], k)
            drafts.append(draft)
            if draft.drafted:
                row.waiting[name] = draft
            else:
                report.outcomes.append(draft.outcome(row.request_id))
        self._work(name, drafts, 0, 0, report)

    def _work(
        self, name: str, drafts: Sequence[Draft], lag: int, unread: int, report: Report
    ) -> None:
        if drafts:
            longest = max(draft.asked for draft in drafts)
            tokens = sum(draft.drafted for draft in drafts)
            cost = self._costs[name].seconds(len(drafts), longest, tokens, unread)
            work = DraftTime(self._clock.measure(cost), len(drafts), longest, tokens, lag)
            report.work.append((name, work))
