"""Cancellation of tasks, for the gateway and for the engines."""

import asyncio


def was_cancelled() -> bool:
    """Whether a `CancelledError` was meant for the running task, as when the server stops.

    Otherwise something that the task waited for was cancelled, which is a failure like any other.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
