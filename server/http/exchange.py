"""What the server notes of one HTTP exchange, in its ASGI scope: for the log and the trace."""

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from starlette.types import Scope

if TYPE_CHECKING:
    from server.telemetry.spans import ServerSpan

_KEY = "specgate.exchange"


@dataclass(slots=True)
class Exchange:
    """One HTTP exchange.

    Attributes:
        start_s: when it began, by `time.perf_counter`.
        status: the status code of the response; 500 until it has begun.
        error: the code of an error that is the response.
        span: `None` if the request has none.
        request_id: which every response has as a header.
        is_background: the server sends the request itself, for a batch.
    """

    start_s: float = field(default_factory=time.perf_counter)
    status: int = 500
    error: str | None = None
    span: "ServerSpan | None" = None
    request_id: str | None = None
    is_background: bool = False


def exchange_of(scope: Scope) -> Exchange:
    """The exchange of a scope; the first call begins it."""
    exchange: Exchange | None = scope.get(_KEY)
    if exchange is None:
        exchange = scope[_KEY] = Exchange()
    return exchange
