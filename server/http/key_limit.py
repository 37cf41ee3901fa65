"""The limits of an API key, held before a request's body is read. Pure ASGI."""

from contextlib import ExitStack

from starlette.types import ASGIApp, Receive, Scope, Send

from server.control.key_limits import KeyLimits
from server.errors import send_error
from server.http.auth import key_name
from server.limit_errors import TooManyRequests

GENERATING_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
"""The paths whose POSTs count: those that have the engine generate."""


class KeyLimit:
    """Counts a generating request for its key until it is answered, or answers 429."""

    def __init__(self, app: ASGIApp, limits: KeyLimits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as counted:
            if _generates(scope):
                try:
                    counted.enter_context(self._limits.request(key_name(scope)))
                except TooManyRequests as refusal:
                    await send_error(refusal, scope, receive, send)
                    return
            await self._app(scope, receive, send)


def _generates(scope: Scope) -> bool:
    return (
        scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in GENERATING_PATHS
    )
