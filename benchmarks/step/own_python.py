"""`python -m benchmarks.step.own_python`: CPU time of Specgate's own code in a step.

It runs without a model. All that Specgate adds to vLLM's step runs: the scheduler's plan, the
runner's hooks that follow it, verification, dispatch, the proposer, and the counts. Target and
sampler are left out: their tokens are made up. With `--profile`, the functions of the first case
that take longest.
"""

import cProfile
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from benchmarks.profiles import profile_rows
from engine_adapter.policies.planner import Planner
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.counts import StepKind
from engine_adapter.seam.types import NONE, SpecDecodeParams, SpecMethod
from engine_adapter.vllm_engine.core.counting import StepSize
from engine_adapter.vllm_engine.core.row_table import RowTable
from engine_adapter.vllm_engine.wire import SpecgateConfig
from engine_adapter.vllm_engine.worker.dispatch import ProposerDispatch
from engine_adapter.vllm_engine.worker.request_rows import RequestRows
from engine_adapter.vllm_engine.worker.runner import RunnerHooks
from engine_adapter.vllm_engine.worker.step_drafts import StepDrafts
from engine_adapter.vllm_engine.worker.verification.exact_match import accept_matching

CASES = (
    ("ngram", 256),
    ("ngram", 64),
    ("ngram", 1),
    ("suffix", 256),
    (NONE, 256),
)
"""Method and rows."""

K, LENGTH, TOKENS, VOCABULARY = 5, 600, 30, 1000
"""Drafts of a row; its mean length; how many different tokens it has; the target's tokens."""

WARM_UP, STEPS = 10, 60

PARTS = ("schedule", "follow", "verify", "draft", "count")

TABLE_HEAD = (
    "| method | rows | rows with drafts | schedule | follow | verify | draft | count | ms |",
    "|---|---|---|---|---|---|---|---|---|",
)


@dataclass
class _Clock:
    """Milliseconds of CPU time of each part, step by step."""

    spent: dict[str, list[float]] = field(default_factory=lambda: {part: [] for part in PARTS})
    profiler: cProfile.Profile | None = None

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """A scope that belongs to a part."""
        if self.profiler:
            self.profiler.enable()
        began = time.thread_time()
        yield
        self.spent[name].append(1e3 * (time.thread_time() - began))
        if self.profiler:
            self.profiler.disable()


class _VllmsSteps:
    """In the place of vLLM's runner. Its tokens are made up before the clock runs."""

    inputs: torch.Tensor
    samples: torch.Tensor

    def finish_requests(self, scheduler_output: Any) -> None:
        """No request ends."""

    def update_requests(self, scheduler_output: Any) -> None:
        """No request gets blocks."""

    def sample(self, hidden_states: Any, input_batch: Any, grammar_output: Any) -> Any:
        """Verifies the drafts, if there are any, as `ExactMatch` does after vLLM's sampler."""
        width = int(np.diff(input_batch.cu_num_logits_np).max())
        if width == 1:
            counts = torch.ones(len(input_batch.req_ids), dtype=torch.int32)
            return SimpleNamespace(sampled_token_ids=self.samples[:, None]), counts, None
        starts = input_batch.cu_num_logits
        emitted, counts = accept_matching(self.samples, self.inputs, starts, width)
        return SimpleNamespace(sampled_token_ids=emitted), counts, None


class _Runner(RunnerHooks, _VllmsSteps):
    """The runner's hooks around made-up requests, which never end."""

    def __init__(self, method: str, rows: int) -> None:
        self._rng = np.random.default_rng(0)
        self.device, self.max_model_len, self._capacity = torch.device("cpu"), 4 * LENGTH, K
        self.lora_config, self.sampler = None, SimpleNamespace(rule=None)
        self.rows, self.names = np.arange(rows), [f"request-{row}" for row in range(rows)]
        lengths = self._rng.integers(LENGTH // 2, LENGTH * 3 // 2, rows).astype(np.int32)
        params = SimpleNamespace(extra_args=None)
        self.requests = {name: SimpleNamespace(sampling_params=params) for name in self.names}
        states = SimpleNamespace(
            max_num_reqs=rows,
            max_model_len=self.max_model_len,
            req_id_to_index={name: row for row, name in enumerate(self.names)},
            index_to_req_id=dict(enumerate(self.names)),
            num_computed_tokens_np=lengths - 1,
            prompt_len=SimpleNamespace(np=lengths - 5),
        )
        self.states, self.input_batch = states, RequestRows(states)
        text = self._rng.integers(0, TOKENS, self.input_batch.token_ids_cpu.shape)
        self.input_batch.token_ids_cpu[:] = text
        self.input_batch.num_tokens_no_spec[:] = lengths
        self._drafts = StepDrafts(self, K)
        self.drafter = _dispatch(method, self)

    def batch(self, drafts: Sequence[Sequence[int]]) -> Any:
        """vLLM's `InputBatch` of a step that verifies these drafts of each row.

        Half of the drafts will be accepted.
        """
        sizes = np.array([1 + len(of_row) for of_row in drafts])
        starts = np.concatenate([[0], sizes.cumsum()])
        inputs = [token for of_row in drafts for token in (TOKENS, *of_row)]
        samples = np.array([*inputs[1:], 0])
        last_places, is_missed = starts[1:] - 1, self._rng.random(len(samples)) < 0.5
        samples[is_missed] = TOKENS
        samples[last_places] = self._rng.integers(0, TOKENS, len(last_places))
        self.inputs, self.samples = torch.tensor(inputs), torch.from_numpy(samples)
        self.states.num_computed_tokens_np = self.input_batch.num_tokens_no_spec - 1
        return SimpleNamespace(
            req_ids=self.names,
            idx_mapping_np=self.rows,
            num_tokens=len(inputs),
            logits_indices=torch.arange(len(inputs)),
            cu_num_logits=torch.from_numpy(starts.astype(np.int32)),
            cu_num_logits_np=starts,
        )


def _dispatch(method: str, runner: Any) -> ProposerDispatch:
    specs = parse_specs([{"name": method, "num_speculative_tokens": K}])
    sizes = SimpleNamespace(
        get_vocab_size=lambda: VOCABULARY, get_hidden_size=lambda: 1, dtype=torch.float32
    )
    dispatch = ProposerDispatch(
        SimpleNamespace(
            additional_config=SpecgateConfig(specs).to_additional_config(), model_config=sizes
        )
    )
    dispatch.bind(runner)
    dispatch.load_model(torch.nn.Identity())
    return dispatch


class _World:
    """The steps of one case.

    Attributes:
        clock: what they took.
        drafts: of each row, after the newest step.
    """

    def __init__(self, method: str, rows: int) -> None:
        self.clock = _Clock()
        self.runner = _Runner("ngram" if method == NONE else method, rows)
        traits = SpecgateConfig(self.runner.drafter.host.specs).traits
        self._table = RowTable(Planner(traits, K), self.runner.max_model_len)
        spec_method = SpecMethod(method, 0 if method == NONE else K)
        for name in self.runner.names:
            self._table.admit(name, SpecDecodeParams(spec_method, pinned=True), False)
        fields = {"max_tokens": 10**6, "num_output_tokens": 5, "is_prefill_chunk": False}
        self._requests = {
            name: SimpleNamespace(num_tokens=0, **fields) for name in self.runner.names
        }
        self.drafts: list[Sequence[int]] = [[] for _ in range(rows)]
        self._hidden = torch.empty(rows * (K + 1), 1)

    def step(self) -> None:
        """One step: all parts in the order of vLLM's."""
        runner, table = self.runner, self._table
        names, lengths = runner.names, runner.input_batch.num_tokens_no_spec.copy()
        for name, length in zip(names, lengths.tolist(), strict=True):
            self._requests[name].num_tokens = length
        by_name = dict(zip(names, self.drafts, strict=True))
        verified = {name: tokens for name, tokens in by_name.items() if tokens}
        scheduled = {name: 1 + len(tokens) for name, tokens in by_name.items()}
        batch = runner.batch(self.drafts)
        with self.clock.part("schedule"):
            table.start_step()
            plan = table.plan(scheduled, verified, self._requests)
        output = _output(scheduled, plan)
        with self.clock.part("follow"):
            runner._drafts.begin_step(output)
            runner.finish_requests(output)
            runner.update_requests(output)
        with self.clock.part("verify"):
            _, num_sampled, num_rejected = runner.sample(self._hidden, batch, None)
        with self.clock.part("draft"):
            runner.draft(batch, {}, self._hidden, None, (num_sampled, num_rejected))
            runner.take_draft_token_ids()
        self.drafts = [runner._drafts.drafts.get(name, []) for name in names]
        emitted = dict(zip(names, num_sampled.tolist(), strict=True))
        report = runner._drafts.report
        outputs = [
            SimpleNamespace(request_id=name, new_token_ids=[0] * count)
            for name, count in emitted.items()
        ]
        with self.clock.part("count"):
            self._count(outputs, verified, report, sum(scheduled.values()))

    def _count(
        self, outputs: Sequence[Any], verified: Mapping[str, Any], report: Any, tokens: int
    ) -> None:
        table, size = self._table, (len(outputs), tokens, tokens - len(outputs))
        table.start_count(report)
        for output in outputs:
            if drafts := verified.get(output.request_id):
                accepted = len(output.new_token_ids) - 1
                table.count_verified(output.request_id, len(drafts), accepted)
        table.count_outputs(outputs)
        table.end_count(StepSize(StepKind.VERIFY, *size))
        table.step_stats()


def _output(scheduled: Mapping[str, int], plan: Any) -> Any:
    """What the hooks read of vLLM's `SchedulerOutput` in a step in which nothing changes."""
    names = list(scheduled)
    cached = SimpleNamespace(
        req_ids=names, new_block_ids=[None for _ in names], resumed_req_ids=set()
    )
    return SimpleNamespace(
        **dict.fromkeys(("kv_cache_block_copies", "preempted_req_ids")),
        finished_req_ids=set(),
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
        num_scheduled_tokens=scheduled,
        specgate_plan=plan,
        specgate_quarantined=frozenset(),
        specgate_constraints={},
    )


def table_rows(cases: Sequence[tuple[str, int]] = CASES) -> Iterator[str]:
    """A row for each case: medians over the steps, of each part and of their sum."""
    for method, rows in cases:
        world = _World(method, rows)
        for number in range(WARM_UP + STEPS):
            if number == WARM_UP:
                world.clock = _Clock()
            world.step()
        drafting = sum(map(bool, world.drafts))
        spent = world.clock.spent
        parts = " | ".join(f"{statistics.median(spent[part]):.2f}" for part in PARTS)
        total = statistics.median(map(sum, zip(*spent.values(), strict=True)))
        yield f"| `{method}` | {rows} | {drafting} | {parts} | {total:.2f} |"


def profile_steps(case: tuple[str, int]) -> cProfile.Profile:
    """The profile of the steps of one case."""
    world = _World(*case)
    for _ in range(WARM_UP):
        world.step()
    profile = cProfile.Profile(time.thread_time)
    world.clock = _Clock(profiler=profile)
    for _ in range(STEPS):
        world.step()
    return profile


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode():
        if "--profile" in sys.argv:
            print(*profile_rows(profile_steps(CASES[0]), STEPS), sep="\n")
        else:
            print(*TABLE_HEAD, *table_rows(), sep="\n")
