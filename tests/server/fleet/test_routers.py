"""What routers in front of a fleet read of each replica: llm-d, production-stack, Envoy.

Metrics: the model server protocol of the Gateway API Inference Extension, which llm-d's endpoint
picker uses (docs/proposals/003-model-server-protocol in kubernetes-sigs/gateway-api-inference-
extension), and `EngineStats` of the production stack (src/vllm_router/stats/engine_stats.py).
"""

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.server.conftest import StartGateway
from tests.server.gateway import Gateway

READ_BY_ROUTERS = {
    "vllm:num_requests_waiting": "gauge",
    "vllm:num_requests_running": "gauge",
    "vllm:kv_cache_usage_perc": "gauge",
    "vllm:prefix_cache_queries": "counter",
    "vllm:prefix_cache_hits": "counter",
}
"""Metric -> its type."""

FROM_ROUTERS = {
    "x-request-id": "router-17",
    "x-session-id": "session-3",
    "x-user-id": "user-9",
    "x-forwarded-for": "10.0.0.1",
    "x-forwarded-proto": "https",
    "x-envoy-expected-rq-timeout-ms": "15000",
    "x-envoy-attempt-count": "1",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}
"""Headers that routers add or route by."""


async def scraped(client: httpx.AsyncClient) -> dict[str, str]:
    text = (await client.get("/metrics")).text
    return {family.name: family.type for family in text_string_to_metric_families(text)}


async def test_the_metrics_that_routers_weigh_replicas_by_are_there(gateway: Gateway) -> None:
    await gateway.complete(max_tokens=4)
    types = await scraped(gateway.client)
    assert {name: types.get(name) for name in READ_BY_ROUTERS} == READ_BY_ROUTERS


async def test_a_router_needs_a_metrics_key_and_no_more(start: StartGateway) -> None:
    gateway = await start(api_key=("sk-api",), metrics_key=("sk-metrics",))
    assert (await gateway.client.get("/metrics")).status_code == 401
    headers = {"Authorization": "Bearer sk-metrics"}
    assert (await gateway.client.get("/metrics", headers=headers)).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_routers_headers_change_nothing_and_its_request_id_comes_back(
    gateway: Gateway, stream: bool
) -> None:
    fields = {"max_tokens": 4, "temperature": 0, "stream": stream}
    plain = await gateway.complete("def f(x):", **fields)
    body = {"prompt": "def f(x):", **fields}
    routed = await gateway.post("/v1/completions", body, headers=FROM_ROUTERS)
    assert (plain.status_code, routed.status_code) == (200, 200)
    assert routed.headers["x-request-id"] == "router-17"
    if not stream:
        assert routed.json()["choices"][0]["text"] == plain.json()["choices"][0]["text"]
