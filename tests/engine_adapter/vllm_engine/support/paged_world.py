"""A small serving world around the dispatch: scheduler, block pool, prefix cache, toy models.

All code of Specgate between the scheduler's output and the drafts is real. vLLM around it is
simulated in `toy_scheduler`, `block_pool` and `toy_batches`, the forward passes in `toy_models`.
`step_checks` checks each step.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from types import MethodType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.policies.contract import StepPlan
from engine_adapter.proposers.contract import ProposerSpec
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.proposers.vocabulary_map import VocabularyMap
from engine_adapter.seam.types import NONE, SpecMethod
from engine_adapter.vllm_engine.wire import DraftReport, SpecgateConfig
from engine_adapter.vllm_engine.worker import proposer_host as host_module
from engine_adapter.vllm_engine.worker.dispatch import ProposerDispatch
from engine_adapter.vllm_engine.worker.drafting import model_passes
from engine_adapter.vllm_engine.worker.drafting import paged_block_head as block_head_module
from engine_adapter.vllm_engine.worker.drafting import paged_head as head_module
from engine_adapter.vllm_engine.worker.drafting import paged_model as draft_module
from engine_adapter.vllm_engine.worker.drafting.draft_noise import DraftNoise
from engine_adapter.vllm_engine.worker.drafting.early_drafts import UnreadStep
from engine_adapter.vllm_engine.worker.drafting.mapped_vocabulary import (
    MappedVocabulary,
    SameVocabulary,
)
from engine_adapter.vllm_engine.worker.runner import RunnerHooks
from engine_adapter.vllm_engine.worker.target import TargetStep
from tests.engine_adapter.vllm_engine.support.block_pool import BlockPool
from tests.engine_adapter.vllm_engine.support.dispatch_harness import idle_sampler
from tests.engine_adapter.vllm_engine.support.step_checks import StepChecks, StepResult
from tests.engine_adapter.vllm_engine.support.toy_batches import NUM_ROWS, ToyBatches
from tests.engine_adapter.vllm_engine.support.toy_block_head import ToyBlockHead
from tests.engine_adapter.vllm_engine.support.toy_models import (
    VOCAB,
    ToyDraft,
    ToyHead,
    ToyLoaded,
    target_next,
    target_states,
)
from tests.engine_adapter.vllm_engine.support.toy_scheduler import CAPACITY, Request, ToyScheduler

PROPOSERS = (
    {"name": "twin", "method": "draft_model", "model": "toy/1"},
    {"name": "stranger", "method": "draft_model", "model": "toy/2"},
    {"name": "ngram", "prompt_lookup_min": 1},
)
HEADS = (
    {"name": "twin", "method": "eagle", "model": "toy/5"},
    {"name": "stranger", "method": "eagle3", "model": "toy/6/0,4"},
    {"name": "third", "method": "eagle3", "model": "toy/7/2,4"},
    {"name": "block", "method": "dflash", "model": "toy/8/1,3", "num_speculative_tokens": 6},
    {"name": "spark", "method": "dspark", "model": "toy/9/1,3", "num_speculative_tokens": 6},
    {"name": "ngram", "prompt_lookup_min": 1},
)
"""Heads with the names of the draft models, so that they can replace them."""

LEAN_HEADS = tuple(
    {**fields, "keep_states": False}
    if fields["name"] in ("twin", "stranger", "block", "spark")
    else fields
    for fields in HEADS
)
"""The same; for some, the target's states are not kept."""

AnyToyHead = ToyHead | ToyBlockHead
PLAIN_REQUEST = SimpleNamespace(
    mm_features=[], sampling_params=SimpleNamespace(structured_outputs=None)
)


class World:
    """Requests, their blocks, and the dispatch that drafts for them.

    Args:
        monkeypatch: replaces vLLM's models by toy models.
        chunk: the most tokens of a prompt that one request computes in a step.
        budget: tokens of one forward pass of a draft model.
        kernel_size: tokens per kernel block of the first KV cache group; it divides `block_size`.
        other_groups: tokens per block of further groups; every draft model has layers in each.
        draft_contexts: proposer -> its context length, where it is less than the target's.
        ranks: the number of tensor-parallel ranks; this is one of them.
        shares_at_once: see `ToyScheduler`.
        vocabularies: draft model -> its vocabulary, where it has another one than the target.
        early: models draft before the dispatch has the tokens of a step, where they can.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        proposers: Sequence[Mapping[str, Any]] = PROPOSERS,
        num_blocks: int = 200,
        block_size: int = 4,
        kernel_size: int = 4,
        other_groups: Sequence[int] = (),
        max_model_len: int = 96,
        chunk: int = 1000,
        budget: int = 1000,
        draft_contexts: Mapping[str, int] | None = None,
        ranks: int = 1,
        vocabularies: Mapping[str, VocabularyMap] | None = None,
        shares_at_once: bool = False,
        early: bool = False,
        seed: int = 0,
    ) -> None:
        loaded = partial(ToyLoaded, self)
        monkeypatch.setattr(draft_module, "LoadedDraft", loaded)
        monkeypatch.setattr(model_passes, "map_draft_vocabulary", self._map_vocabulary)
        monkeypatch.setattr(head_module, "LoadedHead", loaded)
        monkeypatch.setattr(host_module, "PagedDraftModel", ToyDraft)
        monkeypatch.setattr(host_module, "PagedHead", ToyHead)
        monkeypatch.setattr(block_head_module, "LoadedBlockHead", loaded)
        monkeypatch.setattr(host_module, "PagedBlockHead", ToyBlockHead)
        self.num_blocks, self.early, self._rng = num_blocks, early, np.random.default_rng(seed)
        self.block_sizes = (block_size, *other_groups)
        self.kernel_sizes = (kernel_size, *other_groups)
        self.max_model_len, self.budget = max_model_len, budget
        self.draft_contexts, self.ranks = draft_contexts or {}, ranks
        self.vocabularies = vocabularies or {}
        pool = BlockPool(num_blocks, self.block_sizes)
        self.free = pool.free
        self.scheduler = ToyScheduler(pool, max_model_len, chunk, shares_at_once=shares_at_once)
        self.requests, self.waiting = self.scheduler.requests, self.scheduler.waiting
        self.batches = ToyBatches(
            num_blocks, self.block_sizes, self.kernel_sizes, max_model_len, seed
        )
        self.batch: Any = None
        self.num_early = 0
        self.dispatch = self._start_dispatch(proposers)
        toys = {name: self.toy(name) for name in self.dispatch.host.draft_models}
        self.checks = StepChecks(toys, self.requests, self.block_sizes)

    def _start_dispatch(self, proposers: Sequence[Mapping[str, Any]]) -> ProposerDispatch:
        self.runner = SimpleNamespace(
            world=self,
            device=torch.device("cpu"),
            max_model_len=self.max_model_len,
            parallel_config=SimpleNamespace(world_size=self.ranks),
            input_batch=SimpleNamespace(req_id_to_index={}),
            max_num_reqs=NUM_ROWS,
            requests=defaultdict(lambda: PLAIN_REQUEST),
            sampler=idle_sampler(),
            draft_noise=DraftNoise(None),
        )
        config = SpecgateConfig(parse_specs(proposers))
        dispatch = ProposerDispatch(
            SimpleNamespace(
                additional_config=config.to_additional_config(),
                cache_config=SimpleNamespace(block_size=self.block_sizes[0]),
                compilation_config=SimpleNamespace(static_forward_context={}),
                structured_outputs_config=SimpleNamespace(backend="none"),
                num_speculative_tokens=CAPACITY,
                model_config=SimpleNamespace(
                    get_vocab_size=lambda: VOCAB, get_hidden_size=lambda: 1, dtype=torch.float64
                ),
            )
        )
        self.runner.row_options = MethodType(RunnerHooks.row_options, self.runner)
        dispatch.bind(self.runner)
        dispatch.load_model(None)  # type: ignore[arg-type]
        groups = [
            SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=size), layer_names=[])
            for size in self.block_sizes
        ]
        models = dispatch.host.draft_models.values()
        heads = [m for m in models if isinstance(m, AnyToyHead) and m._states is not None]
        for gid, group in enumerate(groups):
            group.layer_names = [f"{model._loaded.prefix}.{gid}" for model in models]
        groups[-1].layer_names += [states_of(head).name for head in heads]
        self.layers = [group.layer_names for group in groups]
        kv_cache = SimpleNamespace(num_blocks=self.num_blocks, kv_cache_groups=groups)
        dispatch.bind_kv_cache(kv_cache, list(self.kernel_sizes))
        for head in heads:
            size = self.kernel_sizes[-1]
            blocks = self.num_blocks * self.block_sizes[-1] // size
            # Where vLLM has several groups, it pads the blocks of some layers.
            padded = size + (3 if len(groups) > 1 else 0)
            cache = torch.full((blocks, 1, padded, 1), -1.0, dtype=torch.float64)
            states_of(head).bind_kv_cache(cache[:, :, :size])
        return dispatch

    def _map_vocabulary(
        self, spec: ProposerSpec, target: Any, draft: Any, device: torch.device
    ) -> MappedVocabulary | SameVocabulary:
        mapped = self.vocabularies.get(spec.name)
        if mapped is None:
            return SameVocabulary(VOCAB)
        return MappedVocabulary(mapped, VOCAB, device)

    def toy(self, name: str) -> ToyDraft | ToyHead | ToyBlockHead:
        model = self.dispatch.host.draft_models[name]
        assert isinstance(model, ToyDraft | ToyHead | ToyBlockHead)
        return model

    def run_random(self, methods: Sequence[SpecMethod], seed: int) -> Counter[str]:
        """220 steps of requests that come, switch and end at random; counts of what happened."""
        rng = np.random.default_rng(seed)
        stems = [rng.integers(0, VOCAB, 30).tolist() for _ in range(3)]
        counts: Counter[str] = Counter()

        def any_method() -> SpecMethod:
            chosen = methods[int(rng.integers(len(methods)))]
            k = int(rng.integers(1, 7)) if chosen.num_speculative_tokens else 0
            return SpecMethod(chosen.proposer, k)

        for i in range(220):
            if len(self.requests) < 8 and rng.random() < 0.3:
                stem = stems[int(rng.integers(3))][: int(rng.integers(1, 30))]
                tail = rng.integers(0, VOCAB, int(rng.integers(0, 25))).tolist()
                self.add(f"r{i}", stem + tail, any_method(), int(rng.integers(5, 60)))
            for request in self.requests.values():
                if rng.random() < 0.2:
                    request.method = any_method()
            if self.requests and rng.random() < 0.03:
                self.finish(str(rng.choice(list(self.requests))))
            result = self.step()
            counts["preempted"] += len(result.preempted)
            counts["hits"] += sum(result.hits.values())
            counts["drafted"] += sum(map(len, result.drafts.values()))
            counts["accepted"] += sum(max(count - 1, 0) for count in result.emitted.values())
            counts["caught up"] += sum(result.report.catchup.values())
            counts["early"] += self.num_early
        return counts

    # -- requests ----------------------------------------------------------------------------

    def add(
        self, request_id: str, prompt: Sequence[int], method: SpecMethod, max_tokens: int = 1000
    ) -> Request:
        request = Request(request_id, list(prompt), len(prompt), method, max_tokens)
        self.scheduler.add(request)
        return request

    def finish(self, request_id: str) -> None:
        """The request ends between two steps; its blocks stay in the prefix cache."""
        self.scheduler.finish(request_id)

    def preempt(self, request_id: str) -> None:
        """The request loses its blocks and waits."""
        self.scheduler.preempt(request_id)

    # -- a step ------------------------------------------------------------------------------

    def step(self) -> StepResult:
        """Schedules, runs the target, drafts, and checks every draft."""
        schedule, output = self.scheduler.schedule()
        scheduled = schedule.counts
        self.dispatch.observe(output)
        before = {name: self.requests[name].computed for name in scheduled}
        plan = self.scheduler.plan(scheduled)
        self._store_states(scheduled)
        unread = self._batch(before)
        verified = {name: len(self.requests[name].pending) for name in scheduled}
        sampled = {name: self._run_target(name, count) for name, count in scheduled.items()}
        for name in self.dispatch.host.draft_models:
            self.toy(name).fed.clear()
        if self.early and scheduled:
            self.batch = self.runner.input_batch = unread
            self._draft_early(plan, scheduled, verified, sampled)
        self.batch = self.runner.input_batch = self._batch(before)
        drafts, report = self._draft(plan, scheduled, sampled)
        result = StepResult(
            drafts=drafts,
            emitted={name: len(tokens) for name, tokens in sampled.items()},
            fed=self.checks.fed(),
            report=report,
            preempted=schedule.preempted,
            hits=schedule.hits,
        )
        self.checks.check(plan.drafts, before, result)
        for name in scheduled:
            request = self.requests[name]
            request.pending = list(drafts[name])
            request.drafted_by = plan.drafts[name].proposer if request.pending else NONE
        self.scheduler.end_step(scheduled)
        return result

    def _draft(
        self,
        plan: StepPlan,
        scheduled: dict[str, int],
        sampled: Mapping[str, list[int]],
    ) -> tuple[dict[str, list[int]], DraftReport]:
        row_of, emitted = self.batch.req_id_to_index, np.zeros(NUM_ROWS, np.int64)
        for name, tokens in sampled.items():
            emitted[row_of[name]] = len(tokens)
        nothing = torch.empty(0, 1)
        step = TargetStep(
            scheduled,
            emitted,
            np.arange(len(emitted)),
            np.arange(len(emitted) + 1),
            nothing,
            nothing,
        )
        drafts, report = self.dispatch.propose(plan, step)
        return {name: list(drafts[row_of[name]]) for name in scheduled}, report

    def _batch(self, before: Mapping[str, int]) -> Any:
        return self.batches.make(self.requests, self.scheduler.running, before)

    def _draft_early(
        self,
        plan: StepPlan,
        scheduled: Mapping[str, int],
        verified: Mapping[str, int],
        sampled: Mapping[str, list[int]],
    ) -> None:
        """What the dispatch does while the tokens of the step are known to the device only."""
        names = list(scheduled)
        self._rng.shuffle(names)
        num_drafts = np.array([verified[name] for name in names])
        emitted = self._rng.integers(0, VOCAB, (len(names), int(num_drafts.max()) + 1))
        for row, name in zip(emitted, names, strict=True):
            row[: len(sampled[name])] = sampled[name]
        rejected = [
            verified[name] + 1 - len(sampled[name]) if sampled[name] else 0 for name in names
        ]
        step = UnreadStep(
            np.array([self.batch.req_id_to_index[name] for name in names]),
            np.array([scheduled[name] for name in names]),
            num_drafts,
            torch.from_numpy(emitted),
            np.arange(len(names)),
            torch.tensor(rejected, dtype=torch.int32),
        )
        self.dispatch.propose_early(plan, step)
        models = self.dispatch.host.draft_models
        self.num_early = sum(len(self.toy(name)._early) for name in models)

    def _store_states(self, scheduled: Mapping[str, int]) -> None:
        """Stores the target's state of every token that it reads, rejected drafts included."""
        layers = (0, *self.dispatch.host.aux_layers)
        states: list[list[float]] = [[] for _ in layers]
        slots: list[list[int]] = [[] for _ in self.block_sizes]
        for name, count in scheduled.items():
            request = self.requests[name]
            span = slice(request.computed, request.computed + count)
            read = (request.tokens + request.pending)[: span.stop]
            for of_layer, layer in zip(states, layers, strict=True):
                of_layer += target_states(read, layer)[span]
            for gid, size in enumerate(self.block_sizes):
                blocks = request.group_blocks[gid]
                slots[gid] += [
                    blocks[p // size] * size + p % size for p in range(*span.indices(span.stop))
                ]
        final, *auxiliary = torch.tensor(states, dtype=torch.float64)[:, :, None]
        # vLLM's slots are padded.
        by_layer = {
            layer: torch.tensor([*of_group, -1])
            for names, of_group in zip(self.layers, slots, strict=True)
            for layer in names
        }
        self.dispatch.store_states(by_layer, final, auxiliary)

    def _run_target(self, name: str, count: int) -> list[int]:
        """Verifies the pending drafts; the tokens emitted, none in the middle of a prompt."""
        request = self.requests[name]
        if request.computed + count < len(request.tokens):
            request.computed += count
            return []
        emitted: list[int] = []
        for draft in [*request.pending, None]:
            emitted.append(target_next(request.tokens + emitted))
            if emitted[-1] != draft or len(request.tokens) + len(emitted) >= self.max_model_len:
                break
        request.computed = len(request.tokens) + len(emitted) - 1
        request.tokens.extend(emitted)
        return emitted


def states_of(head: AnyToyHead) -> Any:
    """The layer with the target's hidden states."""
    assert head._states is not None
    return head._states
