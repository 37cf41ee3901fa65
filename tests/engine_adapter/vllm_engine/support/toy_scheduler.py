"""The scheduler of the paged world: it orders, preempts and plans rows, and gives them blocks."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from engine_adapter.policies.contract import RowView, StepPlan, StepView
from engine_adapter.policies.fixed import FixedPolicy
from engine_adapter.seam.types import NONE, SpecMethod
from engine_adapter.vllm_engine.core.scheduler import lookahead
from tests.engine_adapter.vllm_engine.support.block_pool import BlockPool

CAPACITY = 6
"""Most draft tokens of a row, the draft capacity; blocks for them are allocated in advance."""


@dataclass
class Request:
    """A request of the simulated scheduler."""

    request_id: str
    tokens: list[int]
    prompt: int
    method: SpecMethod = field(default_factory=SpecMethod)
    max_tokens: int = 1000
    computed: int = 0
    group_blocks: list[list[int]] = field(default_factory=list)
    """For each KV cache group, its blocks."""
    pending: list[int] = field(default_factory=list)
    drafted_by: str = NONE
    """The proposer that drafted at the end of its last step, `NONE` after a preemption."""

    @property
    def blocks(self) -> list[int]:
        """Its blocks in the first KV cache group."""
        return self.group_blocks[0]

    @property
    def finished(self) -> bool:
        return len(self.tokens) - self.prompt >= self.max_tokens


class Schedule:
    """The tokens that one step reads, and the `SchedulerOutput` that describes them."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Request -> tokens that it reads, drafts included."""
        self.preempted: list[str] = []
        self.hits: dict[str, int] = {}
        """Request -> its tokens that were in the prefix cache."""
        self._new: list[Any] = []
        self._cached = SimpleNamespace(req_ids=[], new_block_ids=[])

    def add_cached(self, request: Request, count: int, blocks: list[list[int]]) -> None:
        """A running request reads `count` tokens; `blocks` are new to it."""
        self.counts[request.request_id] = count
        self._cached.req_ids.append(request.request_id)
        self._cached.new_block_ids.append(tuple(blocks) if any(blocks) else None)

    def add_started(self, request: Request, count: int) -> None:
        """A request starts, or starts again after it was preempted."""
        blocks = tuple(list(of_group) for of_group in request.group_blocks)
        self.counts[request.request_id] = count
        self._new.append(SimpleNamespace(block_ids=blocks, num_computed_tokens=request.computed))

    def output(self, finished: set[str], preempted: set[str]) -> Any:
        """vLLM's `SchedulerOutput`, as far as it is read."""
        return SimpleNamespace(
            finished_req_ids=finished,
            scheduled_new_reqs=self._new,
            scheduled_cached_reqs=self._cached,
            kv_cache_block_copies=None,
            preempted_req_ids=preempted,
            specgate_quarantined=frozenset(),
            specgate_constraints={},
        )


class ToyScheduler:
    """Requests in their queues, and their blocks.

    Args:
        max_model_len: the longest request, in tokens.
        chunk: most prompt tokens that one request reads in a step.
        shares_at_once: blocks go into the prefix cache when they are scheduled, as in vLLM, so that
            requests of one step can share them; otherwise at the end of the step.
    """

    def __init__(
        self, pool: BlockPool, max_model_len: int, chunk: int, *, shares_at_once: bool = False
    ) -> None:
        self._shares_at_once = shares_at_once
        self.requests: dict[str, Request] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []
        self._pool, self._max_model_len, self._chunk = pool, max_model_len, chunk
        self._finished: set[str] = set()
        self._preempted: set[str] = set()

    def add(self, request: Request) -> None:
        """The request waits for its turn."""
        self.requests[request.request_id] = request
        self.waiting.append(request.request_id)

    def finish(self, request_id: str) -> None:
        """The request ends between two steps; its blocks stay in the prefix cache."""
        self._release(self.requests.pop(request_id))
        self._finished.add(request_id)
        for queue in (self.running, self.waiting):
            if request_id in queue:
                queue.remove(request_id)

    def preempt(self, request_id: str) -> None:
        """The request loses its blocks and waits."""
        request = self.requests[request_id]
        self._release(request)
        request.computed, request.pending, request.drafted_by = 0, [], NONE
        self.running.remove(request_id)
        self._preempted.add(request_id)
        self.waiting.insert(0, request_id)

    def schedule(self) -> tuple[Schedule, Any]:
        """The next step, and its `SchedulerOutput`."""
        schedule = Schedule()
        for name in list(self.running):
            if name in self.running:
                self._schedule_running(self.requests[name], schedule)
        while self.waiting and not schedule.preempted:
            if not self._start(self.requests[self.waiting[0]], schedule):
                break
        output = schedule.output(self._finished, self._preempted)
        self._finished, self._preempted = set(), set()
        return schedule, output

    def plan(self, counts: Mapping[str, int]) -> StepPlan:
        """The proposer and k of each row, known before the step runs; see `RowTable.plan`."""
        views = []
        for name, count in counts.items():
            request = self.requests[name]
            if not request.method.num_speculative_tokens:
                continue
            in_prompt = request.computed + count < len(request.tokens)
            tokens_left = request.max_tokens - (len(request.tokens) - request.prompt) - 1
            context_left = self._max_model_len - len(request.tokens) - 1
            budget = 0 if in_prompt else max(0, min(tokens_left, context_left) - 1)
            if budget or in_prompt:
                views.append(RowView(name, request.method, budget))
        return FixedPolicy().plan(StepView(views))

    def end_step(self, counts: Mapping[str, int]) -> None:
        """Full blocks of computed tokens go into the prefix cache; complete requests end."""
        for name in counts:
            request = self.requests[name]
            self._pool.cache(request.tokens[: request.computed], request.group_blocks)
        for name in counts:
            request = self.requests[name]
            if request.finished or len(request.tokens) >= self._max_model_len:
                self.finish(name)

    def _schedule_running(self, request: Request, schedule: Schedule) -> None:
        """Schedules a running request; for blocks, preempts the newest ones or itself."""
        count = self._to_read(request)
        while (fresh := self._grow(request, count)) is None:
            newest = self.running[-1]
            schedule.preempted.append(newest)
            self.preempt(newest)
            if newest == request.request_id:
                return
        schedule.add_cached(request, count, fresh)

    def _start(self, request: Request, schedule: Schedule) -> bool:
        """Starts the first waiting request; false if there are too few blocks for it."""
        request.group_blocks, request.computed = self._pool.reference_prefix(request.tokens)
        schedule.hits[request.request_id] = request.computed
        count = self._to_read(request)
        if self._grow(request, count) is None:
            self._release(request)
            request.computed = 0
            return False
        self.running.append(self.waiting.pop(0))
        schedule.add_started(request, count)
        if self._shares_at_once:
            self._pool.cache(request.tokens[: request.computed + count], request.group_blocks)
        return True

    def _to_read(self, request: Request) -> int:
        committed = len(request.tokens) - request.computed
        if committed > self._chunk:
            return self._chunk
        return committed + len(request.pending)

    def _grow(self, request: Request, count: int) -> list[list[int]] | None:
        """Allocates blocks for the tokens to be read and drafts; `None` if there are too few."""
        stop = min(request.computed + count + lookahead(CAPACITY), self._max_model_len)
        wanted = [
            -(-stop // size) - len(blocks)
            for size, blocks in zip(self._pool.block_sizes, request.group_blocks, strict=True)
        ]
        fresh = self._pool.allocate(sum(wanted))
        if fresh is None:
            return None
        by_group = [[fresh.pop(0) for _ in range(count)] for count in wanted]
        for blocks, new in zip(request.group_blocks, by_group, strict=True):
            blocks.extend(new)
        return by_group

    def _release(self, request: Request) -> None:
        for blocks in request.group_blocks:
            self._pool.release(blocks)
        request.group_blocks = []
