"""What a request waits for before it is admitted: the check of its constraints, then its turn."""

import asyncio
from collections.abc import Iterable

from starlette.types import Receive

from engine_adapter.types import StructuredOutput
from server.control.slots import Place
from server.errors import Stopping
from server.http.event_stream import until_disconnect
from server.limit_errors import QueueTimeout
from server.state import Runtime
from server.time_limits import TimeLimit


async def check_constraints(
    runtime: Runtime,
    receive: Receive,
    constraints: Iterable[StructuredOutput | None],
    limit: TimeLimit | None,
) -> None:
    """Has the engine check constraints, while their request has no slot and no drain waits for it.

    Raises:
        InvalidRequest, EngineError: the engine refuses one.
        ClientDisconnected, Stopping, or the limit's error: the request ended during a check.
    """
    for constraint in constraints:
        if constraint is not None:
            checking = runtime.engine.check_constraint(constraint)
            await until_disconnect(receive, checking, limit)
    if runtime.stopping.is_set():
        raise Stopping


async def turn(
    runtime: Runtime, receive: Receive, place: Place, of_request: TimeLimit | None
) -> None:
    """Waits for a request's turn.

    Raises:
        QueueTimeout, ClientDisconnected, Stopping, or the limit's error: the wait ended without it.
    """
    admission, timeout_s = runtime.admission, runtime.settings.queue_timeout_s
    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    of_queue = TimeLimit.after(
        timeout_s, lambda: admission.counted(QueueTimeout(timeout_s, admission.retry_after_s))
    )
    limit = TimeLimit.earliest(of_queue, of_request)
    try:
        await until_disconnect(receive, place.start(), limit)
        while not admission.slots.is_open:
            # A drain has begun since the request's turn came: the drain does not know of it.
            place.give_back()
            await until_disconnect(receive, place.start(), limit)
    finally:
        admission.observe_wait(loop.time() - begun_s)
    if runtime.stopping.is_set():
        raise Stopping
