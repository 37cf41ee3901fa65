"""What a body may be: its bytes, its values, and the time that it takes to arrive."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.http.body_limit import PROGRESS_BYTES, BodyLimit, Pace
from server.settings.http_settings import HttpSettings
from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

HEADERS = {"content-type": "application/json"}


async def test_a_body_can_be_as_large_as_the_limit(start: StartGateway) -> None:
    gateway = await start(max_body_bytes=1000)
    body = b'{"prompt": "' + b"x" * (1000 - 30) + b'", "max_tokens":1}'

    async def chunked(content: bytes) -> AsyncIterator[bytes]:
        for at in range(0, len(content), 100):
            yield content[at : at + 100]

    for size, status in ((1000, 200), (1001, 413)):
        content = body + b" " * (size - len(body))
        for sent in (content, chunked(content)):
            response = await gateway.client.post("/v1/completions", content=sent, headers=HEADERS)
            assert response.status_code == status, response.text
            if status == 413:
                assert response.json()["error"]["code"] == "request_too_large"


async def test_a_body_can_have_as_many_values_as_the_limit(start: StartGateway) -> None:
    gateway = await start(max_body_values=100)
    # The list has one comma less than ids; two fields count as six, and one comma is between them.
    for count, status in ((93, 200), (94, 413)):
        response = await gateway.post("/detokenize", {"tokens": [5] * count, "user": "a"})
        assert response.status_code == status, response.text
    error = response.json()["error"]
    assert error["code"] == "request_too_large"
    message = "The body has more than 100 values; a field of an object counts as 3."
    assert error["message"] == message


@pytest.mark.parametrize("digit", ["0", "9"])
async def test_a_length_of_thousands_of_digits_is_a_400(gateway: Gateway, digit: str) -> None:
    """Python reads no number of more than 4300 digits; the parser of HTTP takes leading zeros."""
    for path in ("/health", "/v1/completions"):
        headers = {**HEADERS, "content-length": digit * 5000}
        response = await gateway.client.post(path, headers=headers)
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["code"] == "invalid_http"
        assert error["message"] == "Content-Length has more than 20 digits."


async def test_a_body_that_does_not_arrive_is_a_408(start: StartGateway) -> None:
    gateway = await start(body_timeout_s=0.05)

    async def stuck() -> AsyncIterator[bytes]:
        yield b'{"prompt": '
        await asyncio.sleep(60)

    response = await gateway.client.post("/v1/completions", content=stuck(), headers=HEADERS)
    assert response.status_code == 408
    assert response.json()["error"]["code"] == "slow_client"
    assert response.headers["connection"] == "close"
    labels = {"route": "/v1/completions", "method": "POST", "status": "408"}
    assert gateway.sample("specgate_http_requests_total", **labels) == 1


async def test_a_client_that_leaves_before_its_body_has_arrived_counts_as_499(
    gateway: Gateway,
) -> None:
    exchange = gateway.exchange("/v1/completions", {})

    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    exchange._receive = gone  # type: ignore[method-assign]
    await exchange.begin()
    labels = {"route": "/v1/completions", "method": "POST", "status": "499"}
    assert gateway.sample("specgate_http_requests_total", **labels) == 1


def test_a_body_has_its_time_again_with_every_16_kib() -> None:
    pace = Pace(timeout_s=30, now_s=100)
    pace.add(PROGRESS_BYTES - 1, now_s=129)
    assert pace.deadline == 130
    pace.add(1, now_s=129)
    assert pace.deadline == 159
    pace.add(1, now_s=150)
    assert pace.deadline == 159


class Arriving:
    """A request whose body comes in parts when the test says so."""

    def __init__(self, limit: BodyLimit) -> None:
        self._parts: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[Any] = []
        scope = {"type": "http", "headers": []}
        self.done = asyncio.ensure_future(limit(scope, self._parts.get, self._send))

    async def give(self, num_bytes: int, *, more: bool = True) -> None:
        self._parts.put_nowait(
            {"type": "http.request", "body": b"x" * num_bytes, "more_body": more}
        )
        for _ in range(5):
            await asyncio.sleep(0)

    async def _send(self, message: Any) -> None:
        self.sent.append(message)


async def reads(scope: Any, receive: Any, send: Any) -> None:
    while (await receive())["more_body"]:
        pass


async def test_bodies_that_have_not_arrived_are_bounded_together() -> None:
    limit = BodyLimit(reads, HttpSettings(max_unfinished_body_bytes=100), set())
    first, second = Arriving(limit), Arriving(limit)
    await first.give(60)
    await second.give(40)
    assert limit.unfinished_bytes == 100
    await first.give(0, more=False)
    assert limit.unfinished_bytes == 40
    third = Arriving(limit)
    await third.give(61)
    with pytest.raises(Exception, match="Too many large bodies") as raised:
        await third.done
    assert getattr(raised.value, "status_code", 0) == 503
    assert limit.unfinished_bytes == 40
    second.done.cancel()
    await asyncio.gather(second.done, return_exceptions=True)
    assert limit.unfinished_bytes == 0
    await first.done


async def test_slow_large_bodies_do_not_keep_out_small_ones() -> None:
    """The largest body that has not arrived is ended, and not the one that came last."""
    limit = BodyLimit(reads, HttpSettings(max_unfinished_body_bytes=100), set())
    large, small = Arriving(limit), Arriving(limit)
    await large.give(60)
    await small.give(40)
    ordinary = Arriving(limit)
    await ordinary.give(3)
    with pytest.raises(Exception, match="Too many large bodies") as raised:
        await asyncio.wait_for(asyncio.shield(large.done), 60)
    assert getattr(raised.value, "status_code", 0) == 503
    assert limit.unfinished_bytes == 43
    await ordinary.give(3, more=False)
    await small.give(0, more=False)
    await asyncio.gather(ordinary.done, small.done)
    assert limit.unfinished_bytes == 0
    assert not limit.unfinished


async def test_a_body_of_one_part_ends_no_other() -> None:
    limit = BodyLimit(reads, HttpSettings(max_unfinished_body_bytes=100), set())
    large, ordinary = Arriving(limit), Arriving(limit)
    await large.give(100)
    await ordinary.give(5, more=False)
    await ordinary.done
    await large.give(0, more=False)
    await large.done
    assert limit.unfinished_bytes == 0


async def test_a_body_that_is_ended_while_its_last_part_arrives_is_refused() -> None:
    limit = BodyLimit(reads, HttpSettings(max_unfinished_body_bytes=100), set())
    large, other = Arriving(limit), Arriving(limit)
    await large.give(80)
    gives = [asyncio.ensure_future(other.give(40)), asyncio.ensure_future(large.give(10))]
    await asyncio.gather(*gives)
    with pytest.raises(Exception, match="Too many large bodies"):
        await asyncio.wait_for(asyncio.shield(large.done), 60)
    assert limit.unfinished_bytes == 40
    await other.give(0, more=False)
    await other.done


async def test_after_the_body_the_client_may_be_silent() -> None:
    async def waits(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await receive()

    limit = BodyLimit(waits, HttpSettings(body_timeout_s=0.01), set())
    request = Arriving(limit)
    await request.give(5, more=False)
    await asyncio.sleep(0.05)
    assert not request.done.done()
    await request.give(0)
    await request.done
