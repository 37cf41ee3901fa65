"""A trace of a real engine, in this process.

The engine decodes plainly. At every position every proposer drafts for every row, with its whole k;
the drafts are noted and thrown away. Afterwards they are compared with the tokens that the target
wrote. Rows of a temperature above 0 have a seed. Then the same engine runs random plans at several
numbers of rows, and their times give the costs.
"""

import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np

from benchmarks.servers import ENVIRONMENT, NAME, vllm_arguments
from benchmarks.simulation.fitting import fit_costs
from benchmarks.simulation.trace import Trace, TracedRequest
from benchmarks.workload import SEED, Messages, chats
from demo.prompts import KINDS
from engine_adapter.policies.contract import ProposerTraits, RequestClass, StepPlan, StepView
from engine_adapter.policies.names import AUTO
from engine_adapter.policies.planner import Planner, StepOutcome
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.seam.config import EngineConfig, draft_capacity
from engine_adapter.seam.types import SpecDecodeParams, SpecMethod

TIMED_ROWS = (1, 2, 4, 8, 16)
"""Rows of the steps that give the costs."""

TIMED_TOKENS = 48
"""Tokens of each answer in timed steps."""

PrintLine = Callable[[str], None]
Drafted = dict[tuple[str, int], list[list[int]]]
"""Request id and its length in tokens -> the draft of each proposer."""


@dataclass(frozen=True, slots=True)
class RecordPlan:
    """What to record.

    Attributes:
        target: path or id of the model.
        name: the target's name in the trace.
        streams: requests at a time.
        requests: the most requests of each kind and temperature.
        max_tokens: tokens of each answer.
        timed_steps: steps at each of `TIMED_ROWS`.
        seconds: after this time no request begins.
    """

    target: str
    name: str
    specs: Sequence[ProposerSpec]
    temperatures: Sequence[float] = (0.0,)
    streams: int = 4
    requests: int = 40
    max_tokens: int = 86
    timed_steps: int = 80
    seconds: float = 240.0


class _RecordingPlanner(Planner):
    """Plans nothing, but lets the worker be called for every row; or random drafts, to time them.

    Attributes:
        outcomes: of the timed steps, and of the steps with prefill that were recorded.
        timing: whether it plans random drafts.
    """

    def __init__(self, proposers: Sequence[ProposerTraits], max_k: int) -> None:
        super().__init__(proposers, max_k)
        self.outcomes: list[StepOutcome] = []
        self.timing = False
        self._traits = proposers
        self._random = random.Random(SEED)

    def plan(self, view: StepView) -> StepPlan:
        rows = [row for row in view.rows if row.draft_budget > 0]
        if not self.timing:
            return StepPlan(shadows={self._traits[0].name: [row.request_id for row in rows]})
        # Some steps decode plainly.
        traits = self._random.choice([None, None, *self._traits])
        if traits is None:
            return StepPlan()
        k = self._random.randint(1, traits.num_speculative_tokens)
        return StepPlan(
            {r.request_id: SpecMethod(traits.name, min(k, r.draft_budget)) for r in rows}
        )

    def observe(self, outcome: StepOutcome) -> None:
        if self.timing != outcome.prefill:
            self.outcomes.append(outcome)

    def snapshot(self) -> dict[str, Any]:
        return {}


class Recorder:
    """An engine that records."""

    def __init__(self, plan: RecordPlan) -> None:
        from transformers import AutoTokenizer
        from vllm import LLMEngine

        from engine_adapter.vllm_engine.gateway import arguments
        from engine_adapter.vllm_engine.wire import SpecgateConfig

        config = EngineConfig(plan.target, NAME, plan.specs, None, vllm_arguments(), "ERROR")
        arguments.prepare_environment(config)
        capacity = draft_capacity(plan.specs, None)
        args: Any = arguments.engine_args(config, capacity, None)
        self._engine: Any = LLMEngine.from_vllm_config(args.create_engine_config())
        client: Any = self._engine.engine_core
        core = client.engine_core
        loaded_traits = SpecgateConfig.from_vllm_config(core.vllm_config).traits
        self.traits = tuple(traits for traits in loaded_traits if traits.selectable)
        self._planner = _RecordingPlanner(self.traits, capacity)
        core.scheduler.row_table.planner = self._planner
        runner = core.model_executor.driver_worker.worker.model_runner
        self._runner = runner
        self._dispatch = runner.drafter
        self._tokenizer: Any = AutoTokenizer.from_pretrained(plan.target)
        self._plan = plan
        self._number = count()
        self._drafted: Drafted = {}

    def record(self, print_line: PrintLine) -> Trace:
        """Records the requests, times steps, and fits the costs."""
        plan, began = self._plan, time.monotonic()
        jobs = [
            (kind, temperature, chat)
            for temperature in plan.temperatures
            for kind in KINDS
            for chat in chats(kind)[: plan.requests]
        ]
        random.Random(SEED).shuffle(jobs)
        requests: list[TracedRequest] = []
        for start in range(0, len(jobs), plan.streams):
            if time.monotonic() - began > plan.seconds:
                print_line(f"recorded {start} of {len(jobs)} requests in {plan.seconds:.0f} s")
                break
            requests.extend(self._record(jobs[start : start + plan.streams]))
        self._time_steps(print_line)
        costs = fit_costs(self._planner.outcomes, [traits.name for traits in self.traits])
        return Trace(plan.name, self.traits, costs, tuple(requests))

    def _record(self, jobs: Sequence[tuple[str, float, Messages]]) -> Iterator[TracedRequest]:
        """Runs requests together, with every proposer drafting at every position."""
        original = self._dispatch.propose
        self._dispatch.propose = lambda plan, step: self._draft_all(original, plan, step)
        try:
            ids = [self._add(chat, t, self._plan.max_tokens) for _, t, chat in jobs]
            answers = self._run()
        finally:
            del self._dispatch.propose
        for (kind, temperature, _), request_id in zip(jobs, ids, strict=True):
            prompt, answer = answers[request_id]
            kind_of = RequestClass.SAMPLED if temperature > 0 else RequestClass.GREEDY
            drafted, accepted = compare(self._drafted, request_id, prompt, answer, self.traits)
            yield TracedRequest(kind, kind_of, len(prompt), drafted, accepted)
        self._drafted.clear()

    def _draft_all(self, propose: Callable[..., Any], plan: StepPlan, step: Any) -> Any:
        """Calls every proposer for the plan's rows; returns no drafts, and the work of all."""
        batch = self._runner.input_batch
        ids = [request_id for requests in plan.shadows.values() for request_id in requests]
        lengths = {r: int(batch.num_tokens_no_spec[batch.req_id_to_index[r]]) for r in ids}
        total_report = None
        for traits in self.traits:
            method = SpecMethod(traits.name, traits.num_speculative_tokens)
            drafts, report = propose(StepPlan(dict.fromkeys(ids, method)), step)
            if report.faults:
                raise RuntimeError(f"{traits.name} failed: {report.faults[traits.name]}")
            for request_id in ids:
                tokens = [int(t) for t in drafts[batch.req_id_to_index[request_id]]]
                # vLLM adds a dash and a random text to the id.
                key = request_id.partition("-")[0], lengths[request_id]
                self._drafted.setdefault(key, []).append(tokens)
            if total_report is None:
                total_report = report
            else:
                total_report.work.extend(report.work)
        return [[] for _ in step.num_sampled], total_report

    def _time_steps(self, print_line: PrintLine) -> None:
        """Random plans at several numbers of rows."""
        self._planner.timing, prompts = True, _endless()
        for rows in TIMED_ROWS:
            num_outcomes = len(self._planner.outcomes) + self._plan.timed_steps
            began = time.monotonic()
            while len(self._planner.outcomes) < num_outcomes:
                for chat in islice(prompts, rows):
                    self._add(chat, 0.0, TIMED_TOKENS)
                self._run()
                if time.monotonic() - began > self._plan.seconds / 4:
                    break
            print_line(f"timed steps of {rows} rows: {len(self._planner.outcomes)} in total")
        self._planner.timing = False

    def _add(self, chat: Messages, temperature: float, max_tokens: int) -> str:
        from vllm import SamplingParams

        from engine_adapter.vllm_engine.wire import to_extra_args

        method = SpecMethod(AUTO, max(t.num_speculative_tokens for t in self.traits))
        params = SamplingParams(
            temperature=temperature,
            seed=SEED if temperature > 0 else None,
            max_tokens=max_tokens,
            ignore_eos=True,
            extra_args=to_extra_args(SpecDecodeParams(method, pinned=True)),
        )
        ids = self._tokenizer.apply_chat_template(
            chat, add_generation_prompt=True, return_dict=False
        )
        request_id = f"recorded{next(self._number)}"
        self._engine.add_request(request_id, {"prompt_token_ids": list(ids)}, params)
        return request_id

    def _run(self) -> dict[str, tuple[list[int], list[int]]]:
        """Steps until all requests have ended; request id -> the tokens of prompt and answer."""
        answers = {}
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    answer = list(output.outputs[0].token_ids)
                    answers[output.request_id] = list(output.prompt_token_ids), answer
        return answers


def compare(
    drafted: Drafted,
    request_id: str,
    prompt: Sequence[int],
    answer: Sequence[int],
    traits: Sequence[ProposerTraits],
) -> tuple[Any, Any]:
    """The counts of `TracedRequest`: tokens drafted, and those that the answer continues with."""
    counts = np.zeros((len(answer), len(traits)), np.int8)
    accepted = np.zeros_like(counts)
    for position in range(1, len(answer)):
        drafts = drafted.get((request_id, len(prompt) + position), [[]] * len(traits))
        for j, tokens in enumerate(drafts):
            counts[position, j] = len(tokens)
            num_equal = 0
            for draft_token, answer_token in zip(tokens, answer[position:], strict=False):
                if draft_token != answer_token:
                    break
                num_equal += 1
            accepted[position, j] = num_equal
    return counts, accepted


def record(plan: RecordPlan, print_line: PrintLine) -> Trace:
    """Starts an engine and records; see the module."""
    os.environ.update({**os.environ, **ENVIRONMENT})
    return Recorder(plan).record(print_line)


def _endless() -> Iterator[Messages]:
    order = random.Random(SEED)
    prompts = [chat for kind in KINDS for chat in chats(kind)]
    while True:
        yield order.choice(prompts)
