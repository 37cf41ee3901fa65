"""The bound on what parsers take: the allowance, and the end of a call that takes too long."""

import re
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]

from engine_adapter.seam.parsing import ParserFailure
from engine_adapter.seam.types import Delta, FinishReason
from engine_adapter.vllm_engine.gateway import parser_calls as module
from engine_adapter.vllm_engine.gateway.output_parser import VllmParser
from engine_adapter.vllm_engine.gateway.parser_calls import (
    BURST_S,
    CREDIT_S,
    LEAST_S,
    Allowance,
    ParserCalls,
    ParserFailed,
)

MANY = 20_000


class Clock:
    """A clock of CPU time that moves only when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(module, "time", self)

    def thread_time(self) -> float:
        return self.now


class ReadsAllAgain:
    """A parser like vLLM's: for each delta it reads the whole text again.

    Args:
        second: characters that it reads in a second.
    """

    reasoning_parser = None

    def __init__(self, clock: Clock, second: float) -> None:
        self._clock = clock
        self._second = second
        self.text = ""
        self.num_calls = 0

    def parse_delta(self, *, delta_text: str, **_: Any) -> Any:
        self.text += delta_text
        self.num_calls += 1
        self._clock.now += len(self.text) / self._second

    def set_prompt_token_ids(self, _: list[int]) -> None:
        pass

    def is_reasoning_end(self, _: list[int]) -> bool:
        return False

    def parse(self, text: str, *_: Any, **__: Any) -> tuple[None, str, None]:
        self.text = text
        self._clock.now += len(text) / self._second
        return None, text, None


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def reading(reads: ReadsAllAgain, allowance: Allowance | None = None) -> VllmParser:
    return VllmParser(lambda: reads, None, (5,), ParserCalls(allowance or Allowance()))


def read_all(parser: VllmParser, num_deltas: int) -> None:
    for _ in range(num_deltas - 1):
        parser.read(Delta("abcd", (1,)))
    parser.read(Delta("abcd", (2,), finish_reason=FinishReason.STOP))


def test_the_time_of_a_parser_that_reads_all_again_grows_with_the_deltas(clock: Clock) -> None:
    for num_deltas in (MANY // 2, MANY):
        reads = ReadsAllAgain(clock, 1e6)
        clock.now = 0.0
        parser = reading(reads)
        read_all(parser, num_deltas)
        alone = sum(4 * i / 1e6 for i in range(num_deltas))
        most = BURST_S + num_deltas * CREDIT_S + LEAST_S
        assert clock.now <= most < alone / 10
        assert parser.failure is None
        assert reads.text == "abcd" * num_deltas


def test_a_parser_that_is_quick_enough_gets_every_delta_at_once(clock: Clock) -> None:
    reads = ReadsAllAgain(clock, 4 * MANY / CREDIT_S)
    parser = reading(reads)
    read_all(parser, MANY)
    assert reads.num_calls == MANY


def test_all_choices_of_a_request_share_its_time(clock: Clock) -> None:
    allowance = Allowance()
    choices = 100
    for _ in range(choices):
        parser = reading(ReadsAllAgain(clock, 1e3), allowance)
        read_all(parser, 25)
    assert clock.now <= BURST_S + choices * (25 * CREDIT_S + LEAST_S)


def test_a_call_that_takes_too_long_is_the_last_one(clock: Clock) -> None:
    reads = ReadsAllAgain(clock, 1.0)
    parser = reading(reads)
    shown = [piece for _ in range(3) for piece in parser.read(Delta("abcd", (1,)))]
    assert "".join(piece.text for piece in shown) == "abcd" * 3  # type: ignore[union-attr]
    assert parser.failure == ParserFailure("time", "0.5 s of CPU time")
    assert reads.num_calls == 1


def endless() -> None:
    while True:
        pass


def backtracks(search: Callable[[str, str], Any]) -> Callable[[], Any]:
    return lambda: search(r"(a|aa)+$", "a" * 80 + "b")


@pytest.mark.parametrize(
    "call",
    [endless, backtracks(re.search), backtracks(regex.search)],
    ids=["python", "re", "regex"],
)
def test_a_call_is_ended_wherever_it_is(call: Callable[[], Any]) -> None:
    calls = ParserCalls(Allowance(0.0))
    began = time.thread_time()
    with pytest.raises(ParserFailed) as caught:
        calls.make(call)
    assert caught.value.failure == ParserFailure("time", "0.1 s of CPU time")
    assert time.thread_time() - began < 10 * LEAST_S
    spun = time.thread_time()
    while time.thread_time() < spun + 2 * LEAST_S:
        pass  # nothing ends what comes after
    assert calls.make(lambda: 5) == 5


def test_a_call_that_swallows_its_end_is_ended_again() -> None:
    ends: list[int] = []

    def stubborn() -> None:
        while len(ends) < 3:
            try:
                endless()
            except BaseException:
                ends.append(1)

    with pytest.raises(ParserFailed):
        ParserCalls(Allowance(0.0)).make(stubborn)
    assert len(ends) == 3


def test_in_another_thread_a_call_that_took_too_long_fails_afterwards() -> None:
    failures = []

    def call() -> None:
        ends_at = time.thread_time() + 2 * LEAST_S
        while time.thread_time() < ends_at:
            pass

    def run() -> None:
        try:
            ParserCalls(Allowance(0.0)).make(call)
        except ParserFailed as failed:
            failures.append(failed.failure.reason)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert failures == ["time"]
