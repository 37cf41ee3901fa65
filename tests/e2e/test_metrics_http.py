"""The exported metrics: each name once, and sums over proposers equal to vLLM's own counts."""

import asyncio
from collections import Counter
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.e2e.served import PROPOSERS, Samples, Served
from tests.e2e.traffic import Streamed, chat, clients, gather, leave, stream

pytestmark = pytest.mark.engine

PAIRS = {
    "specgate_spec_decode_drafts_total": "vllm:spec_decode_num_drafts_total",
    "specgate_spec_decode_draft_tokens_total": "vllm:spec_decode_num_draft_tokens_total",
    "specgate_spec_decode_accepted_tokens_total": "vllm:spec_decode_num_accepted_tokens_total",
}
OURS_BY_POSITION = "specgate_spec_decode_accepted_tokens_per_position_total"
VLLMS_BY_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
FIGURES = {"drafts": "drafts", "drafted": "draft_tokens", "accepted": "accepted_tokens"}


async def switches(client: httpx.AsyncClient) -> None:
    """Switches to every method once in each mode, while other requests stream."""
    for mode in ("immediate", "new_requests"):
        for name in (*PROPOSERS, "none"):
            body = {"speculative_model": name, "mode": mode}
            assert (await client.post("/v1/switch_spec_method", json=body)).status_code == 200
            await asyncio.sleep(0.05)


async def two_choices(client: httpx.AsyncClient, i: int, proposer: str) -> dict[str, Any]:
    """The statistics of a whole response with two sampled choices."""
    body = chat(i, stream=False, stream_options=None, n=2, temperature=0.8, seed=i)
    body["spec_decode"] = {"proposer": proposer}
    response = await client.post("/v1/chat/completions", json=body)
    assert response.status_code == 200, response.text
    told: dict[str, Any] = response.json()["metrics"]["speculative_decoding"]
    return told


def check_sums(now: Samples) -> None:
    """Checks that the sums over the proposers equal vLLM's counters."""
    for ours, vllms in PAIRS.items():
        assert now(ours) == now(vllms), ours
    kept = now.by("position", OURS_BY_POSITION)
    theirs = now.by("position", VLLMS_BY_POSITION)
    assert {p: count for p, count in theirs.items() if count} == {
        p: count for p, count in kept.items() if count
    }


async def test_sums_over_proposers_equal_vllms_counts(
    served: Served,
) -> None:
    async with clients(served.url) as client:
        await gather(
            switches(client),
            *(stream(client, chat(5 * i)) for i in range(8)),
            *(two_choices(client, i, name) for i, name in enumerate((*PROPOSERS, "none"))),
            *(leave(client, chat(40 + i, max_tokens=1000), events=4 + i) for i in range(6)),
        )
    await asyncio.to_thread(served.wait_until_idle)
    now = served.scrape()
    check_sums(now)
    for name in PAIRS:
        assert now(name) > 0


async def test_counters_grow_by_the_counts_of_the_responses(served: Served) -> None:
    before = served.scrape()
    async with clients(served.url) as client:
        streamed: list[Streamed]
        told: list[dict[str, Any]]
        streamed = await gather(
            *(
                stream(client, chat(i, spec_decode={"proposer": name}))
                for i, name in enumerate(PROPOSERS)
            )
        )
        told = await gather(
            *(two_choices(client, i, name) for i, name in enumerate((*PROPOSERS, "none")))
        )
    await asyncio.to_thread(served.wait_until_idle)
    after = served.scrape()
    responses = [*(s.statistics for s in streamed), *told]
    for figure, stem in FIGURES.items():
        said: Counter[str] = Counter()
        for response in responses:
            for name, counts in response["by_proposer"].items():
                said[name] += counts[figure]
        metric = f"specgate_spec_decode_{stem}_total"
        for name in PROPOSERS:
            grown = after(metric, proposer=name) - before(metric, proposer=name)
            assert grown == said[name], (metric, name)
    emitted = "specgate_spec_decode_emitted_tokens_total"
    generated = "vllm:generation_tokens_total"
    assert after(emitted) - before(emitted) == after(generated) - before(generated)
    for name in (*PROPOSERS, "none"):
        labels = {"proposer": name, "selected_by": "request"}
        grown = after("specgate_requests_total", **labels) - before(
            "specgate_requests_total", **labels
        )
        assert grown == (1 if name == "none" else 2)


def test_each_name_is_exported_once_and_no_ratio_is(served: Served) -> None:
    served.wait_until_idle()
    scrape = served.scrape()
    assert len(scrape.families) == len(set(scrape.families))
    assert not [name for name in scrape.names if name.startswith("specgate") and "_rate" in name]
    labels = {"model_name": "specgate-demo", "engine": "0"}
    assert scrape("vllm:num_requests_running", **labels) == 0


def test_openmetrics_is_well_formed(served: Served) -> None:
    accept = "application/openmetrics-text; version=1.0.0"
    response = served.get("/metrics", headers={"accept": accept})
    assert response.headers["content-type"].startswith("application/openmetrics-text")
    names = {family.name for family in text_string_to_metric_families(response.text)}
    assert {"specgate_spec_decode_drafts", "vllm:spec_decode_num_drafts"} <= names
