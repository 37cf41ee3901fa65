"""The order in which requests pass the gate, and the requests in flight after it."""

import asyncio

import pytest

from server.control.gate import Gate, InFlight


class Crowd:
    """Requests at a gate; `passed` lists them in the order in which they passed it."""

    def __init__(self) -> None:
        self.gate = Gate()
        self.passed: list[int] = []

    async def arrive(self, number: int) -> None:
        with self.gate.ticket() as ticket:
            while not ticket.is_next:
                # In a task, as `until_disconnect` runs it.
                await asyncio.create_task(ticket.wait())
            self.passed.append(number)

    def come(self, *numbers: int) -> list["asyncio.Task[None]"]:
        return [asyncio.create_task(self.arrive(number)) for number in numbers]


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_no_request_waits_at_an_open_gate() -> None:
    gate = Gate()
    assert not gate.must_wait
    gate.open()
    assert not gate.must_wait


async def test_waiting_requests_pass_in_order_of_arrival() -> None:
    crowd = Crowd()
    crowd.gate.close()
    tasks = crowd.come(*range(9))
    await settle()
    assert (crowd.gate.num_waiting, crowd.passed) == (9, [])
    crowd.gate.open()
    await asyncio.gather(*tasks)
    assert crowd.passed == list(range(9))
    assert not crowd.gate.must_wait


async def test_a_new_request_does_not_overtake_waiting_ones() -> None:
    crowd = Crowd()
    crowd.gate.close()
    tasks = crowd.come(*range(5))
    await settle()
    crowd.gate.open()
    late = 5
    while not all(task.done() for task in tasks):
        assert crowd.gate.must_wait
        tasks += crowd.come(late) if late < 20 else []
        late += 1
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert crowd.passed == list(range(20))


@pytest.mark.parametrize("cancelled", [0, 2, 4])
async def test_a_cancelled_request_leaves_the_queue(cancelled: int) -> None:
    crowd = Crowd()
    crowd.gate.close()
    tasks = crowd.come(*range(5))
    await settle()
    tasks[cancelled].cancel()
    await settle()
    assert crowd.gate.num_waiting == 4
    crowd.gate.open()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert crowd.passed == [n for n in range(5) if n != cancelled]


async def test_a_request_cancelled_when_woken_lets_the_next_pass() -> None:
    crowd = Crowd()
    crowd.gate.close()
    first, second = crowd.come(0, 1)
    await settle()
    crowd.gate.open()
    first.cancel()
    await asyncio.wait_for(second, 1)
    assert crowd.passed == [1]


async def test_a_gate_that_closes_again_holds_requests_that_have_not_passed() -> None:
    crowd = Crowd()
    crowd.gate.close()
    tasks = crowd.come(*range(3))
    await settle()
    crowd.gate.open()
    crowd.gate.close()
    await settle()
    assert (crowd.gate.num_waiting, crowd.passed) == (3, [])
    tasks += crowd.come(3)
    await settle()
    crowd.gate.open()
    await asyncio.gather(*tasks)
    assert crowd.passed == [0, 1, 2, 3]


async def test_requests_are_counted_by_proposer_until_they_end() -> None:
    requests = InFlight()
    with requests.track("none"), requests.track("draft", pinned=True):
        assert requests.by_proposer == {"none": 1, "draft": 1}
        assert len(requests) == 2
    assert requests.by_proposer == {}


async def test_a_request_that_fails_is_no_longer_in_flight() -> None:
    requests = InFlight()
    with pytest.raises(ValueError, match="gone"), requests.track("none"):
        raise ValueError("gone")
    assert len(requests) == 0


async def test_emptied_returns_when_the_last_request_ends() -> None:
    requests = InFlight()
    await asyncio.wait_for(requests.emptied(), 1)
    with requests.track("a"):
        with requests.track("b"):
            waiting = asyncio.create_task(requests.emptied())
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 1)


async def test_a_cancelled_wait_does_not_disturb_the_next_one() -> None:
    requests = InFlight()
    with requests.track("a"), pytest.raises(TimeoutError):
        await asyncio.wait_for(requests.emptied(), 0.01)
    with requests.track("a"):
        waiting = asyncio.create_task(requests.emptied())
        await asyncio.sleep(0.01)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 1)
