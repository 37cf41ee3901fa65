"""Without keys, replicas under Ray Serve answer only the machine of Serve's proxy."""

from starlette.types import ASGIApp, Receive, Scope, Send

from server.errors import ApiError, error_response
from server.http.direct import indirect


class OnlyThisMachine:
    """Refuses what does not come directly from the machine of the proxy that received it.

    The proxies listen, not the replicas, so no replica knows on which address.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuses an HTTP request with 403, or passes it on."""
        app = self._app
        if scope["type"] == "http" and (reason := indirect(scope)) is not None:
            message = f"Without an API key only this machine is served; {reason}. Set a key."
            app = error_response(
                ApiError(403, message, type="permission_error", code="host_not_allowed")
            )
        await app(scope, receive, send)
