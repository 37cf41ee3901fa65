"""Cross-origin requests: which web pages a browser lets call this server, and read what it answers.

A browser asks before a page of another origin sends JSON or a key (a preflight), and shows the
answer to the page only if the answer allows the page's origin. Answers of the admin paths never
do: a web page must not steer the server, even with an admin key.
"""

from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from engine_adapter.seam.text import short_repr
from server.errors import ApiError, error_response
from server.http.auth import ADMIN_PATHS
from server.http.headers import RESPONSE_HEADERS
from server.settings.origins import EVERY_ORIGIN

_METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")


class Cors(CORSMiddleware):
    """Starlette's middleware for every path but the admin paths, with errors in OpenAI's format.

    Credentials are off: browsers then send no cookies and show no answer that needs them. A page
    sends its key as a header, which needs no credentials.

    Args:
        origins: the allowed origins, or `*`.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str]) -> None:
        super().__init__(
            app,
            allow_origins=origins,
            allow_methods=_METHODS,
            # Clients send headers of their own, such as the name and version of a library.
            allow_headers=("*",),
            allow_credentials=False,
            expose_headers=tuple(RESPONSE_HEADERS),
            # An origin that is named may be on the internet while the server is not.
            allow_private_network=EVERY_ORIGIN not in origins,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes admin requests on without a header that allows an origin."""
        if scope["type"] == "http" and scope["path"] in ADMIN_PATHS:
            message = "Admin paths do not answer pages of another origin, even of an allowed one."
            app = _refusal(message) if _is_preflight(scope) else self.app
            await app(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a preflight: 200, or 403 that says what is not allowed."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        if not self.is_allowed_origin(request_headers["origin"]):
            message = (
                f"The origin {short_repr(request_headers['origin'])} is not allowed; "
                "--allowed-origins allows it."
            )
        elif request_headers["access-control-request-method"] not in _METHODS:
            message = f"No route has this method; the methods are {', '.join(_METHODS)}."
        else:
            message = "With * no page may call a private network; name the page's origin."
        refusal = _refusal(message)
        refusal.headers.update(
            {k: v for k, v in response.headers.items() if k.startswith(("access-control", "vary"))}
        )
        return refusal


def _is_preflight(scope: Scope) -> bool:
    headers = Headers(scope=scope)
    return (
        scope["method"] == "OPTIONS"
        and "origin" in headers
        and "access-control-request-method" in headers
    )


def _refusal(message: str) -> Response:
    error = ApiError(403, message, type="permission_error", code="origin_not_allowed")
    return error_response(error)
