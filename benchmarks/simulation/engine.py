"""A simulated engine: it makes steps as the real one does, with the real `Planner`, without tokens.

One step, in the order of `engine_adapter/vllm_engine`: the plan (`core.row_table`); the target,
which reads prompts and verifies the drafts of the step before; the emitted tokens; the drafts of
the plan, their fallbacks and the shadows (`worker.dispatch`); what the planner observes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.simulation.arrivals import Arrivals
from benchmarks.simulation.costs import QUIET, Clock, Noise
from benchmarks.simulation.drafting import Drafting
from benchmarks.simulation.result import Result, Step, main_method
from benchmarks.simulation.rows import Row
from benchmarks.simulation.trace import Trace, TracedRequest
from benchmarks.simulation.workloads import Workload
from engine_adapter.policies.contract import NO_PLAN, DraftOutcome, StepPlan, StepView
from engine_adapter.policies.planner import Planner, StepOutcome
from engine_adapter.seam.types import NONE, SpecMethod

PROMPT_BUDGET = 2048
"""Prompt tokens that one step reads; a longer prompt takes several steps."""

MethodOf = Callable[[TracedRequest], SpecMethod]


class Simulation:
    """One replay.

    Args:
        trace: the proposers and the costs.
        workload: the requests.
        method_of: each request's method: a policy, a proposer, or plain decoding.
        parameters: policy -> its parameters where they are not the defaults.
        noise: of the times.
        primary: the primary proposer, if there is one; `load` uses it by default.
        late: the planner learns what a step did after the plan of the next one, as under
            asynchronous scheduling.

    Attributes:
        planner: the real one; its measurements may be changed between two steps, as a load does.
        now_s: the simulated time.
        result: the steps so far.
    """

    def __init__(
        self,
        trace: Trace,
        workload: Workload,
        method_of: MethodOf,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
        noise: Noise = QUIET,
        primary: str | None = None,
        *,
        late: bool = False,
    ) -> None:
        self.planner = Planner(trace.proposers, max(trace.max_k, 1), parameters, primary)
        self.now_s = 0.0
        self.result = Result(tuple(phase.name for phase in workload))
        self._target = trace.costs.target
        self._clock = Clock(noise)
        self._drafting = Drafting(trace, self._clock)
        self._method_of = method_of
        self._arrivals = Arrivals(workload)
        self._rows: dict[str, Row] = {}
        self._seen: list[DraftOutcome] = []
        self._told_s: float | None = None
        self._late = late
        # What the planner has not learned yet, and the requests that ended in that step.
        self._unseen: tuple[StepOutcome, list[str]] | None = None

    @property
    def rows(self) -> Sequence[Row]:
        """The requests in progress."""
        return list(self._rows.values())

    def run(self) -> Result:
        """Makes all steps."""
        while self.step():
            pass
        return self.result

    def mismeasure(self, seconds: float) -> None:
        """The planner is told this time of the next step's target: a clock that jumps."""
        self._told_s = seconds

    def step(self) -> bool:
        """Makes one step; false when all requests have ended.

        Long because the parts of a step follow one another, and each needs those before it.
        """
        self._admit()
        if not self._rows:
            return False
        self._clock.start_step(len(self.result.steps))
        prompt_reads = self._prompts()
        rows = [
            row for row in self._rows.values() if row.request_id in prompt_reads or not row.unread
        ]
        context = sum(row.length for row in rows)
        probes = self._probes()
        plan = self._plan(rows, prompt_reads)
        self._learn()
        verified = sum(row.pending.drafted for row in rows if row.pending)
        decoded = len(rows) - len(prompt_reads) + verified
        prompt = sum(prompt_reads.values())
        target_s = self._clock.measure(self._target.seconds(max(decoded, 1), context, prompt))
        computed = {row.request_id: row.computed for row in rows}
        emitted = {row.request_id: self._emit(row, prompt_reads) for row in rows}
        report = self._drafting.draft(plan, rows, computed, emitted)
        draft_s = sum(work.seconds for _, work in report.work)
        self.now_s += target_s + draft_s
        self._seen.extend(report.outcomes)
        outcome = StepOutcome(
            drafts=self._seen,
            work=report.work,
            rows=len(rows),
            tokens=decoded + prompt,
            context=float(context),
            emitted=sum(emitted.values()),
            verified=verified > 0,
            prefill=bool(prompt_reads),
            seconds=target_s if self._told_s is None else self._told_s,
        )
        probe_s = report.seconds_of(self._probed(plan)) if self._probes() > probes else 0.0
        self._seen, self._told_s = [], None
        self._unseen = outcome, self._end_rows()
        if not self._late:
            self._learn()
        methods = [plan.drafts[r].proposer if r in plan.drafts else NONE for r in emitted]
        self.result.steps.append(
            Step(
                self.now_s,
                self._arrivals.phase,
                len(rows),
                outcome.emitted,
                target_s,
                draft_s,
                probe_s,
                main_method(methods),
                bool(prompt_reads),
                self._suspended(),
            )
        )
        return True

    # -- requests --------------------------------------------------------------------------------

    def _admit(self) -> None:
        """Starts the requests that have arrived, as far as the phase's limit allows."""
        while started := self._arrivals.next(len(self._rows), self.now_s):
            self.now_s = max(self.now_s, started.at_s)
            for _ in range(len(self.result.starts), self._arrivals.phase + 1):
                self.result.starts.append(len(self.result.steps))
            row = Row(started.request_id, started.request, self._method_of(started.request))
            row.unread, row.arrived_s = started.request.prompt_tokens, started.at_s
            self._rows[row.request_id] = row
            self.planner.measurements.admit(row.request_id, started.request.request_class)

    def _end_rows(self) -> list[str]:
        """Removes the rows that ended; returns their requests."""
        ended_ids = [request_id for request_id, row in self._rows.items() if row.ended]
        for request_id in ended_ids:
            row = self._rows.pop(request_id)
            self.result.latencies_s.append(self.now_s - row.arrived_s)
        return ended_ids

    def _prompts(self) -> dict[str, int]:
        """The prompt tokens that the step reads, by request."""
        budget, prompt_reads = PROMPT_BUDGET, {}
        for row in self._rows.values():
            if row.unread and budget:
                prompt_reads[row.request_id] = min(row.unread, budget)
                budget -= prompt_reads[row.request_id]
        return prompt_reads

    def _emit(self, row: Row, prompt_reads: Mapping[str, int]) -> int:
        """The row's part of the target's step; returns the tokens that it emits."""
        if row.request_id in prompt_reads:
            row.unread -= prompt_reads[row.request_id]
            emitted = 0 if row.unread else 1
        elif row.pending is not None:
            self._seen.append(row.pending.outcome(row.request_id))
            # The engine cuts what is beyond the answer's length.
            num_left = row.request.output_tokens - row.written
            emitted = min(1 + row.pending.accepted, num_left)
        else:
            emitted = 1
        row.pending = None
        row.written += emitted
        return emitted

    # -- planner ---------------------------------------------------------------------------------

    def _plan(self, rows: Sequence[Row], prompt_reads: Mapping[str, int]) -> StepPlan:
        views = [row.view(row.unread > prompt_reads.get(row.request_id, 0)) for row in rows]
        if not any(row.spec_method.num_speculative_tokens for row in self._rows.values()):
            return NO_PLAN
        row_views = [view for view in views if view is not None]
        return self.planner.plan(StepView(row_views, len(rows), self._arrivals.waiting(self.now_s)))

    def _learn(self) -> None:
        """Tells the planner what it has not learned yet, then frees the requests that ended."""
        if self._unseen is None:
            return
        (outcome, ended_ids), self._unseen = self._unseen, None
        self.planner.observe(outcome)
        for request_id in ended_ids:
            self.planner.measurements.free(request_id)
        guards = [state["guard"] for state in self.planner.states().values() if "guard" in state]
        self.result.suspensions = sum(guard["suspensions"] for guard in guards)

    def _suspended(self) -> bool:
        states = self.planner.states().values()
        return any(state["guard"]["suspended"] for state in states if "guard" in state)

    def _probes(self) -> int:
        """The probes of all policies so far."""
        return sum(state.get("probes", 0) for state in self.planner.states().values())

    def _probed(self, plan: StepPlan) -> str:
        """The proposer of a plan that has a probe: one row drafts with it, and no policy means it.

        A policy's state names the proposers that it means to draft with.
        """
        planned_names = {
            name for state in self.planner.states().values() for name in state.get("drafting", ())
        }
        names = [method.proposer for method in plan.drafts.values()]
        single_names = [name for name in names if names.count(name) == 1]
        return next(
            (name for name in single_names if name not in planned_names),
            single_names[0] if single_names else NONE,
        )
