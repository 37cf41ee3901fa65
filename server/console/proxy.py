"""The console of a server elsewhere: its page on this machine, and its calls passed on.

A page may call only the server that it came from, so this one passes the API's calls on. It keeps
no key: the browser sends its own with every call.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from http.cookiejar import DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

import httpx
from fastapi import Depends, FastAPI, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

from server.errors import ApiError, install_error_handlers
from server.fleet.addresses import resolve
from server.fleet.http_fleet import HttpFleet, fleet_client
from server.fleet.view import ReplicaView, view
from server.http.body_limit import BodyLimit
from server.http.direct import indirect, is_loopback
from server.http.headers import REQUEST_ID, RETRY_AFTER, SPEC_METHOD
from server.routes import console
from server.settings.http_settings import HttpSettings
from server.tls_problems import tls_problem

CONNECT_TIMEOUT_S = 5.0
_PASSED_ON = ("accept", "authorization", "content-type")
_PASSED_BACK = ("content-type", RETRY_AFTER, REQUEST_ID, SPEC_METHOD)


def _client(url: str, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=url,
        # A drain may take as long as its own limit says.
        timeout=httpx.Timeout(None, connect=CONNECT_TIMEOUT_S),
        transport=transport,
        # Admin routes without a key answer direct requests only: no proxy to loopback.
        trust_env=not is_loopback(urlsplit(url).hostname or ""),
        # SSL_CERT_FILE counts for loopback too.
        verify=httpx.create_ssl_context(),
    )


def create_console(
    url: str,
    *,
    on_loopback: bool,
    transport: httpx.AsyncBaseTransport | None = None,
    fleet: Sequence[str] = (),
) -> FastAPI:
    """The application.

    Args:
        url: the address of the server.
        on_loopback: only this machine can reach the console.
        transport: used instead of the network.
        fleet: the addresses of all replicas; none: the page shows the server alone.
    """
    # It has no key of its own: every call brings the browser's.
    client, to_fleet = _client(url, transport), fleet_client(None, transport)
    app = _app((client, to_fleet), on_loopback)

    async def pass_on(request: Request) -> Response:
        return await _pass_on(client, request, on_loopback)

    for path in ("/v1/{rest:path}", "/metrics", "/health", "/ready", "/version"):
        app.add_api_route(path, pass_on, methods=["GET", "POST", "PUT"], include_in_schema=False)
    if fleet:
        _add_fleet(app, fleet, to_fleet, on_loopback)
    app.include_router(console.router)
    return app


def _app(clients: Sequence[httpx.AsyncClient], on_loopback: bool) -> FastAPI:
    """An application without routes that answers its own page only, and closes the clients."""
    for client in clients:
        # A cookie of a proxy in front of the servers belongs to one browser, not to the next.
        client.cookies.jar.set_policy(DefaultCookiePolicy(allowed_domains=()))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with AsyncExitStack() as stack:
            for client in clients:
                await stack.enter_async_context(client)
            yield

    async def refuse_foreign(request: Request) -> None:
        if _is_foreign(request, on_loopback):
            message = "Only the console's own page may call it, by the address it was started on."
            raise ApiError(403, message, type="permission_error")

    app = FastAPI(
        lifespan=lifespan,
        dependencies=[Depends(refuse_foreign)],
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    install_error_handlers(app)
    app.add_middleware(BodyLimit, settings=HttpSettings(), reading=set())
    return app


def _add_fleet(
    app: FastAPI, urls: Sequence[str], client: httpx.AsyncClient, on_loopback: bool
) -> None:
    async def show_fleet(request: Request) -> JSONResponse:
        """A line of the page's table for each replica, asked with the browser's key."""
        try:
            addresses = await resolve(urls)
        except (OSError, ValueError) as error:
            # A name with a part that is too long has no encoding, which is a ValueError.
            raise ApiError(
                502, str(error), type="server_error", code="server_unreachable"
            ) from None
        replicas = HttpFleet(client, addresses, _headers(request, on_loopback))
        return JSONResponse([_line(row) for row in await view(replicas)])

    app.add_api_route("/fleet", show_fleet, methods=["GET"], include_in_schema=False)


def _line(row: ReplicaView) -> dict[str, Any]:
    method = row.spec_method
    names = ("spec_method", "num_speculative_tokens", "in_flight", "fleet")
    return {
        "replica": row.replica,
        "differs": row.differs,
        "error": row.error,
        **{name: None if method is None else method[name] for name in names},
    }


def _is_foreign(request: Request, on_loopback: bool) -> bool:
    """Whether another web page sends it, or a name of another's that leads to this machine.

    The server trusts this process as a direct caller from its machine, so what it checks of a
    browser's requests is checked here.
    """
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    try:
        host_name = urlsplit(f"//{host}").hostname or ""
        other_page = origin is not None and urlsplit(origin).netloc != host
    except ValueError:
        return True
    return other_page or (on_loopback and not is_loopback(host_name))


def _headers(request: Request, on_loopback: bool) -> dict[str, str]:
    """The headers of a browser's request that the server gets."""
    headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    if not on_loopback or indirect(request.scope) is not None:
        # The server then sees that the request may come from another machine, and wants a key.
        headers["x-forwarded-for"] = request.client.host if request.client else "unknown"
    return headers


async def _pass_on(client: httpx.AsyncClient, request: Request, on_loopback: bool) -> Response:
    headers = _headers(request, on_loopback)
    if ".." in request.url.path.split("/"):
        raise ApiError(400, "The path must not contain '..'.")
    content = await request.body()
    try:
        target = httpx.URL(path=request.url.path, query=request.url.query.encode())
        answer = await client.send(
            client.build_request(request.method, target, headers=headers, content=content),
            stream=True,
        )
    except httpx.InvalidURL as error:
        raise ApiError(400, f"The path cannot be passed on: {error}") from None
    except httpx.HTTPError as error:
        reason = tls_problem(error) or error
        message = f"The server at {client.base_url} does not answer: {reason}"
        raise ApiError(502, message, type="server_error", code="server_unreachable") from None
    back = {name: answer.headers[name] for name in _PASSED_BACK if name in answer.headers}
    return StreamingResponse(_body(answer), answer.status_code, back)


async def _body(answer: httpx.Response) -> AsyncIterator[bytes]:
    """The body as it comes. A browser that leaves a stream ends it at the server too."""
    try:
        async for part in answer.aiter_bytes():
            yield part
    finally:
        await answer.aclose()
