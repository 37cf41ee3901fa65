"""Requests and tokens by the name of the key."""

import asyncio
from hashlib import sha256
from typing import Any

import httpx
import pytest

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway, eventually

NAMES = ("requests", "prompt_tokens", "cached_tokens", "generated_tokens")


def used(gateway: Gateway, key: str) -> tuple[float | None, ...]:
    """A key's requests, prompt tokens, cached ones and generated ones."""
    return tuple(gateway.sample(f"specgate_key_{name}_total", api_key=key) for name in NAMES)


async def complete(gateway: Gateway, key: str, **body: Any) -> httpx.Response:
    """Requests a completion with a key."""
    headers = {"authorization": f"Bearer {key}"}
    return await gateway.post("/v1/completions", {"prompt": "a", **body}, headers=headers)


@pytest.fixture
async def keyed(start: StartGateway) -> Gateway:
    """A gateway with two named keys and one without a name."""
    return await start(
        named_api_key={"team-a": "a", "team-b": "b"}, api_key=["plain"], admin_key=["admin"]
    )


async def test_every_key_begins_at_0(keyed: Gateway) -> None:
    for key in ("team-a", "team-b", "none"):
        assert used(keyed, key) == (0, 0, 0, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_counts_for_its_key_as_its_usage_says(keyed: Gateway, stream: bool) -> None:
    prompt = "def f(x): " * 30
    await complete(keyed, "a", prompt=prompt, max_tokens=3)
    first = (await complete(keyed, "a", prompt=prompt, max_tokens=3, n=2)).json()["usage"]
    cached = first["prompt_tokens_details"]["cached_tokens"]
    assert cached > 0
    assert used(keyed, "team-a") == (2, 2 * first["prompt_tokens"], cached, 9)
    await complete(keyed, "b", max_tokens=4, stream=stream)
    assert (used(keyed, "team-b")[0], used(keyed, "team-b")[3]) == (1, 4)
    body = {"input": "hi", "max_output_tokens": 16, "stream": stream}
    await keyed.post("/v1/responses", body, headers={"authorization": "Bearer b"})
    assert used(keyed, "team-b")[0] == 2
    assert used(keyed, "none") == (0, 0, 0, 0)


async def test_only_configured_keys_have_series(keyed: Gateway) -> None:
    plain, admin = (sha256(key.encode()).hexdigest()[:8] for key in ("plain", "admin"))
    await complete(keyed, "plain", max_tokens=1)
    await complete(keyed, "admin", max_tokens=1)
    assert (await complete(keyed, "wrong", max_tokens=1)).status_code == 401
    assert used(keyed, plain)[0] == used(keyed, admin)[0] == 1
    series = [
        m for m in keyed.registry.collect() if "specgate_key_" in m.name and "reloads" not in m.name
    ]
    labels = {sample.labels["api_key"] for metric in series for sample in metric.samples}
    assert labels == {"team-a", "team-b", "none", plain, admin}


async def test_without_keys_everybody_is_one(gateway: Gateway) -> None:
    await complete(gateway, "whatever", max_tokens=2)
    assert used(gateway, "none")[0] == 1


async def test_what_was_refused_is_not_counted(keyed: Gateway) -> None:
    assert (await complete(keyed, "a", n=0)).status_code == 400
    assert (await complete(keyed, "a", model="x")).status_code == 404
    refused = await complete(keyed, "a", spec_decode={"proposer": "nope"})
    assert refused.status_code in (400, 404)
    assert used(keyed, "team-a") == (0, 0, 0, 0)


async def test_a_request_that_was_cut_off_counts_what_it_got(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_step_ms": 2})
    body = {"prompt": "a b c", "max_tokens": 900, "ignore_eos": True, "stream": True}
    exchange = gateway.exchange("/v1/completions", body)
    task = exchange.begin()
    await eventually(lambda: len(exchange.sent) > 5)
    exchange.leave()
    await asyncio.wait_for(task, 60)
    requests, prompt, _, generated = used(gateway, "none")
    assert requests == 1
    assert prompt is not None
    assert generated is not None
    assert prompt > 0
    assert 4 <= generated < 900


async def test_a_request_without_a_first_token_counts_no_tokens(start: StartGateway) -> None:
    gateway = await start(engine_args={"fake_fail_prompt": "a", "fake_trouble_after_tokens": 0})
    assert (await gateway.complete("a")).status_code == 500
    assert used(gateway, "none") == (1, 0, 0, 0)
