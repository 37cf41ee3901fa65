"""Every body of the table on the fake engine: an answer or a refusal, soon, and a short one."""

import time

import pytest

from tests.server.gateway import Gateway
from tests.server.hostile.body import Hostile
from tests.server.hostile.forms import FORMS
from tests.server.hostile.lists import LISTS, TEXTS
from tests.server.hostile.random_forms import random_body
from tests.server.hostile.schemas import SCHEMAS

CPU_SECONDS = 3.0
"""The most CPU time of a request, the reading of a body of megabytes included."""

ERROR_BYTES = 1000
"""The most bytes of a refusal."""


@pytest.mark.parametrize(
    "table",
    [LISTS, TEXTS, FORMS, SCHEMAS],
    ids=["lists", "texts", "forms", "schemas"],
)
async def test_a_hostile_body_is_answered_or_refused_by_name_and_soon(
    gateway: Gateway, table: tuple[Hostile, ...]
) -> None:
    for hostile in table:
        body = hostile.body()
        began = time.process_time()
        response = await gateway.post(hostile.path, body)
        assert time.process_time() - began < CPU_SECONDS, hostile.name
        status, text = response.status_code, response.text[:500]
        assert status == 400 or (status == 200 and hostile.param is None), (hostile.name, text)
        if status == 200:
            continue
        param = response.json()["error"]["param"]
        assert len(response.content) < ERROR_BYTES, hostile.name
        assert param == hostile.param or (hostile.param is None and param), (hostile.name, text)


async def test_random_forms_are_answered_or_refused(gateway: Gateway) -> None:
    statuses = set()
    for seed in range(200):
        path, body = random_body(seed)
        began = time.process_time()
        response = await gateway.post(path, body)
        assert time.process_time() - began < CPU_SECONDS, seed
        assert response.status_code in (200, 400), (seed, response.text[:500])
        assert response.status_code == 200 or len(response.content) < ERROR_BYTES, seed
        statuses.add(response.status_code)
    assert statuses == {200, 400}
