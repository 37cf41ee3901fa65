"""`python -m benchmarks.step_python`: CPU time of Specgate's own code in a step, without a model.

All that Specgate adds to vLLM's step runs: the scheduler's hooks, dispatch, the proposer, the
preparation of the verification and its end, and the counts. Target and sampler are left out: their
tokens are made up. With `--profile`, the functions of the first case that take longest.
"""

import cProfile
import pstats
import statistics
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from engine_adapter.vllm_engine.worker.verification.seeding import GeneratorPool
from engine_adapter.vllm_engine.worker.verification.verifier import Verifier, VerifyInputs

from engine_adapter.counts import StepKind
from engine_adapter.policies.planner import Planner
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.types import SpecDecodeParams, SpecMethod
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.core.counting import StepSize
from engine_adapter.vllm_engine.core.row_table import RowTable
from engine_adapter.vllm_engine.wire import SpecgateConfig
from engine_adapter.vllm_engine.worker.dispatch import ProposerDispatch
from engine_adapter.vllm_engine.worker.runner import RunnerHooks
from engine_adapter.vllm_engine.worker.target import TargetStep

CASES = (
    ("ngram", 256, ""),
    ("ngram", 64, ""),
    ("ngram", 8, ""),
    ("ngram", 256, "seeds"),
    ("ngram", 256, "penalties"),
    ("suffix", 256, ""),
)
"""Method, rows, and what their requests ask for."""

K, LENGTH, TOKENS, VOCABULARY = 5, 600, 30, 1000
"""Drafts of a row; its mean length; how many different tokens it has; the target's tokens."""

WARM_UP, STEPS, SHOWN = 10, 60, 40

PARTS = ("schedule", "verify", "draft", "count")

TABLE_HEAD = (
    "| method | rows | requests with | rows with drafts | schedule | verify | draft | count | ms |",
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


class _Runner(RunnerHooks):
    """The runner's hooks around a batch of made-up rows, which never end."""

    def __init__(self, method: str, rows: int, asks: str) -> None:
        self._rng = np.random.default_rng(0)
        self.device, self.max_model_len = torch.device("cpu"), 4 * LENGTH
        ids = [f"request-{row}" for row in range(rows)]
        lengths = self._rng.integers(LENGTH // 2, LENGTH * 3 // 2, rows).astype(np.int32)
        params = SimpleNamespace(seed=7 if asks == "seeds" else None, extra_args=None)
        self.requests = {name: SimpleNamespace(sampling_params=params) for name in ids}
        seeded = {row: torch.Generator() for row in range(rows)} if asks == "seeds" else {}
        text = self._rng.integers(0, TOKENS, (rows, self.max_model_len)).astype(np.int32)
        self.input_batch = SimpleNamespace(
            num_reqs=rows,
            req_ids=ids,
            req_id_to_index={name: row for row, name in enumerate(ids)},
            num_tokens_no_spec=lengths,
            num_prompt_tokens=lengths - 5,
            num_computed_tokens_cpu=lengths - 1,
            token_ids_cpu=text,
            generators=seeded,
            sampling_metadata=_metadata(rows, asks),
        )
        self.drafts: list[list[int]] = [[] for _ in ids]
        self.rejection_sampler = Verifier(_Samples())
        self._generators = GeneratorPool(self.device)
        self.drafter = _dispatch(method, self)

    def metadata(self) -> Any:
        """vLLM's `SpecDecodeMetadata` of the drafts."""
        flat = [token for drafts in self.drafts for token in drafts]
        return SimpleNamespace(
            num_draft_tokens=[len(drafts) for drafts in self.drafts],
            draft_token_ids=torch.tensor(flat, dtype=torch.int32),
        )

    def verify(self, metadata: Any) -> Any:
        """Prepares the verification of the drafts, and ends it with the sampler's tokens."""
        counts = metadata.num_draft_tokens
        batch = self.input_batch
        drafted = self.drafter.sampled_drafts.pop_for_verification(
            batch.req_ids, batch.num_tokens_no_spec, counts
        )
        generators = self._seed_generators(metadata)
        assert not drafted
        sampling = self.input_batch.sampling_metadata
        logits = torch.empty(sum(counts) + len(counts), 1)
        inputs = VerifyInputs(drafted, generators)
        return self.rejection_sampler(metadata, inputs, logits, sampling)

    def commit(self, emitted: Sequence[Sequence[int]]) -> None:
        """Appends the tokens of the rows, as vLLM does."""
        batch = self.input_batch
        batch.num_computed_tokens_cpu = batch.num_tokens_no_spec - 1
        batch.num_tokens_no_spec = batch.num_tokens_no_spec + [len(tokens) for tokens in emitted]
        for row, tokens in enumerate(emitted):
            end = batch.num_tokens_no_spec[row]
            batch.token_ids_cpu[row, end - len(tokens) : end] = tokens

    def sample(self) -> torch.Tensor:
        """A token for each position: half of the drafts are accepted."""
        tokens = []
        for drafts in self.drafts:
            accepted = self._rng.random(len(drafts)) < 0.5
            tokens += [d if yes else TOKENS for d, yes in zip(drafts, accepted, strict=True)]
            tokens.append(int(self._rng.integers(TOKENS)))
        return torch.tensor(tokens)


class _Samples:
    """In the place of vLLM's sampler; what it returns is made before the clock runs."""

    logprobs_mode = "raw_logprobs"
    next = torch.empty(0)

    def __call__(self, logits: torch.Tensor, sampling_metadata: Any) -> Any:
        return SimpleNamespace(sampled_token_ids=self.next[:, None], logprobs_tensors=None)


def _metadata(rows: int, asks: str) -> Any:
    """What is read of vLLM's `SamplingMetadata`."""
    penalties, values = asks == "penalties", torch.full((rows,), 0.8)
    fields = {
        **dict.fromkeys(("frequency_penalties", "presence_penalties"), values),
        "repetition_penalties": values,
        "temperature": values if asks == "seeds" else None,
        **dict.fromkeys(("top_p", "top_k", "allowed_token_ids_mask")),
        "prompt_token_ids": torch.ones(rows, LENGTH, dtype=torch.int64) if penalties else None,
        "no_penalties": not penalties,
        "output_token_ids": [[1] * 100 for _ in range(rows)] if penalties else [],
        "bad_words_token_ids": {},
        "logitsprocs": compat.LogitsProcessors(),
        **dict.fromkeys(("generators", "spec_token_ids")),
    }
    return make_dataclass("Metadata", fields)(**fields)


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
    """The steps of one case."""

    def __init__(self, method: str, rows: int, asks: str) -> None:
        self.clock = _Clock()
        self.runner = _Runner(method, rows, asks)
        specs = self.runner.drafter.host.specs
        traits = SpecgateConfig(specs).traits
        self._table = RowTable(Planner(traits, K), self.runner.max_model_len)
        chosen = SpecMethod(method, K)
        ids = self.runner.input_batch.req_ids
        for name in ids:
            self._table.admit(name, SpecDecodeParams(chosen, pinned=True), False)
        fields = {"max_tokens": 10**6, "num_output_tokens": 5, "is_prefill_chunk": False}
        self._requests = {name: SimpleNamespace(num_tokens=0, **fields) for name in ids}

    def step(self) -> None:
        """One step: all parts in the order of vLLM's."""
        runner, batch, table = self.runner, self.runner.input_batch, self._table
        for name, length in zip(batch.req_ids, batch.num_tokens_no_spec.tolist(), strict=True):
            self._requests[name].num_tokens = length
        drafts = dict(zip(batch.req_ids, runner.drafts, strict=True))
        verified = {name: tokens for name, tokens in drafts.items() if tokens}
        scheduled = {name: 1 + len(tokens) for name, tokens in drafts.items()}
        batch.sampling_metadata.spec_token_ids = runner.drafts
        runner.rejection_sampler._sampler.next = runner.sample()
        with self.clock.part("schedule"):
            table.start_step()
            plan = table.plan(scheduled, verified, self._requests)
            runner.drafter.observe(_output(scheduled))
        metadata = runner.metadata()
        with self.clock.part("verify"):
            output = runner.verify(metadata)
        emitted = [[t for t in row if t >= 0] for row in output.sampled_token_ids.tolist()]
        runner.commit(emitted)
        with self.clock.part("draft"):
            first = TargetStep.first_of(metadata.num_draft_tokens)
            step = TargetStep(scheduled, emitted, first, torch.empty(0, 1))
            runner.drafts, report = runner.drafter.propose(plan, step)
        lengths = dict(zip(batch.req_ids, map(len, emitted), strict=True))
        with self.clock.part("count"):
            self._count(lengths, verified, report, sum(scheduled.values()))

    def _count(
        self, emitted: Mapping[str, int], verified: Mapping[str, Any], report: Any, tokens: int
    ) -> None:
        table, size = self._table, (len(emitted), tokens, tokens - len(emitted))
        table.start_count(report)
        for name, count in emitted.items():
            if name in verified:
                table.count_verified(name, len(verified[name]), count - 1)
            table.count_emitted(name, count)
        table.end_count(StepSize(StepKind.VERIFY, *size))
        table.attach_stats(())
        table.step_stats()


def _output(scheduled: Mapping[str, int]) -> Any:
    """What the dispatch reads of vLLM's `SchedulerOutput` in a step in which nothing changes."""
    cached = SimpleNamespace(req_ids=list(scheduled), new_block_ids=[], resumed_req_ids=set())
    return SimpleNamespace(
        **dict.fromkeys(("kv_cache_block_copies", "preempted_req_ids")),
        finished_req_ids=set(),
        scheduled_new_reqs=[],
        scheduled_cached_reqs=cached,
        specgate_quarantined=frozenset(),
        specgate_constraints={},
    )


def table_rows(cases: Sequence[tuple[str, int, str]] = CASES) -> Iterator[str]:
    """A row for each case: medians over the steps, of each part and of their sum."""
    for method, rows, asks in cases:
        world = _World(method, rows, asks)
        for number in range(WARM_UP + STEPS):
            if number == WARM_UP:
                world.clock = _Clock()
            world.step()
        drafting = sum(map(bool, world.runner.drafts))
        spent = world.clock.spent
        parts = " | ".join(f"{statistics.median(spent[part]):.2f}" for part in PARTS)
        total = statistics.median(map(sum, zip(*spent.values(), strict=True)))
        yield f"| `{method}` | {rows} | {asks} | {drafting} | {parts} | {total:.2f} |"


def profile_rows(case: tuple[str, int, str]) -> Iterator[str]:
    """The functions that take longest: calls in a step, and own and cumulative microseconds."""
    world = _World(*case)
    for number in range(WARM_UP + STEPS):
        if number == WARM_UP:
            world.clock = _Clock(profiler=cProfile.Profile(time.thread_time))
        world.step()
    found = []
    statistics_of = pstats.Stats(world.clock.profiler)
    for (file, _, name), (_, calls, own, total, _) in statistics_of.stats.items():  # type: ignore[attr-defined]
        place = f"{Path(file).stem}.{name}" if file.endswith(".py") else name
        found.append((1e6 * total / STEPS, 1e6 * own / STEPS, calls / STEPS, place))
    yield "| function | calls | own us | cumulative us |"
    yield "|---|---|---|---|"
    for total_us, own_us, calls_per_step, place in sorted(found, reverse=True)[:SHOWN]:
        yield f"| `{place}` | {calls_per_step:.1f} | {own_us:.0f} | {total_us:.0f} |"


if __name__ == "__main__":
    torch.set_num_threads(1)
    with torch.inference_mode():
        if "--profile" in sys.argv:
            print(*profile_rows(CASES[0]), sep="\n")
        else:
            print(*TABLE_HEAD, *table_rows(), sep="\n")
