"""Switches of each mode under sixteen streams: no request is lost and no text is wrong."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.cases import proved_beyond
from tests.e2e.greedy import Plain, plain
from tests.e2e.served import PROPOSERS, Served
from tests.e2e.traffic import MESSAGES, Streamed, chat, clients, gather, stream

pytestmark = pytest.mark.engine

STREAMS, SWITCHES = 16, 50
METHODS = [*PROPOSERS, "none"]
PINNED = {"spec_decode": {"proposer": "draft-small", "num_speculative_tokens": 3}}


@pytest.fixture(scope="module")
def plain_texts(served: Served) -> list[Plain]:
    async def ask() -> list[Plain]:
        async with clients(served.url) as client:
            return await gather(*(plain(client, chat(5 * i)) for i in range(STREAMS)))

    return asyncio.run(ask())


def test_the_comparison_finds_a_wrong_text() -> None:
    text = Plain("a" * 100, ((0, 1e-5), (50, 0.1), (90, 0.2)))
    assert text.allows("a" * 100)
    assert not text.allows("a" * 95 + "b" * 5)
    assert not text.allows("a" * 95)
    assert text.allows("a" * 5 + "b" * 95)


@dataclass
class Load:
    """Sixteen clients that send requests repeatedly; those of the last are pinned."""

    client: httpx.AsyncClient
    stopping: bool = False
    results: list[list[Streamed]] = field(default_factory=lambda: [[] for _ in range(STREAMS)])

    async def each_has(self, streams: int) -> None:
        """Waits until every client has read this many streams."""
        async with asyncio.timeout(120):
            while min(map(len, self.results)) < streams:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def run(self, i: int) -> list[Streamed]:
        """The streams of one client."""
        results = self.results[i]
        fields: dict[str, Any] = PINNED if i == STREAMS - 1 else {}
        while not self.stopping:
            results.append(await stream(self.client, chat(5 * i, **fields)))
        return results


@pytest.mark.parametrize("mode", proved_beyond(["immediate"], ["immediate", "new_requests"]))
async def test_fifty_switches_under_sixteen_streams(
    served: Served, plain_texts: list[Plain], mode: str
) -> None:
    before = served.scrape()
    async with clients(served.url) as client:
        load = Load(client)
        running = [asyncio.create_task(load.run(i)) for i in range(STREAMS)]
        answers = [await switch(client, i, mode) for i in range(SWITCHES)]
        load.stopping = True
        results = await gather(*(asyncio.wait_for(task, 120) for task in running))

    generations = [answer["generation"] for answer in answers]
    assert generations == list(range(generations[0], generations[0] + SWITCHES))
    assert max(answer["in_flight"] for answer in answers) > STREAMS // 2
    assert all(answer["in_flight"] <= STREAMS for answer in answers)

    for expected, of_client in zip(plain_texts, results, strict=True):
        assert of_client
        for result in of_client:
            assert result.tokens == 48
            assert expected.allows(result.text), (expected.text, result.text)
    assert all(result.drafted_by <= {"draft-small"} for result in results[-1])
    methods_of_one = max(len(r.drafted_by) for of_client in results[:-1] for r in of_client)
    assert (methods_of_one > 1) == (mode == "immediate")

    served.wait_until_idle()
    after = served.scrape()
    name = "specgate_spec_method_switches_total"
    for outcome, count in (("switched", SWITCHES), ("failed", 0)):
        labels = {"mode": mode, "outcome": outcome}
        assert after(name, **labels) - before(name, **labels) == count
    asked = sum(len(of_client) for of_client in results)
    assert after("specgate_requests_total") - before("specgate_requests_total") == asked
    assert after("specgate_spec_method_info", spec_method=answers[-1]["active"]["spec_method"]) == 1


@pytest.mark.parametrize("drains", proved_beyond([2], [2, 20]))
async def test_drains_under_sixteen_streams(
    served: Served, plain_texts: list[Plain], drains: int
) -> None:
    await asyncio.to_thread(served.switch, "none")  # a policy may give a stream several proposers
    async with clients(served.url) as client:
        load = Load(client)
        running = [asyncio.create_task(load.run(i)) for i in range(STREAMS)]
        for i in range(drains):
            await load.each_has(i + 1)
            name = METHODS[i % len(METHODS)]
            body = {"speculative_model": name, "mode": "drain", "timeout_s": 60}
            response = await client.post("/v1/switch_spec_method", json=body)
            assert response.status_code == 200, response.text
            answer = response.json()
            assert (answer["active"]["spec_method"], answer["in_flight"]) == (name, 0)
        load.stopping = True
        results = await gather(*(asyncio.wait_for(task, 120) for task in running))
    for expected, of_client in zip(plain_texts, results, strict=True):
        assert len(of_client) > drains
        for result in of_client:
            assert result.tokens == 48
            assert len(result.drafted_by) <= 1
            assert expected.allows(result.text), (expected.text, result.text)


async def switch(client: httpx.AsyncClient, i: int, mode: str) -> dict[str, Any]:
    """Makes switch number `i` and checks the method and the requests in flight."""
    name = METHODS[(i * 7 + i // 5) % len(METHODS)]
    body = {"speculative_model": name, "mode": mode, "reason": f"number {i}"}
    response = await client.post("/v1/switch_spec_method", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    assert answer["active"]["spec_method"] == name
    shown = (await client.get("/v1/spec_method")).json()
    assert (shown["spec_method"], shown["generation"]) == (name, answer["generation"])
    assert shown["switches"][0]["reason"] == f"number {i}"
    assert sum(shown["in_flight"].values()) <= STREAMS
    if mode == "immediate":
        assert set(shown["in_flight"]) <= {name, "draft-small"}
        assert name == "draft-small" or shown["in_flight"].get("draft-small", 0) <= 1
    await asyncio.sleep(0.05)
    return answer


def test_prompts_differ() -> None:
    assert len({str(MESSAGES[5 * i]) for i in range(STREAMS)}) == STREAMS
