"""A server on a real port, for commands that talk to one."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import uvicorn

from tests.server.gateway import build


@pytest.fixture(scope="package")
def url() -> Iterator[str]:
    """The address of a gateway on the fake engine."""
    with serving() as address:
        yield address


@contextmanager
def serving(**settings: Any) -> Iterator[str]:
    """A gateway with these settings on the fake engine, in a thread of its own; its address."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        app, _, _ = build(**settings)
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, ws="none"))
        thread = threading.Thread(target=server.run, args=[[listener]], daemon=True)
        thread.start()
        deadline = time.monotonic() + 60
        while not app.state.specgate.ready:
            assert time.monotonic() < deadline, "the server did not start"
            time.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join(60)


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests' own environment names no server."""
    for name in ("SPECGATE_URL", "SPECGATE_ADMIN_KEY"):
        monkeypatch.delenv(name, raising=False)
