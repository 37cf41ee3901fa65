"""The limits of an API key, and a full queue, before a request's body is read. Pure ASGI."""

from collections.abc import Callable
from contextlib import ExitStack

from starlette.types import ASGIApp, Receive, Scope, Send

from server.control.admission.key_limits import KeyLimits, KeyTurns
from server.control.admission.limit_errors import TooManyRequests
from server.errors import ApiError, send_error
from server.http.auth import key_name
from server.telemetry.http_metrics import GENERATING

COUNTED_PATHS = frozenset(GENERATING) | {
    "/tokenize",
    "/detokenize",
    "/v1/messages/count_tokens",
    "/v1/files",
    "/v1/batches",
    "/v1/responses/input_tokens",
}
"""The paths whose POSTs count: those that generate, turn text into tokens or back, or store."""

COUNTED_PREFIX = "/v1/conversations"
"""POSTs to paths from here on count too: they store texts."""


class KeyLimit:
    """Counts a request for its key until it is answered, or answers 429.

    The requests of a key come in a few at a time: a thousand at once, or as many that are refused
    and sent again, do not hold up the requests of another key.

    Args:
        refusal: the error of a generating request of this key if the queue has no place for it now.
    """

    def __init__(
        self, app: ASGIApp, limits: KeyLimits, refusal: Callable[[str | None], ApiError | None]
    ) -> None:
        self._app = app
        self._limits = limits
        self._refusal = refusal
        self._turns = KeyTurns()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as stack:
            is_post = scope["type"] == "http" and scope["method"] == "POST"
            path = scope["path"] if is_post else ""
            if path in COUNTED_PATHS or path.startswith(COUNTED_PREFIX):
                key = key_name(scope)
                await self._turns.turn(key)
                try:
                    stack.enter_context(self._limits.request(key))
                except TooManyRequests as limited:
                    await send_error(limited, scope, receive, send)
                    return
                refusal = self._refusal(key) if path in GENERATING else None
                if refusal is not None:
                    await send_error(refusal, scope, receive, send)
                    return
            await self._app(scope, receive, send)
