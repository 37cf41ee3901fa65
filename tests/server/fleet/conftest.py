"""Fleets on real ports: servers on the fake engine, in threads of the test's process."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.server.threaded import ThreadedServer

StartServer = Callable[..., ThreadedServer]

ADMIN_KEY = "sk-fleet-admin"


@pytest.fixture
def start_server() -> Iterator[StartServer]:
    """Starts servers that want an admin key; all are stopped afterwards."""
    servers: list[ThreadedServer] = []

    def start(**settings: Any) -> ThreadedServer:
        given = {"admin_key": (ADMIN_KEY,), "spec_method": "none", **settings}
        server = ThreadedServer(**given).start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()
