"""Runs a plan: every side under every condition, in turn, with equal requests and arrivals.

In each repetition all sides get the same prompts, seeds and arrival times, one side after the
other: in order in one repetition, in reverse order in the next (ABBA). A slow drift of the machine
therefore cancels, and each request is a pair on any two sides. Repetitions have different prompts
as long as there are any, because a proposer that remembers answers must not have seen them.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from benchmarks.http_stream import Reply
from benchmarks.load.arrivals import Arrivals, ClosedLoop, OpenLoop
from benchmarks.load.drive import Driver, PlannedRequest
from benchmarks.load.prompts import Prompt, Split
from benchmarks.load.samples import Condition, Pass
from benchmarks.load.sides import Side, Target, describe, prepare
from benchmarks.load.workloads import Workload

MAX_REQUESTS = 20_000
"""The most requests of a pass that is only limited by time."""
PRIMED_AT_ONCE = 4
WARM_UP_TOKENS = 16
LEAST_LIMIT_S = 10.0
"""The least time limit of requests that are not measured."""


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What to measure. Every workload, temperature and load is one condition.

    Attributes:
        sides: the first is the base of the others.
        temperatures: none leaves them to the workloads.
        repetitions: passes of each side under each condition.
        requests: requests of a pass; `None` is as many as fit into `seconds`.
        seconds: after this time a pass sends no more requests; `None` sets no limit.
        max_tokens: length limit of an answer.
        ignore_eos: every answer has `max_tokens`, if the server can do that.
        split: the prompts that are used; a record for the results, the workloads have it already.
        seed: of prompts, arrivals and sampling.
        time_limit_s: of each request.
        warm_up: requests that each side gets before a condition; they are not measured.
        prime: each prompt is sent before it is measured, so that every side finds its prefix in
            the server's cache. Otherwise the first side of a repetition would pay for the others.
    """

    sides: Sequence[Side]
    workloads: Sequence[Workload]
    loads: Sequence[Arrivals]
    temperatures: Sequence[float] = ()
    repetitions: int = 3
    requests: int | None = 64
    seconds: float | None = None
    max_tokens: int = 128
    ignore_eos: bool = False
    split: Split = Split.ALL
    seed: int = 1234
    time_limit_s: float = 120.0
    warm_up: int = 4
    prime: bool = True

    def __post_init__(self) -> None:
        """Raises `ValueError` for parts that do not fit together."""
        if self.requests is None and self.seconds is None:
            raise ValueError("a pass needs a limit: give --requests or --seconds")
        names = [side.name for side in self.sides]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"--side: two sides have the name {twice!r}")

    @property
    def conditions(self) -> list[Condition]:
        """All of them, in the order of measuring."""
        return [
            Condition(workload.name, temperature, load)
            for workload in self.workloads
            for temperature in (self.temperatures or (None,))
            for load in self.loads
        ]

    def count(self, arrivals: Arrivals) -> int:
        """The most requests of a pass, or, if only time limits it, of each phase of it."""
        if isinstance(arrivals, OpenLoop) and self.seconds is not None:
            expected = int(2 * arrivals.rate * self.seconds / min(arrivals.burstiness, 1)) + 64
            return min(self.requests or MAX_REQUESTS, expected)
        return self.requests or MAX_REQUESTS


class Watcher(Protocol):
    """Is told how the run proceeds."""

    def on_stage(self, description: str) -> None:
        """Something begins that is not measured."""
        ...

    def on_pass(self, condition: Condition, repetition: int, side: str) -> None:
        """A pass begins."""
        ...

    def on_reply(self, reply: Reply) -> None:
        """A request of the pass has ended."""
        ...

    def on_condition(self, condition: Condition, passes: Sequence[Pass]) -> None:
        """A condition is measured."""
        ...


@dataclass(slots=True)
class LoadRun:
    """A run of a plan, and what it has measured so far, also after an interruption."""

    plan: LoadPlan
    watcher: Watcher
    targets: list[Target] = field(default_factory=list)
    passes: list[Pass] = field(default_factory=list)
    _drawn: Counter[str] = field(default_factory=Counter)
    _primed: set[tuple[str, str]] = field(default_factory=set)

    async def run(self) -> None:
        """Measures everything.

        Raises `RuntimeError` or `ValueError` if a side cannot be used, or answers no more.
        """
        for side in self.plan.sides:
            self.watcher.on_stage(f"{side.name}: trying the server")
            target = await prepare(side, self._patience_s, ignore_eos=self.plan.ignore_eos)
            self.targets.append(target)
        workloads = {workload.name: workload for workload in self.plan.workloads}
        for condition in self.plan.conditions:
            start = len(self.passes)
            self.watcher.on_stage(f"{condition.name}: warming up")
            for target in self.targets:
                await self._warm_up(target, condition, self.plan.warm_up)
            for repetition in range(self.plan.repetitions):
                await self._repeat(condition, workloads[condition.workload], repetition)
            self.watcher.on_condition(condition, self.passes[start:])

    async def _repeat(self, condition: Condition, workload: Workload, repetition: int) -> None:
        """One pass of every side."""
        requests = self._requests(condition, workload)
        if self.plan.prime:
            await self._prime(workload.name, [r for phase in requests for r in phase])
        for target in self.targets if repetition % 2 == 0 else reversed(self.targets):
            self.watcher.on_pass(condition, repetition, target.side.name)
            driver = Driver(
                target,
                requests,
                self.plan.seconds,
                self.plan.time_limit_s,
                self.watcher.on_reply,
            )
            is_complete = False
            try:
                await driver.run(condition.arrivals, self.plan.seed + repetition)
                is_complete = True
            finally:
                samples = driver.samples()
                if samples:
                    name = target.side.name
                    self.passes.append(
                        Pass(condition, repetition, name, driver.seconds, is_complete, samples)
                    )
            if samples and all(sample.error == "timeout" for sample in samples):
                # Is it slow, or has it stopped? The other passes would take as long for nothing.
                await self._warm_up(target, condition, 1)

    def _requests(self, condition: Condition, workload: Workload) -> list[list[PlannedRequest]]:
        """The requests of the workload's next repetition, in lists that share its time equally.

        If the number of requests is limited, a workload with phases changes after a share of them,
        so there is one list. Otherwise it changes with the time: one list for each phase.
        """
        plan = self.plan
        count = plan.count(condition.arrivals)
        offset = self._drawn[workload.name]
        parts = len(workload.phases) if plan.requests is not None else 1
        each = -(-count // parts)
        self._drawn[workload.name] += each
        phases = workload.draw(each, offset, plan.seed)
        if plan.requests is not None:
            phases = [[prompt for phase in phases for prompt in phase][:count]]
        heats = workload.temperatures if condition.temperature is None else (condition.temperature,)
        # The turns of temperatures and of pools must not keep step.
        turns = len(workload.phases[0])
        return [
            [
                PlannedRequest(
                    number * each + i,
                    prompt,
                    heats[(i + i // turns) % len(heats)],
                    prompt.max_tokens or plan.max_tokens,
                    plan.seed + offset + i,
                )
                for i, prompt in enumerate(phase)
            ]
            for number, phase in enumerate(phases)
        ]

    async def _warm_up(self, target: Target, condition: Condition, count: int) -> None:
        """Triggers what is compiled, allocated or connected on first use."""
        prompts = [
            Prompt("", "", {"messages": [{"role": "user", "content": f"Write `warm_up_{i}`."}]})
            for i in range(count)
        ]
        heat = condition.temperature or 0.0
        requests = [PlannedRequest(0, p, heat, WARM_UP_TOKENS, 0) for p in prompts]
        await self._send_at_once(target, requests)

    async def _prime(self, workload: str, requests: Sequence[PlannedRequest]) -> None:
        """Sends every prompt once in a run to every server, for one token."""
        fresh = {
            (workload, request.prompt.id): PlannedRequest(0, request.prompt, 0.0, 1, 0)
            for request in requests
            if (workload, request.prompt.id) not in self._primed
        }
        self._primed.update(fresh)
        self.watcher.on_stage(f"{workload}: priming {len(fresh)} prompts")
        servers = {target.side.url: target for target in reversed(self.targets)}
        primed = list(fresh.values())
        for target in servers.values():
            for start in range(0, len(primed), PRIMED_AT_ONCE):
                await self._send_at_once(target, primed[start : start + PRIMED_AT_ONCE])

    @property
    def _patience_s(self) -> float:
        """The time limit of a request that is not measured."""
        return max(self.plan.time_limit_s, LEAST_LIMIT_S)

    async def _send_at_once(self, target: Target, requests: Sequence[PlannedRequest]) -> None:
        """Sends requests that are not measured. Raises `RuntimeError` if all of them time out."""
        replies: list[Reply] = []
        driver = Driver(target, [requests], None, self._patience_s, replies.append)
        await driver.run(ClosedLoop(max(len(requests), 1)), 0)
        if replies and all(reply.problem == "timeout" for reply in replies):
            raise RuntimeError(
                f"--side {target.side.name}: {target.side.address} does not answer any more: "
                f"{describe(replies[0])}"
            )
