"""Admission control: limits on queued requests and prompt tokens, before the engine's slots."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from engine_adapter.seam.types import EngineInfo
from server.control.admission.limit_errors import QueueFull
from server.control.admission.request_cost import RequestCost
from server.control.admission.slots import SlotLimits, Slots, Ticket
from server.errors import ApiError
from server.settings import Settings
from server.settings.limit_settings import LimitSettings
from server.telemetry.admission_metrics import AdmissionMetrics


class Admission:
    """Takes requests in, or refuses them. Lives on the event loop; nothing here blocks.

    Args:
        clock: seconds that never go back.
        is_shared: whether several API keys may send requests now.

    Attributes:
        slots: the engine's slots; a drain closes and opens them.
    """

    def __init__(
        self,
        slots: SlotLimits,
        settings: LimitSettings,
        metrics: AdmissionMetrics,
        clock: Callable[[], float] = time.monotonic,
        is_shared: Callable[[], bool] = lambda: False,
    ) -> None:
        self.slots = Slots(slots, clock, is_shared)
        self._settings = settings
        self._metrics = metrics
        metrics.watch(self)

    @property
    def max_grammar_bytes(self) -> int:
        """The most bytes of compiled grammars of one engine."""
        return self._settings.max_compiled_grammar_bytes

    @contextmanager
    def ticket(self, cost: RequestCost) -> Iterator[Ticket]:
        """A ticket for a request, until the block ends."""
        ticket = self.slots.ticket(cost)
        try:
            yield ticket
        finally:
            ticket.leave()

    @contextmanager
    def checked(self, ticket: Ticket) -> Iterator[None]:
        """Counts a request as queued while its constraints are checked, until the block ends.

        Another request may take its place meanwhile, which cancels its task. Raises `QueueFull` if
        neither the engine nor the queue would have room for it.
        """
        free = self.slots.room(ticket.cost.key) if self.slots.is_open else 0
        if ticket.cost.is_background:
            yield
            return
        if self.num_queued - self.slots.num_queued >= free:
            self.make_room(ticket.cost)
        self.slots.queue.add(ticket)
        try:
            yield
        finally:
            self.slots.queue.discard(ticket)

    @property
    def num_queued(self) -> int:
        """The requests of which no sequence has begun."""
        return self.slots.queue.num_requests

    @property
    def queued_prompt_tokens(self) -> int:
        """The prompt tokens of these requests."""
        return self.slots.queue.prompt_tokens

    def refusal(self, key: str | None) -> ApiError | None:
        """The error of a request of the key that has no chance now, whatever its body is."""
        settings = self._settings
        if self.slots.may_start(key) or self.num_queued < settings.max_queued_requests:
            return None
        if settings.max_queued_requests and self.slots.queue.gives_place_to(key):
            return None
        return self._queue_full(self._why_full())

    def make_room(self, cost: RequestCost) -> None:
        """Makes sure that the queue has room for a request.

        Requests that give their places to it get `QueueFull`, as the reason why their task is
        cancelled. Raises `QueueFull` if there is no room; an empty queue has room. Requests in the
        background wait outside of the queue.
        """
        if cost.is_background:
            return
        settings, queue = self._settings, self.slots.queue
        max_requests, max_tokens = settings.max_queued_requests, settings.max_queued_prompt_tokens
        victims = queue.victims_for(cost, max_requests, max_tokens) if max_requests else None
        if victims is None:
            raise self._queue_full(self._why_full(cost.prompt_tokens))
        reason = "its queue is full, and no API key has more in it than this one"
        for ticket in victims:
            if ticket.task is not None:
                ticket.task.cancel(msg=self._queue_full(reason))
        self.slots.withdraw(victims)

    def _why_full(self, tokens: int = 0) -> str:
        """Why the queue cannot take a request with so many prompt tokens, for its client."""
        num_queued, max_requests = self.num_queued, self._settings.max_queued_requests
        if not max_requests:
            return "the request cannot begin now, and this server has no queue"
        if num_queued >= max_requests:
            return f"its queue is full ({num_queued} of {max_requests} requests)"
        return (
            f"its queue has no room for this prompt ({self.queued_prompt_tokens:,} of "
            f"{self._settings.max_queued_prompt_tokens:,} prompt tokens are queued, and this one "
            f"has {tokens:,})"
        )

    def _queue_full(self, reason: str) -> ApiError:
        return self.counted(QueueFull(reason, self.retry_after_s))

    @property
    def retry_after_s(self) -> float | None:
        """The time in which the queue empties, as measured; `None` if nothing is measured yet."""
        return self.slots.queue_rate.seconds_for(self.slots.num_queued)

    def counted(self, error: ApiError) -> ApiError:
        """Counts an error with which a limit ends a request, and returns it."""
        self._metrics.count_limited(str(error.code))
        return error

    def observe_wait(self, cost: RequestCost, seconds: float) -> None:
        """Records the time that a request waited for its first sequence, or until it gave up.

        Requests in the background may begin late.
        """
        if not cost.is_background:
            self._metrics.observe_wait(seconds)


def slot_limits(settings: Settings, info: EngineInfo) -> SlotLimits:
    """The engine's slots. By default some more than it runs, so that none idles between two.

    A reserve leaves a key, and requests in the background, at least one row.
    """
    runs = info.max_num_seqs
    total = settings.max_engine_sequences or runs + runs // 4
    of_request = settings.max_request_sequences or max(1, runs // 4)
    rows = min(runs, total)
    reserved = settings.reserved_sequences
    if reserved is None:
        reserved = max(1, runs // 16)
    of_others = settings.batch_reserved_sequences
    if of_others is None:
        of_others = max(1, runs // 4)
    return SlotLimits(
        total=total,
        rows=rows,
        reserved=min(reserved, rows - 1),
        of_request=min(of_request, total),
        request_prompt_tokens=settings.max_request_prefill_tokens,
        background=max(1, rows - of_others),
    )
