"""Bounds what vLLM's parsers take on the event loop, and keeps their lines out of the log.

Some of them read the whole text again for each delta, and some have regular expressions that take
minutes for a text of some kilobytes. The text is the model's, so a client can steer it. What all
calls of a request take grows with its deltas only, and no call takes longer than `BURST_S`.
"""

import gc
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType
from typing import TypeVar

from engine_adapter.seam.parsing import ParserFailure
from engine_adapter.vllm_engine.patches.log_filters import taken_parser_errors

BURST_S = 0.5
"""CPU time that the parsers of one request may take at once, in seconds."""

CREDIT_S = 0.0003
"""CPU time that each delta brings, up to `BURST_S`, in seconds."""

LEAST_S = 0.1
"""CPU time that every call may take, in seconds: each choice has a last one, whatever is left."""

_AGAIN_S = 0.01
"""How soon a call that has survived its end is ended again, in seconds."""

Result = TypeVar("Result")


@dataclass(slots=True)
class Allowance:
    """The CPU time that the parsers of one request have left, in seconds; it may be negative."""

    left_s: float = BURST_S

    def add(self, deltas: int) -> None:
        """Counts deltas."""
        self.left_s = min(BURST_S, self.left_s + CREDIT_S * deltas)


class ParserFailed(Exception):
    """A call has failed. The parser's state is undefined now, so it must not be called again."""

    def __init__(self, failure: ParserFailure) -> None:
        super().__init__(failure)
        self.failure = failure


class ParserCalls:
    """The calls of one choice's parser.

    Attributes:
        error: of an error that the parser has logged and survived, the name of its class; `None`
            without one. Its user resets it.
    """

    def __init__(self, allowance: Allowance) -> None:
        self._allowance = allowance
        self._last_s = 0.0
        self.error: str | None = None

    def add(self, deltas: int) -> None:
        """Counts deltas."""
        self._allowance.add(deltas)

    @property
    def are_due(self) -> bool:
        """Whether there is time for a call that takes twice as long as the last one."""
        return self._allowance.left_s >= min(BURST_S, 2 * self._last_s)

    def make(self, call: Callable[[], Result]) -> Result:
        """The result of a call. Raises `ParserFailed` if it raises, or takes too long."""
        limit_s = max(LEAST_S, self._allowance.left_s)
        began = time.thread_time()
        try:
            with taken_parser_errors() as errors:
                result = _alarm.limited(call, limit_s)
        except CallTooLong:
            raise ParserFailed(ParserFailure("time", f"{limit_s:.1f} s of CPU time")) from None
        except Exception as error:
            # Its text and its traceback can hold the model's text.
            raise ParserFailed(ParserFailure("error", type(error).__name__)) from None
        finally:
            self._last_s = time.thread_time() - began
            self._allowance.left_s -= self._last_s
        if errors:
            self.error = errors[0]
        return result


class CallTooLong(BaseException):
    """Ends a call. No `Exception`, because vLLM's parsers catch these."""


class _Alarm:
    """Ends a call after some CPU time, wherever it is; `re` and `regex` heed signals too.

    Only the main thread gets signals. In another one a call takes as long as it takes, and fails
    afterwards.
    """

    def __init__(self) -> None:
        self._ends_at: float | None = None

    def limited(self, call: Callable[[], Result], seconds: float) -> Result:
        """The result of a call. Raises `CallTooLong`."""
        ends_at = time.thread_time() + seconds
        if threading.current_thread() is threading.main_thread():
            result = self._interrupted(call, seconds, ends_at)
        else:
            result = call()
        if time.thread_time() >= ends_at:
            raise CallTooLong
        return result

    def _interrupted(self, call: Callable[[], Result], seconds: float, ends_at: float) -> Result:
        if signal.getsignal(signal.SIGVTALRM) != self._on_signal:
            signal.signal(signal.SIGVTALRM, self._on_signal)
            signal.siginterrupt(signal.SIGVTALRM, False)
        # A collection would count as the call's time, and the signal could end a finalizer in it.
        collects = gc.isenabled()
        try:
            gc.disable()
            self._ends_at = ends_at
            signal.setitimer(signal.ITIMER_VIRTUAL, seconds, _AGAIN_S)
            try:
                return call()
            finally:
                self._ends_at = None
        finally:
            # Once more: the signal can come just before the line above.
            self._ends_at = None
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            if collects:
                gc.enable()

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        """The timer counts the CPU time of all threads, so it may come early."""
        if self._ends_at is not None and time.thread_time() >= self._ends_at:
            raise CallTooLong


_alarm = _Alarm()
