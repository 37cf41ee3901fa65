"""The scheduler of the paged world: whose turn it is, who is preempted, how much each row reads."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from engine_adapter.policies.contract import RowView, StepView
from engine_adapter.policies.fixed import FixedPolicy
from engine_adapter.types import NONE, SpecMethod
from tests.engine_adapter.vllm_engine.support.block_pool import BlockPool

CAPACITY = 6
"""Draft tokens that a row may have: blocks for them are given ahead."""


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


class Schedule:
    """What one step is to read, and what is told of it to those who follow the batch."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        """Request -> tokens that it reads, drafts among them."""
        self.preempted: list[str] = []
        self.hits: dict[str, int] = {}
        """Request -> tokens that the prefix cache had of it."""
        self._new: list[Any] = []
        self._cached = SimpleNamespace(
            req_ids=[], new_block_ids=[], num_computed_tokens=[], resumed_req_ids=set()
        )

    def go_on(self, request: Request, count: int, blocks: list[int]) -> None:
        """A request that was seen before reads on; `blocks` are new to it."""
        self.counts[request.request_id] = count
        self._cached.req_ids.append(request.request_id)
        self._cached.new_block_ids.append((blocks,) if blocks else None)
        self._cached.num_computed_tokens.append(request.computed)

    def begin(self, request: Request, count: int) -> None:
        """A request starts, or starts again after it was preempted."""
        held = list(request.blocks)
        if request.seen:
            self.go_on(request, count, held)
            self._cached.resumed_req_ids.add(request.request_id)
            return
        self.counts[request.request_id] = count
        self._new.append(SimpleNamespace(block_ids=(held,), num_computed_tokens=request.computed))
        request.seen = True

    def output(self, finished: set[str]) -> Any:
        """vLLM's `SchedulerOutput`, as far as it is read."""
        return SimpleNamespace(
            finished_req_ids=finished,
            scheduled_new_reqs=self._new,
            scheduled_cached_reqs=self._cached,
            kv_cache_block_copies=None,
            specgate_quarantined=frozenset(),
        )


class ToyScheduler:
    """Requests in their queues, and the blocks that they are given.

    Args:
        max_model_len: tokens that a request has at most.
        chunk: prompt tokens that one request reads in a step.
    """

    def __init__(self, pool: BlockPool, max_model_len: int, chunk: int) -> None:
        self.requests: dict[str, Request] = {}
        self.running: list[str] = []
        self.waiting: list[str] = []
        self._pool, self._max_model_len, self._chunk = pool, max_model_len, chunk
        self._finished: set[str] = set()

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
        self.waiting.insert(0, request_id)

    def schedule(self) -> tuple[Schedule, Any]:
        """The next step, and the `SchedulerOutput` that tells of it."""
        schedule = Schedule()
        for name in list(self.running):
            if name in self.running:
                self._go_on(self.requests[name], schedule)
        while self.waiting and not schedule.preempted:
            if not self._begin(self.requests[self.waiting[0]], schedule):
                break
        output = schedule.output(self._finished)
        self._finished = set()
        return schedule, output

    def plan(self, counts: Mapping[str, int]) -> Mapping[str, SpecMethod]:
        """Who drafts for whom, from what is known before the step, as the real one does."""
        views = []
        for name, count in counts.items():
            request = self.requests[name]
            if not request.method.num_speculative_tokens:
                continue
            in_prompt = request.computed + count < len(request.tokens)
            left = request.max_tokens - (len(request.tokens) - request.prompt) - 1
            context = self._max_model_len - len(request.tokens) - 1
            room = 0 if in_prompt else max(0, min(left, context) - 1)
            if room or in_prompt:
                views.append(RowView(name, request.method, room))
        return FixedPolicy().plan(StepView(views))

    def end_step(self, counts: Mapping[str, int]) -> None:
        """Full blocks of computed tokens go into the prefix cache; who has all tokens ends."""
        for name in counts:
            request = self.requests[name]
            self._pool.remember(request.tokens[: request.computed], request.blocks)
        for name in counts:
            request = self.requests[name]
            if request.finished or len(request.tokens) >= self._max_model_len:
                self.finish(name)

    def _go_on(self, request: Request, schedule: Schedule) -> None:
        """Makes room for a running request, at the cost of the newest ones or itself."""
        count = self._to_read(request)
        while (fresh := self._grow(request, count)) is None:
            newest = self.running[-1]
            schedule.preempted.append(newest)
            self.preempt(newest)
            if newest == request.request_id:
                return
        schedule.go_on(request, count, fresh)

    def _begin(self, request: Request, schedule: Schedule) -> bool:
        """Starts the first of the waiting; false if there is no room for it."""
        request.blocks = self._pool.take_prefix(request.tokens)
        request.computed = len(request.blocks) * self._pool.block_size
        schedule.hits[request.request_id] = request.computed
        count = self._to_read(request)
        if self._grow(request, count) is None:
            self._release(request)
            request.computed = 0
            return False
        self.running.append(self.waiting.pop(0))
        schedule.begin(request, count)
        return True

    def _to_read(self, request: Request) -> int:
        committed = len(request.tokens) - request.computed
        if committed > self._chunk:
            return self._chunk
        return committed + len(request.pending)

    def _grow(self, request: Request, count: int) -> list[int] | None:
        """Blocks for the tokens to be read and for drafts; `None` if there are too few."""
        stop = min(request.computed + count + CAPACITY, self._max_model_len)
        fresh = self._pool.allocate(-(-stop // self._pool.block_size) - len(request.blocks))
        request.blocks.extend(fresh or [])
        return fresh

    def _release(self, request: Request) -> None:
        self._pool.release(request.blocks)
        request.blocks = []
