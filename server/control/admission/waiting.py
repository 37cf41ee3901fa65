"""The waits of a request before it is admitted: the check of its constraints, then for a slot."""

import asyncio
from collections.abc import Iterable

from starlette.types import Receive

from engine_adapter.seam.types import StructuredOutput
from server.control.admission.limit_errors import QueueTimeout
from server.control.admission.request_cost import RequestCost
from server.control.admission.slots import Ticket
from server.http.event_stream import until_disconnect
from server.state import Runtime
from server.time_limits import TimeLimit


async def check_constraints(
    runtime: Runtime,
    receive: Receive,
    constraints: Iterable[StructuredOutput],
    ticket: Ticket,
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
    with admission.checked(ticket):
        start_s = loop.time()
        try:
            for constraint in constraints:
                check = runtime.engine.check_constraint(constraint, ticket.cost.key)
                await until_disconnect(receive, check, limit)
        except BaseException:
            admission.observe_wait(ticket.cost, loop.time() - start_s)
            raise
        return loop.time() - start_s


def waiting_limit(runtime: Runtime, cost: RequestCost) -> TimeLimit | None:
    """The time by which a request that waits from now on must have a slot."""
    if cost.is_background:
        return None
    admission, timeout_s = runtime.admission, runtime.settings.queue_timeout_s
    return TimeLimit.after(
        timeout_s, lambda: admission.counted(QueueTimeout(timeout_s, admission.retry_after_s))
    )


async def wait_for_slot(
    runtime: Runtime,
    receive: Receive,
    ticket: Ticket,
    limit: TimeLimit | None,
    waited_s: float = 0.0,
) -> None:
    """Waits for the slots of a request's first sequence.

    Args:
        waited_s: how long the request has waited before.

    Raises:
        ClientDisconnected, or the limit's error: the wait ended without it.
    """
    admission = runtime.admission
    loop = asyncio.get_running_loop()
    start_s = loop.time() - waited_s
    try:
        await until_disconnect(receive, ticket.start(), limit)
        while not admission.slots.is_open:
            # A drain has begun since the request got its slots: the drain does not know of it.
            ticket.undo_start()
            await until_disconnect(receive, ticket.start(), limit)
    finally:
        admission.observe_wait(ticket.cost, loop.time() - start_s)
