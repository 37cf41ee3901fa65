"""The errors with which a limit ends a request; see docs/overload.md.

ApiError
├── TooManyRequests         429, with Retry-After
│   ├── QueueFull           the server has too many requests
│   ├── ConcurrencyLimit    the API key has too many unfinished requests
│   └── RateLimit           the API key has sent too many requests within a minute
├── QueueTimeout            503, with Retry-After: the request waited too long and has not begun
├── FirstTokenTimeout       504: the request has begun, and its first token took too long
└── RequestTimeout          504: the request took too long
"""

import math
from collections.abc import Mapping, Sequence

from server.errors import ApiError, Unavailable
from server.http.headers import RETRY_AFTER

RETRY_AFTER_UNKNOWN_S = 5.0
"""Retry-After while nothing is measured."""

MAX_RETRY_AFTER_S = 60.0
"""The longest Retry-After: clients of OpenAI's ignore a longer one."""


class TooManyRequests(ApiError):
    """429: the same request can succeed later. Each subclass has its `code`."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(
            429,
            message,
            type="rate_limit_error",
            code=self.code,
            headers={RETRY_AFTER: str(math.ceil(_bounded(retry_after_s)))},
        )


class QueueFull(TooManyRequests):
    """The queue has no room for the request; `reason` says why, as a clause."""

    code = "server_overloaded"

    def __init__(self, reason: str, retry_after_s: float | None) -> None:
        message = f"The server is overloaded: {reason}. Try again later."
        super().__init__(message, retry_after_s)


class ConcurrencyLimit(TooManyRequests):
    """The API key has as many unfinished requests as it may have."""

    code = "concurrency_limit_exceeded"

    def __init__(self, max_requests: int) -> None:
        super().__init__(
            f"This API key can have at most {max_requests} unfinished requests. "
            "Wait for one to end.",
            1.0,
        )


class RateLimit(TooManyRequests):
    """The API key sends more requests a minute than it may."""

    code = "rate_limit_exceeded"

    def __init__(self, per_minute: int, retry_after_s: float) -> None:
        super().__init__(
            f"This API key can send at most {per_minute} requests a minute.",
            retry_after_s,
        )


class QueueTimeout(Unavailable):
    """503: the request waited `waited_s` seconds, and its turn has not come."""

    code = "queue_timeout"

    def __init__(self, waited_s: float, retry_after_s: float | None) -> None:
        super().__init__(
            f"The request waited for {waited_s:g} s and its turn has not come.",
            self.code,
            _bounded(retry_after_s),
        )


class FirstTokenTimeout(ApiError):
    """504: no token came within `limit_s` seconds of the request's begin."""

    code = "first_token_timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            504,
            f"The request had no token after {limit_s:g} s, and was ended.",
            type="server_error",
            code=self.code,
        )


class RequestTimeout(ApiError):
    """504: the request has not ended within `limit_s` seconds."""

    code = "request_timeout"

    def __init__(self, limit_s: float) -> None:
        super().__init__(
            504,
            f"The request had not ended after {limit_s:g} s, and was ended.",
            type="server_error",
            code=self.code,
        )


KEY_LIMIT_CODES = (ConcurrencyLimit.code, RateLimit.code)
"""The codes of the errors with which a limit of an API key refuses a request."""

LIMIT_CODES: Mapping[int, Sequence[str]] = {
    429: (QueueFull.code, *KEY_LIMIT_CODES),
    503: (QueueTimeout.code,),
    504: (FirstTokenTimeout.code, RequestTimeout.code),
}
"""Status -> the codes of the errors with which a limit ends a request."""


def _bounded(retry_after_s: float | None) -> float:
    return min(max(1.0, retry_after_s or RETRY_AFTER_UNKNOWN_S), MAX_RETRY_AFTER_S)
