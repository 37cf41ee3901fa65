"""Limits of time: none, the earliest, and the error at the end."""

import asyncio

import pytest

from server.control.admission.limit_errors import RequestTimeout
from server.time_limits import TimeLimit, within


def error() -> RequestTimeout:
    return RequestTimeout(1)


async def test_zero_sets_no_limit_and_the_earliest_is_taken() -> None:
    assert TimeLimit.after(0, error) is None
    assert TimeLimit.earliest(None, None) is None
    late, early = TimeLimit.after(9, error), TimeLimit.after(5, error)
    assert TimeLimit.earliest(late, None, early) is early
    assert early is not None
    assert 4 < early.left_s <= 5


async def test_a_block_that_takes_too_long_raises_the_limits_error() -> None:
    with pytest.raises(RequestTimeout):
        async with within(TimeLimit.after(0.01, error)):
            await asyncio.sleep(60)


async def test_other_timeouts_pass() -> None:
    with pytest.raises(TimeoutError, match="own"):
        async with within(TimeLimit.after(60, error)):
            raise TimeoutError("own")
    async with within(None):
        await asyncio.sleep(0)
