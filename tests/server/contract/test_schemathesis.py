"""Schemathesis over our own document: generated requests, valid and invalid, to every operation."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client_tools import python_tool, run
from tests.server.threaded import ThreadedServer

pytestmark = pytest.mark.prove

LIMIT_S = 300
KEY = "admin"


@pytest.fixture
def server() -> Iterator[ThreadedServer]:
    """A server with keys, so that operations are asked without them too."""
    running = ThreadedServer(api_key=("inference",), admin_key=(KEY,), enable_lora=True).start()
    yield running
    running.stop()


def test_no_answer_violates_the_document(
    server: ThreadedServer, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    command = python_tool(pytestconfig, "schemathesis==4.32.5", "st")
    done = run(
        [
            command,
            "run",
            f"{server.url}/openapi.json",
        ],
        LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-5000:]
