"""Clients that are slow, silent, too many or too large: memory is flat, and others are served."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from server.http.descriptors import raise_limit
from tests.e2e import raw_http
from tests.e2e.raw_http import address, exchange, request, send_until_closed, status, stream_text
from tests.e2e.served import Served, wait_until

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(600)]

MIB = 1 << 20
CLOSED = "specgate_connections_closed_total"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "server.log"


@contextmanager
def running(log: Path, *flags: str, **engine: object) -> Iterator[Served]:
    """A server on the fake engine, which must be alive at the end."""
    arguments = ("--engine", "fake", "--engine-args", json.dumps(engine), "--no-access-log")
    served = Served.start_beside(log, *arguments, *flags)
    try:
        yield served
        assert served.process.poll() is None, served.tail()
    finally:
        served.kill()


@pytest.fixture
def served(log: Path) -> Iterator[Served]:
    with running(log, fake_step_ms=5) as served:
        yield served


def rss(served: Served) -> int:
    return int(psutil.Process(served.process.pid).memory_info().rss)


def warm_up(served: Served) -> None:
    """Makes the memory that the first requests take."""
    for _ in range(20):
        served.post("/v1/completions", {"prompt": "a", "n": 8, "max_tokens": 8})


def closed(served: Served, reason: str) -> float:
    return served.scrape()(CLOSED, reason=reason)


GET = b"GET /health HTTP/1.1\r\nhost: x\r\n"
FLOODS = {
    "small headers": (GET, b"x-filler: 0123456789\r\n" * 3000, 431),
    "one header": (GET + b"x-filler: ", b"0" * 65536, 431),
    "url": (b"GET /", b"0" * 65536, 414),
    "trailer": (
        b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        b"2\r\n{}\r\n0\r\nx-filler: ",
        b"0" * 65536,
        0,
    ),
}


@pytest.mark.parametrize("name", FLOODS)
def test_100_mb_of_headers_are_refused_with_flat_memory(served: Served, name: str) -> None:
    begin, part, expected = FLOODS[name]
    warm_up(served)
    before = rss(served)
    parts = [begin, *(part for _ in range(100 * MIB // len(part)))]
    answer = send_until_closed(served.url, parts)
    # The server closes while the client still sends, so the answer may be lost.
    assert status(answer) in (expected, 0)
    assert closed(served, "too_large") == 1
    assert rss(served) - before < 4 * MIB
    served.get("/health")


async def test_a_stream_of_128_choices_that_is_not_read_is_aborted(log: Path) -> None:
    # On a busy machine the stream needs long for 8 MiB, and must not be closed as not read before.
    flags = ("--max-unsent-bytes", "8MiB", "--max-model-len", "100000", "--write-timeout-s", "600")
    with running(log, *flags, fake_step_ms=0) as served:
        warm_up(served)
        before = rss(served)
        body = {"prompt": "x", "n": 128, "logprobs": 5, "max_tokens": 50_000, "stream": True}
        reader, writer = await asyncio.open_connection(*address(served.url), limit=1)
        writer.write(request("/v1/completions", {**body, "ignore_eos": True}))
        await reader.read(1)
        most = before
        deadline = time.monotonic() + 480
        while closed(served, "unsent") == 0:
            assert time.monotonic() < deadline
            for _ in range(10):
                most = max(most, rss(served))
                await asyncio.sleep(0.05)
        served.wait_until_idle()
        print(f"RSS {before / MIB:.0f} MiB, at most {most / MIB:.0f} MiB")
        assert most - before < 40 * MIB
        assert "reason=unsent" in served.tail()
        writer.close()


async def test_streams_that_nobody_reads_are_bounded_together(log: Path) -> None:
    """Each leaves less than its own limit unread, and all together more than the limit of all."""
    flags = ("--max-all-unsent-bytes", "16MiB", "--max-model-len", "100000")
    with running(log, *flags, "--write-timeout-s", "600", fake_step_ms=0) as served:
        warm_up(served)
        before = rss(served)
        body = {"prompt": "x", "n": 128, "logprobs": 5, "max_tokens": 50_000, "stream": True}
        content = request("/v1/completions", {**body, "ignore_eos": True})
        writers = []
        for _ in range(30):
            _, writer = await asyncio.open_connection(*address(served.url), limit=1)
            writer.write(content)
            writers.append(writer)
        most = before
        deadline = time.monotonic() + 480
        while closed(served, "all_unsent") < 3:
            assert time.monotonic() < deadline
            for _ in range(10):
                most = max(most, rss(served))
                await asyncio.sleep(0.05)
        assert closed(served, "unsent") == 0
        print(f"RSS {before / MIB:.0f} MiB, at most {most / MIB:.0f} MiB")
        assert most - before < 100 * MIB
        for writer in writers:
            writer.transport.abort()


async def test_5000_idle_connections_cost_little(log: Path) -> None:
    assert raise_limit() >= 6000, "this test needs 6000 descriptors"
    with running(log, "--idle-timeout-s", "300", "--max-connections", "5100") as served:
        warm_up(served)
        process = psutil.Process(served.process.pid)
        memory, alone_s, alone_cpu_s = rss(served), await asked(served), await cpu_s(process)
        idle = [await asyncio.open_connection(*address(served.url)) for _ in range(5000)]
        wait_until(lambda: served.scrape()("specgate_connections") >= 5000, 60, "all are open")
        grown, beside_s, beside_cpu_s = (
            rss(served) - memory,
            await asked(served),
            await cpu_s(process),
        )
        print(
            f"5000 idle connections: RSS +{grown / MIB:.0f} MiB, CPU of 10 s {alone_cpu_s:.2f} and "
            f"{beside_cpu_s:.2f} s, /health p50 {alone_s[0] * 1e3:.1f} and "
            f"{beside_s[0] * 1e3:.1f} ms, worst {alone_s[1] * 1e3:.1f} and {beside_s[1] * 1e3:.1f}"
        )
        assert grown < 200 * MIB
        # The look at them once a second takes some milliseconds.
        assert beside_cpu_s - alone_cpu_s < 1
        for _, writer in idle:
            writer.transport.abort()


async def asked(served: Served) -> tuple[float, float]:
    """The median and the worst seconds of 300 probes, each on a connection of its own."""
    content = b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n"
    times = []
    for _ in range(300):
        begun = time.perf_counter()
        assert status(await exchange(served.url, content)) == 200
        times.append(time.perf_counter() - begun)
        await asyncio.sleep(0.01)
    return sorted(times)[150], max(times)


async def cpu_s(process: psutil.Process, seconds: float = 10) -> float:
    """The CPU time that a process takes in some seconds."""
    before = sum(process.cpu_times()[:2])
    await asyncio.sleep(seconds)
    return float(sum(process.cpu_times()[:2]) - before)


async def test_an_unread_stream_blocks_no_drain_and_is_closed(log: Path) -> None:
    with running(
        log, "--write-timeout-s", "3", "--max-model-len", "4096", fake_step_ms=0
    ) as served:
        body = {"prompt": "x", "n": 128, "logprobs": 5, "max_tokens": 200, "stream": True}
        reader, writer = await asyncio.open_connection(*address(served.url), limit=1)
        writer.write(request("/v1/completions", {**body, "ignore_eos": True}))
        await reader.read(1)
        # The engine is done, and the answer is larger than what the system buffers.
        served.wait_until_idle(60)
        served.switch("none", "drain")
        wait_until(lambda: closed(served, "not_read") == 1, 30, "the connection is closed")
        writer.close()


async def test_2000_idle_and_500_slow_connections_beside_streams(log: Path) -> None:
    assert raise_limit() >= 4096, "this test needs 4096 descriptors"
    with running(
        log,
        *("--idle-timeout-s", "30", "--header-timeout-s", "30", "--body-timeout-s", "30"),
        fake_step_ms=10,
    ) as served:
        warm_up(served)
        body = {"prompt": "x", "max_tokens": 300, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True}
        content = request("/v1/completions", body, "connection: close")
        expected = stream_text(await exchange(served.url, content))
        before = rss(served)
        idle = [await asyncio.open_connection(*address(served.url)) for _ in range(2000)]
        slow = [await asyncio.open_connection(*address(served.url)) for _ in range(500)]
        halves = [content[:40], content[:-5], raw_http.head("/v1/completions", b"x" * 1000) + b"{"]
        for i, (_, writer) in enumerate(slow):
            writer.write(halves[i % len(halves)])
        assert served.scrape()("specgate_connections") >= 2500
        answers = await asyncio.gather(*(exchange(served.url, content) for _ in range(50)))
        assert [stream_text(answer) for answer in answers] == [expected] * 50
        growth = rss(served) - before
        print(f"RSS +{growth / MIB:.0f} MiB for 2500 connections")
        assert growth < 100 * MIB
        ends = await asyncio.wait_for(
            asyncio.gather(*(reader.read() for reader, _ in (*idle, *slow))), 120
        )
        assert {status(end) for end in ends[:2000]} == {0}
        assert {status(end) for end in ends[2000:]} == {408}
        wait_until(lambda: served.scrape()("specgate_connections") <= 2, 10, "all are closed")
        assert closed(served, "idle") >= 2000
        for _, writer in (*idle, *slow):
            writer.close()


def test_descriptors_that_run_out_are_logged_and_counted_and_come_back(log: Path) -> None:
    with running(log) as served:
        served.get("/health")
        process = psutil.Process(served.process.pid)
        few = process.num_fds() + 20
        process.rlimit(psutil.RLIMIT_NOFILE, (few, few))
        taken = [socket.create_connection(address(served.url)) for _ in range(60)]
        wait_until(lambda: "descriptors_exhausted" in log.read_text(), 10, "it is logged")
        assert served.process.poll() is None
        for connection in taken:
            connection.close()
        wait_until(lambda: process.num_fds() < few - 5, 10, "descriptors are free")
        assert served.scrape()("specgate_descriptors_exhausted_total") >= 1
        assert served.post("/v1/completions", {"prompt": "a", "max_tokens": 4})


def test_above_the_most_connections_probes_are_answered(log: Path) -> None:
    with running(log, "--max-connections", "20") as served:
        taken = [socket.create_connection(address(served.url)) for _ in range(20)]
        content = request("/tokenize", {"prompt": "a"}, "connection: close")
        wait_until(
            lambda: status(send_until_closed(served.url, [content])) == 503,
            10,
            "the server is full",
        )
        served.get("/health")
        assert "reason=refused" in log.read_text()
        assert closed(served, "refused") >= 1
        for connection in taken:
            connection.close()
        wait_until(lambda: served.scrape()("specgate_connections") <= 2, 10, "they are gone")
        served.post("/tokenize", {"prompt": "a"})
