"""Nearly valid bodies for every operation, on the fake engine: an answer or a refusal."""

from collections import Counter

from tests.server.conftest import StartGateway
from tests.server.hostile.mutations import mutated

SEEDS = 500


async def test_a_nearly_valid_body_is_answered_or_refused_as_documented(
    start: StartGateway,
) -> None:
    gateway = await start(enable_lora=True, allowed_hub_id=["sql"], max_model_len=256)
    headers = {"content-type": "application/json"}
    statuses: Counter[int] = Counter()
    for seed in range(SEEDS):
        method, path, content = mutated(seed)
        response = await gateway.client.request(method, path, content=content, headers=headers)
        status = response.status_code
        assert 200 <= status < 300 or 400 <= status < 500, (seed, path, response.text[:500])
        statuses[status // 100] += 1
    assert all(count > SEEDS // 5 for count in statuses.values()), statuses
    assert (await gateway.client.get("/health")).status_code == 200
