"""Cancellation of tasks, for the gateway and for the engines."""

import asyncio
from typing import Any


def was_cancelled() -> bool:
    """Whether a `CancelledError` was meant for the running task, as when the server stops.

    Otherwise something that the task waited for was cancelled, which is a failure like any other.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def wait_until_ended(task: "asyncio.Task[Any]") -> asyncio.CancelledError | None:
    """Waits until `task` has ended, even if the caller is cancelled, once or more often, meanwhile.

    Returns the cancellation, which the caller has to raise sooner or later.
    """
    cancellation = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancellation = error
    return cancellation
