"""Every body of the table on the fake engine: an answer or a refusal, soon, and a short one."""

import time

import pytest

from tests.server.gateway import Gateway
from tests.server.hostile_bodies import ALL, Hostile
from tests.server.random_forms import random_body

CPU_SECONDS = 3.0
"""The most CPU time of a request, the reading of a body of megabytes included."""

ERROR_BYTES = 1000
"""The most bytes of a refusal."""


@pytest.mark.parametrize("hostile", ALL, ids=lambda hostile: hostile.name)
async def test_a_hostile_body_is_answered_or_refused_by_name_and_soon(
    gateway: Gateway, hostile: Hostile
) -> None:
    body = hostile.body()
    began = time.process_time()
    response = await gateway.post(hostile.path, body)
    assert time.process_time() - began < CPU_SECONDS
    if hostile.param is not None:
        assert response.status_code == 400, response.text[:500]
        assert response.json()["error"]["param"] == hostile.param, response.text[:500]
    if response.status_code != 200:
        assert response.status_code == 400, response.text[:500]
        assert len(response.content) < ERROR_BYTES
        assert response.json()["error"]["param"] is not None


async def test_a_refusal_repeats_little_of_what_it_refuses(gateway: Gateway) -> None:
    response = await gateway.complete(logit_bias={"x" * 1_000_000: 1})
    assert response.status_code == 400
    assert len(response.content) < ERROR_BYTES


async def test_random_forms_are_answered_or_refused(gateway: Gateway) -> None:
    statuses = set()
    began = time.process_time()
    for seed in range(200):
        path, body = random_body(seed)
        response = await gateway.post(path, body)
        assert response.status_code in (200, 400), (seed, response.text[:500])
        assert response.status_code == 200 or len(response.content) < ERROR_BYTES
        statuses.add(response.status_code)
    assert time.process_time() - began < 30 * CPU_SECONDS
    assert statuses == {200, 400}
