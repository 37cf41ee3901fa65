"""Closed and open loops and ramps against a server that answers with prepared bytes."""

import asyncio
from typing import Any

import pytest

from benchmarks.load.arrivals import Arrivals, ClosedLoop, OpenLoop, Ramp
from benchmarks.load.drive import Driver, PlannedRequest
from benchmarks.load.prompts import Prompt
from benchmarks.load.sides import Side, Target
from tests.benchmarks.load.scripted import STREAM_HEAD, Server, chunks, event, part, plain, served

PROMPTS = [Prompt(f"p{i}", "quote", {"prompt": f"prompt {i}"}) for i in range(12)]


def target(url: str) -> Target:
    side = Side("a", url)
    return Target(side, side.endpoint(), "m", {}, ())


def requests(count: int) -> list[PlannedRequest]:
    return [PlannedRequest(i, PROMPTS[i % len(PROMPTS)], 0.0, 3, i) for i in range(count)]


async def drive(
    url: str, arrivals: Arrivals, count: int, seconds: float | None = None, limit_s: float = 60.0
) -> Driver:
    driver = Driver(target(url), [requests(count)], seconds, limit_s)
    await driver.run(arrivals, seed=3)
    return driver


async def test_a_closed_loop_keeps_its_concurrency() -> None:
    server = Server(0.02)
    async with served(server) as url:
        driver = await drive(url, ClosedLoop(3), 9)
    assert server.most == 3
    assert len(driver.samples()) == 9
    assert driver.seconds >= 0.06


class AllAtOnce(Server):
    """Answers when this many requests have come."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count
        self.all_came = asyncio.Event()

    async def answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        if len(self.bodies) == self.count:
            self.all_came.set()
        await self.all_came.wait()
        await super().answer(body, writer)


async def test_an_open_loop_does_not_wait_for_answers() -> None:
    server = AllAtOnce(12)
    arrivals = OpenLoop(100.0)
    async with served(server) as url:
        driver = await drive(url, arrivals, 12)
    assert len(driver.samples()) == 12
    planned = arrivals.times_s(12, 3)
    for sample in driver.samples():
        assert sample.sent_s == pytest.approx(
            planned[sample.index] + sample.late_ms / 1e3, abs=1e-3
        )
        assert sample.error is None
        assert sample.e2e_ms is not None
        assert sample.sent_s + sample.e2e_ms / 1e3 > planned[-1], "the last one came before"


async def test_after_the_time_is_over_nothing_is_sent_and_all_end() -> None:
    server = Server(0.1)
    async with served(server) as url:
        closed = await drive(url, ClosedLoop(2), 1000, seconds=0.25)
        opened = await drive(url, OpenLoop(40.0), 1000, seconds=0.25)
    # On a busy machine there are fewer.
    assert 2 <= len(closed.samples()) <= 6
    assert all(s.sent_s - s.late_ms / 1e3 < 0.25 for s in opened.samples())
    assert len(opened.samples()) < 40
    assert server.in_flight == 0


async def test_a_ramp_changes_the_concurrency() -> None:
    server = Server(0.03)
    most_at_first: list[int] = []

    class Growing(Ramp):
        """One request at a time until the server has got five of them."""

        def limit(self, elapsed_s: float) -> int:
            if len(server.bodies) < 5:
                most_at_first.append(server.most)
                return self.low
            return self.high

    async with served(server) as url:
        driver = await drive(url, Growing(1, 6, 1.0), 60)
    assert len(driver.samples()) == 60
    assert max(most_at_first) == 1
    assert server.most == 6


class Faulty(Server):
    """Answers each prompt in another wrong way."""

    async def answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        number = int(str(body["prompt"]).split()[1])
        token = event({"choices": [{"delta": {"content": "x"}}]})
        answers = {
            0: plain("429 Too Many Requests", {"error": {"message": "full"}}),
            1: plain("503 Service Unavailable", {}),
            2: STREAM_HEAD + part(token) + part(event({"error": {"message": "died"}})) + part(b""),
            3: STREAM_HEAD + part(token),
            4: STREAM_HEAD + part(token) + part(b""),
            5: STREAM_HEAD + part(b"data: [DONE]\n\n") + part(b""),
            6: STREAM_HEAD + part(b"data: {not json\n\n") + part(b""),
        }
        if number == 7:
            writer.write(STREAM_HEAD + part(token))
            await writer.drain()
            await asyncio.sleep(60)
        else:
            writer.write(answers.get(number, STREAM_HEAD + chunks(2)))


async def test_every_failure_is_a_sample_with_its_kind() -> None:
    async with served(Faulty()) as url:
        driver = await drive(url, ClosedLoop(4), 9, limit_s=2.0)
    samples = sorted(driver.samples(), key=lambda s: s.index)
    assert [s.error for s in samples] == [
        "429",
        "503",
        "stream",
        "connection",
        "connection",
        "empty",
        "stream",
        "timeout",
        None,
    ]
    assert samples[0].detail == "429: full"
    assert "died" in samples[2].detail
    assert [s.tokens for s in samples] == [0, 0, 1, 1, 1, 0, 0, 1, 2]


class Refusing(Server):
    """Refuses every request, and asks its client to wait a second."""

    async def answer(self, body: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        writer.write(plain("503 Service Unavailable", {"error": {}}, "Retry-After: 1\r\n"))


async def test_a_closed_loop_waits_as_a_server_asks_that_refuses() -> None:
    server = Refusing()
    async with served(server) as url:
        driver = await drive(url, ClosedLoop(2), 1000, seconds=1.9)
        assert len(driver.samples()) == 4, "each of two users tries at the start and after a second"
        opened = await drive(url, OpenLoop(100.0), 1000, seconds=0.3)
    assert {sample.error for sample in driver.samples()} == {"503"}
    assert len(opened.samples()) > 4, "an open loop sends what was planned"
    assert driver.seconds < 1.9
