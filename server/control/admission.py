"""Who may come in: the limits of the queue, in front of the engine's slots."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from server.control.slots import Demand, Place, SlotLimits, Slots
from server.errors import ApiError
from server.limit_errors import QueueFull
from server.settings.limit_settings import LimitSettings
from server.telemetry.admission_metrics import AdmissionMetrics


class Admission:
    """Takes requests in, or refuses them. Lives on the event loop; nothing here blocks.

    Args:
        clock: seconds that never go back.

    Attributes:
        slots: the engine's slots; a drain closes and opens them.
    """

    def __init__(
        self,
        slots: SlotLimits,
        settings: LimitSettings,
        metrics: AdmissionMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slots = Slots(slots, clock)
        self._settings = settings
        self._metrics = metrics
        self._num_checked = 0
        self._checked_prompt_tokens = 0
        metrics.watch(self)

    @property
    def max_grammar_bytes(self) -> int:
        """The most bytes of compiled grammars of one engine."""
        return self._settings.max_compiled_grammar_bytes

    @contextmanager
    def place(self, demand: Demand) -> Iterator[Place]:
        """A place for a request, until the block ends."""
        place = self.slots.place(demand)
        try:
            yield place
        finally:
            place.leave()

    @contextmanager
    def checked(self, demand: Demand) -> Iterator[None]:
        """Counts a request as queued while its constraints are checked, until the block ends.

        Raises `QueueFull` if neither the engine nor the queue would have room for it.
        """
        free = self.slots.total - self.slots.in_use if self.slots.is_open else 0
        if self._num_checked >= free:
            self.check_queue(demand)
        self._num_checked += 1
        self._checked_prompt_tokens += demand.prompt_tokens
        try:
            yield
        finally:
            self._num_checked -= 1
            self._checked_prompt_tokens -= demand.prompt_tokens

    @property
    def num_queued(self) -> int:
        """The requests of which no sequence has begun."""
        return self.slots.num_queued + self._num_checked

    @property
    def queued_prompt_tokens(self) -> int:
        """The prompt tokens of these requests."""
        return self.slots.queued_prompt_tokens + self._checked_prompt_tokens

    def check_queue(self, demand: Demand) -> None:
        """Raises `QueueFull` if the queue has no room for the request; an empty one has."""
        if (reason := self._no_room(demand)) is not None:
            raise self.counted(QueueFull(reason, self.retry_after_s))

    def _no_room(self, demand: Demand) -> str | None:
        """Why the queue cannot take the request, for its client."""
        queued, tokens = self.num_queued, self.queued_prompt_tokens
        most = self._settings.max_queued_requests
        most_tokens = self._settings.max_queued_prompt_tokens
        if not most:
            return "the request cannot begin now, and this server has no queue"
        if queued >= most:
            return f"its queue is full ({queued} of {most} requests)"
        if queued and tokens + demand.prompt_tokens > most_tokens:
            return (
                f"its queue has no room for this prompt ({tokens:,} of {most_tokens:,} prompt "
                f"tokens are queued, and this one has {demand.prompt_tokens:,})"
            )
        return None

    @property
    def retry_after_s(self) -> float | None:
        """The time in which the queue empties, as measured; `None` if nothing is measured yet."""
        return self.slots.queue_rate.seconds_for(self.slots.num_queued)

    def counted(self, error: ApiError) -> ApiError:
        """Counts an error with which a limit ends a request, and returns it."""
        self._metrics.count_limited(str(error.code))
        return error

    def observe_wait(self, seconds: float) -> None:
        """Records the time that a request waited for its first sequence, or until it gave up."""
        self._metrics.observe_wait(seconds)
