"""Clients of a real server that do not read, and what is left of them."""

import asyncio
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from server.http.connections import CHECK_EVERY_S
from tests.server.threaded import ThreadedServer

LIMIT = 64 * 1024
CLOSED = "specgate_connections_closed_total"


@pytest.fixture(scope="module")
def server() -> Iterator[ThreadedServer]:
    started = ThreadedServer(
        max_unsent_bytes=LIMIT, write_timeout_s=2 * CHECK_EVERY_S, max_model_len=20_000
    ).start()
    yield started
    started.stop()


def ask(server: ThreadedServer, path: str, body: Any) -> socket.socket:
    """Sends a request and reads nothing; the system buffers as little as it can."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", server.port))
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(content)}\r\n\r\n"
    )
    connection.sendall(head.encode() + content)
    return connection


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def closed(server: ThreadedServer, reason: str) -> float:
    return server.registry.get_sample_value(CLOSED, {"reason": reason}) or 0


def test_a_stream_of_128_choices_that_is_not_read_is_aborted(server: ThreadedServer) -> None:
    body = {"prompt": "x", "n": 128, "logprobs": 5, "max_tokens": 19_000, "stream": True}
    body["ignore_eos"] = True
    with capture_logs() as lines, ask(server, "/v1/completions", body):
        wait_until(lambda: closed(server, "unsent") == 1)
        wait_until(lambda: server.engine.num_running + server.engine.num_waiting == 0)
        wait_until(lambda: any(line["event"] == "stream_disconnected" for line in lines))
    (line,) = [line for line in lines if line["event"] == "connection_closed"]
    # One event above the limit, and no more: the server has kept nothing else of the stream.
    assert LIMIT < line["unsent_bytes"] < LIMIT + 4096
    assert (line["reason"], line["path"]) == ("unsent", "/v1/completions")


def test_a_stream_that_is_not_read_is_in_flight_until_the_engine_is_done() -> None:
    # A second in the engine, and not so large that it is aborted.
    server = ThreadedServer(engine_args={"fake_step_ms": 5, "fake_acceptance": 0}).start()
    try:
        in_flight = server.runtime.switcher.in_flight
        body = {"prompt": "x", "max_tokens": 200, "stream": True, "ignore_eos": True}
        with ask(server, "/v1/completions", body):
            wait_until(lambda: len(in_flight) == 1)
            wait_until(lambda: len(in_flight) == 0)
    finally:
        server.stop()


def test_a_whole_answer_that_is_not_read_has_a_deadline(server: ThreadedServer) -> None:
    decode = server.runtime.renderer.decode

    async def texts() -> dict[int, str]:
        return {token_id: await decode([token_id]) for token_id in range(1000, 1200)}

    found = asyncio.run(texts())
    longest = max(found, key=lambda token_id: len(found[token_id]))
    # The text is larger than what the system buffers.
    body = {"tokens": [longest] * 900_000}
    with capture_logs() as lines, ask(server, "/detokenize", body):
        wait_until(lambda: closed(server, "not_read") == 1)
    (line,) = [line for line in lines if line["event"] == "connection_closed"]
    assert (line["reason"], line["path"]) == ("not_read", "/detokenize")
    assert line["unsent_bytes"] > LIMIT
