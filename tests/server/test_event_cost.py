"""What an event of a stream costs the gateway, as calls of Python functions: it does not creep up.

A time would depend on the machine. `python -m benchmarks.gateway` measures it.
"""

import sys
from collections import Counter
from collections.abc import MutableMapping
from types import FrameType
from typing import Any

import pytest

from tests.server.conftest import StartGateway

BUDGET = {
    ("/v1/chat/completions", 1): 14,
    ("/v1/chat/completions", 2): 13,
    ("/v1/completions", 1): 14,
}
"""(Path, n) -> the most calls for an event; a coroutine or generator that is resumed is a call."""

FIRST, LAST = 40, 140
"""Events between which the calls are counted."""

OURS = ("/server/", "/engine_adapter/", "/starlette/", "/fastapi/", "/structlog/")


class Calls:
    """Counts the calls between two events."""

    def __init__(self) -> None:
        self.by_function: Counter[str] = Counter()
        self._events = 0

    def on_send(self, message: MutableMapping[str, Any]) -> None:
        """Begins to count at the first event, and ends at the last."""
        self._events += bool(message.get("body"))
        if self._events == FIRST:
            sys.setprofile(self._count)
        elif self._events == LAST:
            sys.setprofile(None)

    @property
    def per_event(self) -> float:
        """The mean number."""
        return sum(self.by_function.values()) / (LAST - FIRST)

    def _count(self, frame: FrameType, kind: str, _: Any) -> None:
        file = frame.f_code.co_filename
        counts = "/tests/" not in file and any(part in file for part in OURS)
        if kind == "call" and counts:
            self.by_function[frame.f_code.co_qualname] += 1


@pytest.mark.parametrize(("path", "n"), BUDGET)
async def test_an_event_costs_no_more_calls(start: StartGateway, path: str, n: int) -> None:
    gateway = await start(engine_args={"fake_replay": True}, spec_method="none")
    body: dict[str, Any] = {"stream": True, "max_tokens": 200, "n": n}
    body |= {"prompt": "x"} if n == 1 and "chat" not in path else {}
    if "chat" in path:
        body["messages"] = [{"role": "user", "content": "Hello."}]
    calls = Calls()
    try:
        exchange = gateway.exchange(path, body, on_send=calls.on_send)
        await exchange.begin()
    finally:
        sys.setprofile(None)
    assert exchange.text.endswith("data: [DONE]\n\n")
    assert calls.per_event > 1, "nothing was counted"
    assert calls.per_event <= BUDGET[path, n], calls.by_function.most_common()
