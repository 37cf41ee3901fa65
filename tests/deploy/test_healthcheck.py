"""The image's health check."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "healthcheck.py"


@contextmanager
def answering(status: int) -> Iterator[int]:
    """A server that answers `/ready` with this status and all else with 404; gives its port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/ready" else 404)
            self.end_headers()
            self.wfile.write(b"engine_not_ready")

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def check(port: int) -> "subprocess.CompletedProcess[str]":
    """Runs the health check as the container does."""
    variables = {"SPECGATE_PORT": str(port), "http_proxy": "http://127.0.0.1:1"}
    command = [sys.executable, str(SCRIPT)]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("status", "expected"), [(200, 0), (503, 1), (404, 1)])
def test_only_a_server_that_is_ready_is_healthy(status: int, expected: int) -> None:
    with answering(status) as port:
        done = check(port)
    assert done.returncode == expected
    assert f"{status} engine_not_ready" in done.stdout


def test_no_server_is_not_healthy() -> None:
    with answering(200) as port:
        pass
    done = check(port)
    assert done.returncode == 1
    assert f"no answer on port {port}" in done.stdout
    assert not done.stderr
