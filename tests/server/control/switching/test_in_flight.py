"""The requests in flight, and the wait for the last of them."""

import asyncio

import pytest

from server.control.switching.in_flight import InFlight


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
    await asyncio.wait_for(requests.emptied(), 60)
    with requests.track("a"):
        with requests.track("b"):
            waiting = asyncio.create_task(requests.emptied())
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.01)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 60)


async def test_a_cancelled_wait_does_not_disturb_the_next_one() -> None:
    requests = InFlight()
    with requests.track("a"), pytest.raises(TimeoutError):
        await asyncio.wait_for(requests.emptied(), 0.01)
    with requests.track("a"):
        waiting = asyncio.create_task(requests.emptied())
        await asyncio.sleep(0.01)
        assert not waiting.done()
    await asyncio.wait_for(waiting, 60)
