"""What the server overrides of uvicorn: a release that moves it is found here."""

import inspect
import re
from typing import Any

import pytest
from uvicorn import server as uvicorn_server
from uvicorn.protocols.http import httptools_impl

from server.commands.http_server import HttpServer
from server.http.connection import Connection

OVERRIDES: dict[type, tuple[str, ...]] = {
    Connection: (
        *("connection_made", "connection_lost", "data_received", "pause_writing"),
        *("on_message_begin", "on_url", "on_header", "on_headers_complete", "on_body"),
        *("on_message_complete", "send_400_response", "_start_asgi_task"),
        *("on_response_complete", "timeout_keep_alive_handler"),
    ),
    HttpServer: ("capture_signals", "on_tick", "shutdown", "startup"),
}
"""Class -> uvicorn's methods that it overrides."""

CALLED_BY_UVICORN: dict[type, tuple[str, ...]] = {
    Connection: ("send_400_response", "_start_asgi_task", "on_response_complete"),
    HttpServer: OVERRIDES[HttpServer],
}
"""Those that only uvicorn calls; asyncio and the parser call the others by documented names."""

PASSED_ON: dict[type, str] = {Connection: "timeout_keep_alive_handler"}
"""A method that uvicorn hands to a timer."""

MODULES: dict[type, Any] = {Connection: httptools_impl, HttpServer: uvicorn_server}

every = pytest.mark.parametrize("ours", OVERRIDES, ids=lambda kind: kind.__name__)


@every
def test_every_override_is_listed_and_every_listed_one_overrides(ours: type) -> None:
    own = {name for name, value in vars(ours).items() if inspect.isfunction(value)}
    (upstream,) = ours.__bases__
    overrides = {name for name in own if not name.startswith("__") and hasattr(upstream, name)}
    assert overrides == set(OVERRIDES[ours])


@every
def test_every_override_has_uvicorns_parameters(ours: type) -> None:
    (upstream,) = ours.__bases__
    for name in OVERRIDES[ours]:
        parameters = [
            list(inspect.signature(getattr(k, name)).parameters) for k in (ours, upstream)
        ]
        assert parameters[0] == parameters[1], name


@every
def test_uvicorn_uses_every_method_that_is_overridden(ours: type) -> None:
    source = inspect.getsource(MODULES[ours])
    for name in CALLED_BY_UVICORN[ours]:
        assert re.search(rf"self\.{name}\b|=self\.{name}\b", source), name
    if (timer := PASSED_ON.get(ours)) is not None:
        assert re.search(rf"call_later\([^)]*self\.{timer}", source, re.DOTALL)
