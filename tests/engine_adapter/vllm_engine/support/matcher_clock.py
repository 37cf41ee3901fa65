"""The CPU time that matchers take, as a test sets it."""

from itertools import count
from types import SimpleNamespace

import pytest

from engine_adapter.vllm_engine import compiled_grammars


def set_matcher_clock(
    monkeypatch: pytest.MonkeyPatch, call_s: float, reading_s: float = 0.0
) -> None:
    """Lets each call of a matcher take `call_s` seconds, and each reading of the heap `reading_s`.

    Other modules keep their clock: threads of other tests may read it meanwhile.
    """
    calls, readings = count(), count()
    clock = SimpleNamespace(
        thread_time=lambda: next(calls) * call_s,
        thread_time_ns=lambda: round(next(readings) * reading_s * 1e9),
    )
    monkeypatch.setattr(compiled_grammars, "time", clock)
