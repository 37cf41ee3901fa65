"""What a request waits for before it is admitted: the check of its constraints, then its turn."""

import asyncio
from collections.abc import Iterable

from starlette.types import Receive

from engine_adapter.types import StructuredOutput
from server.control.slots import Place
from server.http.event_stream import until_disconnect
from server.limit_errors import QueueTimeout
from server.state import Runtime
from server.time_limits import TimeLimit


async def check_constraints(
    runtime: Runtime,
    receive: Receive,
    constraints: Iterable[StructuredOutput],
    place: Place,
    limit: TimeLimit | None,
) -> float:
    """Has the engine check constraints, while their request has no slot and no drain waits for it.

    The request counts as one in the queue meanwhile. Returns the seconds that it waited.

    Raises:
        InvalidRequest, EngineError: the engine refuses one.
        QueueFull: neither the engine nor the queue has room for the request.
        ClientDisconnected, or the limit's error: the request ended during a check.
    """
    admission = runtime.admission
    loop = asyncio.get_running_loop()
    with admission.checked(place):
        begun_s = loop.time()
        try:
            for constraint in constraints:
                checking = runtime.engine.check_constraint(constraint, place.demand.key)
                await until_disconnect(receive, checking, limit)
        except BaseException:
            admission.observe_wait(loop.time() - begun_s)
            raise
        return loop.time() - begun_s


def waiting_limit(runtime: Runtime) -> TimeLimit | None:
    """The time by which a request that waits from now on must have its turn."""
    admission, timeout_s = runtime.admission, runtime.settings.queue_timeout_s
    return TimeLimit.after(
        timeout_s, lambda: admission.counted(QueueTimeout(timeout_s, admission.retry_after_s))
    )


async def turn(
    runtime: Runtime,
    receive: Receive,
    place: Place,
    limit: TimeLimit | None,
    waited_s: float = 0.0,
) -> None:
    """Waits for a request's turn.

    Args:
        waited_s: how long the request has waited before.

    Raises:
        ClientDisconnected, or the limit's error: the wait ended without it.
    """
    admission = runtime.admission
    loop = asyncio.get_running_loop()
    begun_s = loop.time() - waited_s
    try:
        await until_disconnect(receive, place.start(), limit)
        while not admission.slots.is_open:
            # A drain has begun since the request's turn came: the drain does not know of it.
            place.give_back()
            await until_disconnect(receive, place.start(), limit)
    finally:
        admission.observe_wait(loop.time() - begun_s)
