"""Who waits at a closed gate, and in which order they go on."""

import asyncio

import pytest

from server.control.gate import Gate


class Crowd:
    """Requests at a gate; `gone` has those that passed, in order."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.gone: list[int] = []

    async def arrive(self, number: int) -> None:
        with self.gate.place() as place:
            while not place.reached:
                # A task between, as there is one where a client's leaving is watched.
                await asyncio.create_task(place.wait())
            self.gone.append(number)

    def come(self, *numbers: int) -> list["asyncio.Task[None]"]:
        return [asyncio.create_task(self.arrive(number)) for number in numbers]


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_an_open_gate_holds_nobody() -> None:
    gate = Gate()
    assert not gate.holds
    gate.open()
    assert not gate.holds


async def test_the_held_go_on_in_order_of_arrival() -> None:
    crowd = Crowd()
    crowd.gate.close()
    tasks = crowd.come(*range(9))
    await settle()
    assert (crowd.gate.held, crowd.gone) == (9, [])
    crowd.gate.open()
    await asyncio.gather(*tasks)
    assert crowd.gone == list(range(9))
    assert not crowd.gate.holds


async def test_a_newcomer_does_not_overtake_the_held() -> None:
    crowd = Crowd()
    crowd.gate.close()
    tasks = crowd.come(*range(5))
    await settle()
    crowd.gate.open()
    late = 5
    while not all(task.done() for task in tasks):
        assert crowd.gate.holds
        tasks += crowd.come(late) if late < 20 else []
        late += 1
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert crowd.gone == list(range(20))


@pytest.mark.parametrize("leaver", [0, 2, 4])
async def test_who_leaves_is_forgotten(leaver: int) -> None:
    crowd = Crowd()
    crowd.gate.close()
    tasks = crowd.come(*range(5))
    await settle()
    tasks[leaver].cancel()
    await settle()
    assert crowd.gate.held == 4
    crowd.gate.open()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert crowd.gone == [n for n in range(5) if n != leaver]


async def test_who_leaves_when_called_lets_the_next_one_go() -> None:
    crowd = Crowd()
    crowd.gate.close()
    first, second = crowd.come(0, 1)
    await settle()
    crowd.gate.open()
    first.cancel()
    await asyncio.wait_for(second, 1)
    assert crowd.gone == [1]


async def test_a_gate_that_closes_again_keeps_those_who_have_not_gone() -> None:
    crowd = Crowd()
    crowd.gate.close()
    tasks = crowd.come(*range(3))
    await settle()
    crowd.gate.open()
    crowd.gate.close()
    await settle()
    assert (crowd.gate.held, crowd.gone) == (3, [])
    tasks += crowd.come(3)
    await settle()
    crowd.gate.open()
    await asyncio.gather(*tasks)
    assert crowd.gone == [0, 1, 2, 3]
