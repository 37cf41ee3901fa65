"""A small serving world around the dispatch: scheduler, block pool, prefix cache, toy models.

Everything of Specgate's between the scheduler's output and the drafts is real. Simulated are
vLLM around it and the forward passes, whose toys are in `toy_models`.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from engine_adapter.interface import NONE, SpecMethod
from engine_adapter.policies.contract import RowView, StepView
from engine_adapter.policies.fixed import FixedPolicy
from engine_adapter.proposers.catalog import parse_specs
from engine_adapter.vllm_engine import dispatch as dispatch_module
from engine_adapter.vllm_engine import draft_head as head_module
from engine_adapter.vllm_engine import draft_model as draft_module
from engine_adapter.vllm_engine.dispatch import ProposerDispatch
from engine_adapter.vllm_engine.extension import Extension
from engine_adapter.vllm_engine.stats import DraftReport
from engine_adapter.vllm_engine.step import TargetStep
from tests.engine_adapter.vllm_engine.toy_models import (
    VOCAB,
    ToyDraft,
    ToyHead,
    ToyLoaded,
    target_next,
    target_states,
)

CAPACITY = 6

PROPOSERS = (
    {"name": "twin", "method": "draft_model", "model": "toy/1"},
    {"name": "stranger", "method": "draft_model", "model": "toy/2"},
    {"name": "ngram", "prompt_lookup_min": 1},
)
HEADS = (
    {"name": "twin", "method": "eagle", "model": "toy/5"},
    {"name": "stranger", "method": "eagle3", "model": "toy/6/0,4"},
    {"name": "third", "method": "eagle3", "model": "toy/7/2,4"},
    {"name": "ngram", "prompt_lookup_min": 1},
)
"""Heads under the names of the draft models, so that they can stand in their place."""


@dataclass
class Request:
    """A request of the simulated scheduler."""

    request_id: str
    tokens: list[int]
    prompt: int
    method: SpecMethod = field(default_factory=SpecMethod)
    max_tokens: int = 1000
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    pending: list[int] = field(default_factory=list)
    seen: bool = False
    drafted_by: str = NONE
    """Who drafted at the end of its last step, if it was not preempted since."""

    @property
    def finished(self) -> bool:
        return len(self.tokens) - self.prompt >= self.max_tokens


@dataclass
class StepResult:
    """What one step did."""

    drafts: Mapping[str, list[int]]
    emitted: Mapping[str, int]
    fed: Mapping[str, Mapping[str, list[int]]]
    """Proposer -> request -> committed positions that it read."""
    report: DraftReport | None
    preempted: list[str]
    hits: Mapping[str, int]


class World:
    """Requests, their blocks, and the dispatch that drafts for them.

    Args:
        monkeypatch: puts the toy model in the place of vLLM's.
        chunk: prompt tokens that one request reads in a step.
        budget: tokens of one forward pass of a draft model.
        kernel_size: tokens per kernel block, a divisor of `block_size`.
        draft_contexts: positions that a draft model knows, where fewer than the target's.
    """

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        proposers: Sequence[Mapping[str, Any]] = PROPOSERS,
        num_blocks: int = 200,
        block_size: int = 4,
        kernel_size: int = 4,
        max_model_len: int = 96,
        chunk: int = 1000,
        budget: int = 1000,
        draft_contexts: Mapping[str, int] | None = None,
        seed: int = 0,
    ) -> None:
        monkeypatch.setattr(draft_module, "LoadedDraft", ToyLoaded)
        monkeypatch.setattr(head_module, "LoadedHead", ToyLoaded)
        monkeypatch.setattr(dispatch_module, "PagedDraftModel", ToyDraft)
        monkeypatch.setattr(dispatch_module, "PagedHead", ToyHead)
        self.num_blocks, self.block_size, self.kernel_size = num_blocks, block_size, kernel_size
        self.max_model_len, self.chunk, self.budget = max_model_len, chunk, budget
        self.draft_contexts = draft_contexts or {}
        self.rng = np.random.default_rng(seed)
        self.requests: dict[str, Request] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []
        self.finished: set[str] = set()
        self.free = list(range(1, num_blocks))
        self.holders = np.zeros(num_blocks, int)
        self.cached: dict[tuple[int, ...], int] = {}
        self.key_of: dict[int, tuple[int, ...]] = {}
        self.batch: Any = None
        self.dispatch = self._start_dispatch(proposers)

    def _start_dispatch(self, proposers: Sequence[Mapping[str, Any]]) -> ProposerDispatch:
        self.runner = SimpleNamespace(
            world=self,
            device=torch.device("cpu"),
            max_model_len=self.max_model_len,
            input_batch=None,
        )
        extension = Extension(parse_specs(proposers))
        made = ProposerDispatch(
            SimpleNamespace(
                additional_config=extension.to_additional_config(),
                cache_config=SimpleNamespace(block_size=self.block_size),
                compilation_config=SimpleNamespace(static_forward_context={}),
                model_config=SimpleNamespace(
                    get_vocab_size=lambda: VOCAB, get_hidden_size=lambda: 1, dtype=torch.float64
                ),
            )
        )
        made.bind(self.runner)
        made.load_model(None)  # type: ignore[arg-type]
        group = SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=self.block_size))
        kv_cache = SimpleNamespace(num_blocks=self.num_blocks, kv_cache_groups=[group])
        for model in made.draft_models.values():
            model.bind_kv_cache(kv_cache, [self.kernel_size])
            if isinstance(model, ToyHead):
                blocks = self.num_blocks * self.block_size // self.kernel_size
                shape = (blocks, 1, self.kernel_size, 1)
                model._states.bind_kv_cache(torch.full(shape, -1.0, dtype=torch.float64))
        return made

    def toy(self, name: str) -> ToyDraft | ToyHead:
        model = self.dispatch.draft_models[name]
        assert isinstance(model, ToyDraft | ToyHead)
        return model

    def anything_goes(self, methods: Sequence[SpecMethod], seed: int) -> Counter[str]:
        """220 steps of requests that come, switch and end at random; what happened, counted."""
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
            counts["caught up"] += sum(result.report.catchup.values()) if result.report else 0
        return counts

    # -- requests ----------------------------------------------------------------------------

    def add(
        self, request_id: str, prompt: Sequence[int], method: SpecMethod, max_tokens: int = 1000
    ) -> Request:
        request = Request(request_id, list(prompt), len(prompt), method, max_tokens)
        self.requests[request_id] = request
        self.waiting.append(request_id)
        return request

    def finish(self, request_id: str) -> None:
        """The request ends between two steps; its blocks stay in the prefix cache."""
        request = self.requests.pop(request_id)
        self._release(request)
        self.finished.add(request_id)
        for queue in (self.running, self.waiting):
            if request_id in queue:
                queue.remove(request_id)

    def preempt(self, request_id: str) -> None:
        """The request loses its blocks and waits."""
        request = self.requests[request_id]
        self._release(request)
        request.computed, request.pending, request.drafted_by = 0, [], NONE
        self.running.remove(request_id)
        self.waiting.insert(0, request_id)

    # -- blocks ------------------------------------------------------------------------------

    def _release(self, request: Request) -> None:
        for block in reversed(request.blocks):
            self.holders[block] -= 1
            if not self.holders[block]:
                self.free.append(block)
        request.blocks = []

    def _allocate(self, request: Request, stop: int) -> list[int] | None:
        """Blocks up to the position `stop`, or `None` if there are too few."""
        count = -(-min(stop, self.max_model_len) // self.block_size) - len(request.blocks)
        if count > len(self.free):
            return None
        fresh = [self.free.pop(0) for _ in range(max(count, 0))]
        for block in fresh:
            self.holders[block] += 1
            if key := self.key_of.pop(block, None):
                del self.cached[key]
        request.blocks.extend(fresh)
        return fresh

    def _hit(self, request: Request) -> int:
        """Takes the full blocks of the prefix cache; how many tokens they hold."""
        hit = 0
        while hit + self.block_size < len(request.tokens):
            block = self.cached.get(tuple(request.tokens[: hit + self.block_size]))
            if block is None:
                break
            if not self.holders[block]:
                self.free.remove(block)
            self.holders[block] += 1
            request.blocks.append(block)
            hit += self.block_size
        return hit

    def _remember(self, request: Request) -> None:
        """Full blocks of computed tokens go into the prefix cache."""
        for i in range(request.computed // self.block_size):
            key = tuple(request.tokens[: (i + 1) * self.block_size])
            block = request.blocks[i]
            if key not in self.cached and block not in self.key_of:
                self.cached[key], self.key_of[block] = block, key

    # -- a step ------------------------------------------------------------------------------

    def step(self) -> StepResult:
        """Schedules, lets the target read and emit, drafts, and checks every draft."""
        scheduled, output, preempted, hits = self._schedule()
        self.dispatch.observe(output)
        before = {name: self.requests[name].computed for name in scheduled}
        plan = self._plan(scheduled)
        for name, count in scheduled.items():
            self._keep_states(self.requests[name], count)
        sampled = {name: self._run_target(name, count) for name, count in scheduled.items()}
        self._fill_batch(before)
        for name in self.dispatch.draft_models:
            self.toy(name).fed.clear()
        emitted = [sampled[name] for name in self.batch.req_ids]
        nothing = torch.empty(0, 1)
        step = TargetStep(scheduled, emitted, [0] * len(emitted), nothing)
        drafts = self.dispatch.propose(plan, step)
        result = StepResult(
            drafts=dict(zip(self.batch.req_ids, drafts, strict=True)),
            emitted={name: len(tokens) for name, tokens in sampled.items()},
            fed={name: self._fed(name) for name in self.dispatch.draft_models},
            report=self.dispatch.take_report(),
            preempted=preempted,
            hits=hits,
        )
        self._check(plan, sampled, before, result)
        for name in scheduled:
            request = self.requests[name]
            request.pending = list(result.drafts[name])
            request.drafted_by = plan[name].proposer if request.pending else NONE
            self._remember(request)
        for name in scheduled:
            if (
                self.requests[name].finished
                or len(self.requests[name].tokens) >= self.max_model_len
            ):
                self.finish(name)
        return result

    def _schedule(self) -> tuple[dict[str, int], Any, list[str], dict[str, int]]:
        scheduled: dict[str, int] = {}
        new, hits, preempted = [], {}, []
        cached = SimpleNamespace(
            req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set()
        )

        def note(request: Request, blocks: list[int]) -> None:
            cached.req_ids.append(request.request_id)
            cached.new_block_ids.append((blocks,) if blocks else None)
            cached.num_computed_tokens.append(request.computed)

        for name in list(self.running):
            if name not in self.running:
                continue
            request = self.requests[name]
            count = self._to_read(request)
            while (fresh := self._allocate(request, request.computed + count + CAPACITY)) is None:
                preempted.append(self.running[-1])
                self.preempt(self.running[-1])
                if name not in self.running:
                    break
            if fresh is not None:
                scheduled[name] = count
                note(request, fresh)
        while self.waiting and not preempted:
            request = self.requests[self.waiting[0]]
            request.computed = hits[request.request_id] = self._hit(request)
            count = self._to_read(request)
            if self._allocate(request, request.computed + count + CAPACITY) is None:
                self._release(request)
                request.computed = 0
                break
            self.running.append(self.waiting.pop(0))
            scheduled[request.request_id] = count
            if request.seen:
                note(request, list(request.blocks))
                cached.resumed_req_ids.add(request.request_id)
            else:
                held = (list(request.blocks),)
                new.append(SimpleNamespace(block_ids=held, num_computed_tokens=request.computed))
                request.seen = True
        output = SimpleNamespace(
            finished_req_ids=self.finished,
            scheduled_new_reqs=new,
            scheduled_cached_reqs=cached,
            kv_cache_block_copies=None,
            specgate_quarantined=frozenset(),
        )
        self.finished = set()
        return scheduled, output, preempted, hits

    def _to_read(self, request: Request) -> int:
        committed = len(request.tokens) - request.computed
        if committed > self.chunk:
            return self.chunk
        return committed + len(request.pending)

    def _plan(self, scheduled: Mapping[str, int]) -> Mapping[str, SpecMethod]:
        """As the scheduler does, from what is known before the step."""
        views = []
        for name, count in scheduled.items():
            request = self.requests[name]
            if not request.method.num_speculative_tokens:
                continue
            in_prompt = request.computed + count < len(request.tokens)
            left = request.max_tokens - (len(request.tokens) - request.prompt) - 1
            context = self.max_model_len - len(request.tokens) - 1
            room = 0 if in_prompt else max(0, min(left, context) - 1)
            if room or in_prompt:
                views.append(RowView(name, request.method, room))
        return FixedPolicy().plan(StepView(views))

    def _keep_states(self, request: Request, count: int) -> None:
        """What the target says of every token that it reads, rejected drafts among them."""
        positions = np.arange(request.computed, request.computed + count)
        read = (request.tokens + request.pending)[: request.computed + count]
        blocks = np.array(request.blocks)[positions // self.block_size]
        slots = torch.from_numpy(blocks * self.block_size + positions % self.block_size)

        def after(layer: int) -> torch.Tensor:
            return torch.tensor(target_states(read, layer), dtype=torch.float64)[positions, None]

        auxiliary = [after(layer) for layer in self.dispatch.aux_layers]
        self.dispatch.keep_states(slots, after(0), auxiliary)

    def _run_target(self, name: str, count: int) -> list[int]:
        """Verifies what was drafted; the tokens emitted, none in the middle of a prompt."""
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

    def _fill_batch(self, before: Mapping[str, int]) -> None:
        """The runner's batch after the step: rows in any order, junk wherever nobody may look."""
        names = list(before)
        self.rng.shuffle(names)
        ratio = self.block_size // self.kernel_size
        width = -(-self.max_model_len // self.block_size)
        tokens = self.rng.integers(0, VOCAB, (len(names), self.max_model_len)).astype(np.int32)
        table = self.rng.integers(0, self.num_blocks, (len(names), width)).astype(np.int32)
        for i, name in enumerate(names):
            request = self.requests[name]
            tokens[i, : len(request.tokens)] = request.tokens
            table[i, : len(request.blocks)] = request.blocks
        kernel = (table[:, :, None] * ratio + np.arange(ratio)).reshape(len(names), width * ratio)
        kernel = kernel.astype(np.int32)
        every = [self.requests[name] for name in names]
        self.batch = self.runner.input_batch = SimpleNamespace(
            req_ids=names,
            req_id_to_index={name: i for i, name in enumerate(names)},
            num_tokens_no_spec=np.array([len(r.tokens) for r in every], np.int32),
            num_prompt_tokens=np.array([r.prompt for r in every], np.int32),
            num_computed_tokens_cpu=np.array([before[name] for name in names], np.int32),
            token_ids_cpu=tokens,
            block_table=[
                SimpleNamespace(block_size=self.kernel_size, get_numpy_array=lambda: kernel)
            ],
        )

    # -- checks ------------------------------------------------------------------------------

    def _fed(self, name: str) -> dict[str, list[int]]:
        fed: dict[str, list[int]] = {}
        shift = self.toy(name)._shift
        for request_id, position, token in self.toy(name).fed:
            committed = self.requests[request_id].tokens[shift:]
            if position < len(committed):
                assert token == committed[position]
                fed.setdefault(request_id, []).append(position)
        return fed

    def _check(
        self,
        plan: Mapping[str, SpecMethod],
        sampled: Mapping[str, list[int]],
        before: Mapping[str, int],
        result: StepResult,
    ) -> None:
        assert not (result.report and result.report.faults)
        for name, emitted in sampled.items():
            chosen, request = plan.get(name, SpecMethod()), self.requests[name]
            if chosen.proposer not in self.dispatch.draft_models:
                if not chosen.num_speculative_tokens:
                    assert result.drafts[name] == []
                continue
            limit = self.toy(chosen.proposer).max_model_len
            k = min(chosen.num_speculative_tokens, limit - len(request.tokens)) if emitted else 0
            toy = self.toy(chosen.proposer)
            reference = toy.continuation(request.tokens, max(k, 0))
            assert result.drafts[name] == reference, f"{name} drafts other than if never away"
            fed = result.fed[chosen.proposer].get(name, [])
            assert fed == sorted(set(fed)), "each position is read once, in order"
            if request.drafted_by == chosen.proposer and k > 0:
                self._check_steady_state(toy, request, len(emitted), fed)
        for proposer, fed in result.fed.items():
            lag = sum(p < before[name] for name, positions in fed.items() for p in positions)
            reported = result.report.catchup.get(proposer, 0) if result.report else 0
            assert reported == lag, "the catch-up counted is the lag that was read"

    def _check_steady_state(
        self, toy: ToyDraft | ToyHead, request: Request, emitted: int, fed: list[int]
    ) -> None:
        if isinstance(toy, ToyDraft):
            assert 1 <= len(fed) <= 2, "a draft model reads one or two tokens a row"
            return
        stop = len(request.tokens) - 1
        assert fed[-emitted:] == list(range(stop - emitted, stop)), "a head reads what is new"
        ends = [(position + 1) % self.block_size == 0 for position in fed[:-emitted]]
        assert all(ends), "and ends of blocks that another row took"
