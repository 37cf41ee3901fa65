"""No client makes `/metrics` grow: what it sends is never a label."""

from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

ADMIN = {"authorization": "Bearer sk-admin"}


def num_series(registry: CollectorRegistry) -> int:
    return sum(len(family.samples) for family in registry.collect())


def odd_requests(number: int) -> Iterator[tuple[str, str, dict[str, str], Any]]:
    """Method, path, headers and body of requests whose every name is another one."""
    name = f"odd-{number}"
    prompt = {"prompt": "a", "max_tokens": 1}
    chat = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}
    yield "GET", f"/{name}/x", ADMIN, None
    yield "GET", f"/v1/models/{name}", ADMIN, None
    yield "GET", f"/v1/responses/resp_{number:032x}", ADMIN, None
    yield f"ODD{number}", "/v1/models", ADMIN, None
    yield "POST", "/v1/completions", ADMIN, {**prompt, "model": name}
    yield "POST", "/v1/completions", ADMIN, {**prompt, "user": name, "cache_salt": name}
    yield "POST", "/v1/completions", ADMIN, {**prompt, "spec_decode": {"proposer": name}}
    yield "POST", "/v1/chat/completions", {**ADMIN, "x-request-id": name}, {**chat, name: 1}
    yield "POST", "/v1/completions", {"authorization": f"Bearer sk-{name}"}, prompt
    yield "POST", "/v1/switch_spec_method", ADMIN, {"proposer": name}
    yield "POST", "/v1/unload_proposer", ADMIN, {"name": name}
    load = {"name": name, "method": "medusa", "model": f"none/{name}"}
    yield "POST", "/v1/load_proposer", ADMIN, load


async def send(gateway: Gateway, number: int) -> set[int]:
    """The statuses of one of each kind of odd requests."""
    statuses = set()
    for method, path, headers, body in odd_requests(number):
        answer = await gateway.client.request(method, path, headers=headers, json=body)
        statuses.add(answer.status_code)
    return statuses


@pytest.mark.parametrize("times", [40, pytest.param(850, marks=pytest.mark.prove)])
async def test_odd_names_add_no_series(start: StartGateway, times: int) -> None:
    gateway = await start(api_key=["sk-api"], admin_key=["sk-admin"])
    # The first of a kind has its status and its route; the names must add nothing.
    statuses = await send(gateway, 0)
    assert statuses == {200, 400, 401, 404, 405}
    before = num_series(gateway.registry)
    assert before > 500
    for number in range(1, times + 1):
        assert await send(gateway, number) == statuses
    assert num_series(gateway.registry) == before
    text = (await gateway.client.get("/metrics", headers=ADMIN)).text
    assert "odd-" not in text
    assert "ODD" not in text


async def test_the_count_would_notice_a_series(start: StartGateway) -> None:
    gateway = await start()
    before = num_series(gateway.registry)
    gateway.state.metrics.http.observe("/a-path-as-sent", "GET", 404, 0.1)
    assert num_series(gateway.registry) > before
