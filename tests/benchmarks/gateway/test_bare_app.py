"""The bare app sends what was recorded, and the client counts it."""

import asyncio
import threading
from collections.abc import Iterator

import pytest
import uvicorn

from benchmarks.gateway.bare_app import bare_app
from benchmarks.gateway.client import Load, Stream, whole
from benchmarks.gateway.recording import RecordedStream, record

EVENTS = (*(f'data: {{"i": {i}}}\n\n'.encode() for i in range(40)), b"data: [DONE]\n\n")
RECORDING = RecordedStream(b'{"model": "m"}', EVENTS)


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a running bare app."""
    config = uvicorn.Config(
        bare_app([RECORDING], 0.0), host="127.0.0.1", port=0, lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    listener = config.bind_socket()
    listener.listen()
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    yield listener.getsockname()[1]
    server.should_exit = True
    thread.join()
    listener.close()


async def test_it_sends_what_was_recorded(port: int) -> None:
    assert await record(port, RECORDING.body) == RECORDING


async def test_the_client_counts_every_event(port: int) -> None:
    load = Load(port, RECORDING.body, len(EVENTS))
    streams = await load.in_turn(10, 3) + await load.at_times([0.0, 0.01])
    assert len(streams) == 12
    for stream in streams:
        assert len(stream.arrivals_s) == len(EVENTS)
        assert stream.arrivals_s == sorted(stream.arrivals_s)
        assert stream.sent_s <= stream.arrivals_s[0]
        assert stream.num_bytes > sum(map(len, EVENTS))


async def test_a_lost_event_is_noticed(port: int) -> None:
    with pytest.raises(RuntimeError, match="1 of 1 streams failed: has 41 events instead of 42"):
        await Load(port, RECORDING.body, len(EVENTS) + 1).in_turn(1, 1)


async def test_an_answer_without_an_end_is_noticed() -> None:
    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n9\r\ndata: 1\n\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
        load = Load(server.sockets[0].getsockname()[1], b"{}", 1)
        with pytest.raises(RuntimeError, match="ended after 1 events with"):
            await load.in_turn(2, 2)


async def test_a_refusal_is_reported(port: int) -> None:
    with pytest.raises(RuntimeError, match="answered with 404"):
        await record(port, b"{}")


def test_answers_of_different_lengths_are_noticed() -> None:
    with pytest.raises(RuntimeError, match="different lengths"):
        whole([Stream(num_bytes=3), Stream(num_bytes=4)])
