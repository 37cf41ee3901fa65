"""A process that does not answer hangs if it does nothing; one that works has more time."""

import asyncio
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from engine_adapter.seam.config import HangPolicy
from engine_adapter.seam.errors import EngineDead
from engine_adapter.vllm_engine.gateway.heartbeat import Heartbeat
from engine_adapter.vllm_engine.gateway.process_tree import Sight

TICK_S = 1 / 1024
SHORT = HangPolicy(idle_s=10 * TICK_S, busy_s=40 * TICK_S)


class Scripted:
    """A witness of sights that are made in order; the last one stays."""

    def __init__(self, sights: Iterator[Sight | None]) -> None:
        self._sights = sights
        self.looks = 0

    def look(self) -> Sight | None:
        self.looks += 1
        return next(self._sights)


def working() -> Iterator[Sight]:
    """It uses half of the time of a core."""
    return (Sight(i * TICK_S / 2, stopped=False, reads=False) for i in count())


def sleeping() -> Iterator[Sight]:
    return (Sight(1.0, stopped=False, reads=False) for _ in count())


def stopped() -> Iterator[Sight]:
    """One process is stopped, and another one waits for it and spins."""
    return (Sight(i * TICK_S, stopped=True, reads=False) for i in count())


def reading() -> Iterator[Sight]:
    return (Sight(1.0, stopped=False, reads=True) for _ in count())


class Clock:
    """A clock that each question for the time moves by half a tick, two questions per look."""

    def __init__(self, jump_s: float = TICK_S) -> None:
        self._times = count()
        self._jump_s = jump_s

    def __call__(self) -> float:
        return (next(self._times) + 1) // 2 * self._jump_s


async def never() -> None:
    await asyncio.Event().wait()


async def hang(
    sights: Iterator[Sight | None],
    policy: HangPolicy = SHORT,
    clock: Callable[[], float] | None = None,
) -> tuple[str, int]:
    """How it hangs, and after how many looks."""
    witness = Scripted(sights)
    heartbeat = Heartbeat(never, witness, policy, TICK_S, clock or Clock())
    async with asyncio.timeout(20):
        return await heartbeat.hung(), witness.looks


async def test_a_stopped_process_hangs_though_another_one_spins() -> None:
    reason, looks = await hang(stopped())
    assert reason == "did not answer for 0 s, was stopped, and was killed"
    assert looks == 10


async def test_a_process_without_cpu_time_hangs() -> None:
    reason, looks = await hang(sleeping())
    assert "used no CPU time" in reason
    assert looks == 11, "the first look has nothing to compare with"


@pytest.mark.parametrize("sights", [working, reading], ids=["computes", "waits for a disk"])
async def test_a_long_step_is_not_a_hang_until_the_limit_of_steps(
    sights: Callable[[], Iterator[Sight]],
) -> None:
    reason, looks = await hang(sights())
    assert "did not end a step" in reason
    assert looks == 40


async def test_a_process_that_works_now_and_then_does_not_hang() -> None:
    def now_and_then() -> Iterator[Sight]:
        """It computes for one tick of eight."""
        return (Sight(i // 8 * TICK_S, stopped=False, reads=False) for i in count())

    reason, looks = await hang(now_and_then())
    assert ("did not end a step" in reason, looks) == (True, 40)


async def test_an_answer_during_a_look_is_an_answer() -> None:
    """The look is the one after which the process would be killed."""
    loop, answer = asyncio.get_running_loop(), asyncio.Event()
    asked = 0

    class Slow(Scripted):
        def look(self) -> Sight | None:
            sight = super().look()
            if self.looks == 10:
                loop.call_soon_threadsafe(answer.set)
                # The answer is there before this look ends.
                asyncio.run_coroutine_threadsafe(asyncio.sleep(0.01), loop).result(20)
            return sight

    async def ask() -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            raise EngineDead("it has answered")
        await answer.wait()

    witness = Slow(stopped())
    with pytest.raises(EngineDead, match="it has answered"):
        await Heartbeat(ask, witness, SHORT, TICK_S, Clock()).hung()
    assert (asked, witness.looks) == (2, 10)


async def test_zero_sets_no_limit() -> None:
    reason, looks = await hang(sleeping(), HangPolicy(idle_s=0, busy_s=20 * TICK_S))
    assert ("did not end a step" in reason, looks) == (True, 20)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await Heartbeat(never, Scripted(stopped()), HangPolicy(0, 0), TICK_S).hung()


async def test_a_gateway_that_stood_still_has_not_listened() -> None:
    _, looks = await hang(stopped(), clock=Clock(jump_s=1000.0))
    assert looks == 5, "each look counts as two ticks, however long the gateway stood still"


async def test_answers_are_asked_for_again_and_again() -> None:
    asked = 0

    async def answers() -> None:
        nonlocal asked
        asked += 1
        if asked == 5:
            raise EngineDead("it died")

    witness = Scripted(stopped())
    with pytest.raises(EngineDead, match="it died"):
        await Heartbeat(answers, witness, SHORT, TICK_S).hung()
    assert (asked, witness.looks) == (5, 0)


async def test_a_late_answer_ends_the_silence() -> None:
    answered = 0

    async def late() -> None:
        nonlocal answered
        answered += 1
        if answered > 3:
            await never()
        await asyncio.sleep(6 * TICK_S)

    policy = HangPolicy(idle_s=100 * TICK_S, busy_s=0)
    reason = await Heartbeat(late, Scripted(stopped()), policy, TICK_S).hung()
    assert "was stopped" in reason
    assert answered == 4


async def test_a_process_that_has_just_ended_is_not_seen_and_does_not_hang() -> None:
    _, looks = await hang(iter([None] * 30 + [Sight(0.0, stopped=True, reads=False)] * 20))
    assert looks == 40
