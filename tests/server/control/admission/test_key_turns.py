"""The turns of keys: a few requests of a key in a pass of the event loop, in order of arrival."""

import asyncio

from server.control.admission.key_turns import TURNS_PER_PASS, KeyTurns


async def test_a_key_with_many_requests_does_not_hold_up_another() -> None:
    turns, begun = KeyTurns(), list[str]()

    async def come(name: str) -> None:
        await turns.turn(name.partition(" ")[0])
        begun.append(name)

    async with asyncio.TaskGroup() as group:
        for number in range(100):
            group.create_task(come(f"alice {number}"))
        group.create_task(come("bob"))
    assert begun.index("bob") <= TURNS_PER_PASS
    begun.remove("bob")
    assert begun == [f"alice {number}" for number in range(100)]


async def test_each_pass_begins_as_many_requests_of_a_key_as_it_has_turns() -> None:
    turns, begun = KeyTurns(), list[int]()

    async def come(number: int) -> None:
        await turns.turn("alice")
        begun.append(number)

    tasks = [asyncio.create_task(come(number)) for number in range(5 * TURNS_PER_PASS)]
    counts = []
    while len(begun) < len(tasks):
        before = len(begun)
        await asyncio.sleep(0)
        counts.append(len(begun) - before)
    assert max(counts) == TURNS_PER_PASS
    assert len(counts) <= 2 * 5


async def test_a_client_that_leaves_does_not_keep_the_turn() -> None:
    turns = KeyTurns()
    tasks = [asyncio.create_task(turns.turn("alice")) for _ in range(5 * TURNS_PER_PASS)]
    await asyncio.sleep(0)
    for task in tasks[:-1]:
        task.cancel()
    await asyncio.wait_for(tasks[-1], 60)
    await asyncio.wait_for(turns.turn("alice"), 60)
