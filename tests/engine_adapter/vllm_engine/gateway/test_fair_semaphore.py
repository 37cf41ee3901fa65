"""Slots granted in turn: no owner keeps the others from theirs."""

import asyncio

import pytest

from engine_adapter.vllm_engine.gateway.fair_semaphore import FairSemaphore


class Work:
    """Work that has its slot until it is told to end."""

    def __init__(self, semaphore: FairSemaphore, *owners: str | None) -> None:
        self.begun = False
        self.owners: set[str | None] = set(owners)
        self._end = asyncio.Event()
        self._task = asyncio.create_task(self._run(semaphore))

    async def _run(self, semaphore: FairSemaphore) -> None:
        async with semaphore.acquire(self.owners):
            self.begun = True
            await self._end.wait()

    async def end(self) -> None:
        self._end.set()
        await self._task

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def begun(*works: Work) -> list[bool]:
    for _ in range(3):
        await asyncio.sleep(0)
    return [work.begun for work in works]


async def test_one_owner_leaves_a_slot_to_the_others() -> None:
    semaphore = FairSemaphore(3, 2)
    a = [Work(semaphore, "a") for _ in range(9)]
    assert await begun(*a) == [True] * 2 + [False] * 7
    b = [Work(semaphore, "b") for _ in range(2)]
    assert await begun(*b) == [True, False]
    await a[0].end()
    # Slots that are free at the same time go to the owner whose last grant is longer ago.
    assert await begun(a[2], b[1]) == [True, False]
    await a[1].end()
    assert await begun(a[3], b[1]) == [False, True]


async def test_a_new_owner_has_the_next_slot() -> None:
    semaphore = FairSemaphore(2, 2)
    works = [Work(semaphore, owner) for owner in "ababab"]
    assert await begun(*works) == [True] * 2 + [False] * 4
    new = [Work(semaphore, "c") for _ in range(2)]
    await works[0].end()
    assert await begun(*new) == [True, False]
    await works[1].end()
    assert await begun(works[2], new[1]) == [True, False]


async def test_without_an_owner_slots_are_granted_in_order() -> None:
    semaphore = FairSemaphore(3, 2)
    works = [Work(semaphore, None) for _ in range(5)]
    for i in range(4):
        assert await begun(*works) == [True] * min(5, i + 2) + [False] * max(0, 3 - i)
        await works[i].end()


async def test_an_owner_who_joins_brings_the_grant_forward() -> None:
    semaphore = FairSemaphore(3, 2)
    works = [Work(semaphore, "a") for _ in range(5)]
    assert await begun(works[4]) == [False]
    works[4].owners.add("b")
    semaphore.grant_free()
    assert await begun(*works) == [True, True, False, False, True]


@pytest.mark.parametrize("has_begun", [True, False])
async def test_who_leaves_gives_the_slot_on(has_begun: bool) -> None:
    semaphore = FairSemaphore(1, 1)
    first, second, third = (Work(semaphore, "a") for _ in range(3))
    assert await begun(first, second) == [True, False]
    await (first if has_begun else second).leave()
    if not has_begun:
        await first.end()
    assert await begun(second, third) == [has_begun, not has_begun]


async def test_who_leaves_as_the_grant_comes_gives_it_on() -> None:
    semaphore = FairSemaphore(1, 1)
    first, second, third = (Work(semaphore, "a") for _ in range(3))
    await begun(first)
    ending = asyncio.create_task(first.end())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await second.leave()
    await ending
    assert await begun(third) == [True]
