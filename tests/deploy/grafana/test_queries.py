"""Every query of every dashboard returns data from a real Prometheus that scrapes live servers."""

import asyncio
import json
import signal
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass

import pytest

from engine_adapter.policies.names import POLICY_NAMES
from tests.deploy.grafana import queries
from tests.deploy.grafana.answers import Report, Span, check
from tests.deploy.grafana.mixed_load import RULES, MixedLoad
from tests.deploy.grafana.prometheus_process import (
    SCRAPE_S,
    Prometheus,
    need_prometheus,
    scraping,
)
from tests.deploy.grafana.queries import FOLDER, NAMES
from tests.e2e.served import PROPOSERS, Served, wait_until
from tests.e2e.traffic import chat, clients, stream
from tests.server.pictures import image_part

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

REPEATED = {"proposer": list(PROPOSERS), "policy": list(POLICY_NAMES)}
FAKE = {
    "fake_step_ms": 6,
    "fake_prefill_token_ms": 0.05,
    "fake_draft_token_ms": 0.4,
    "fake_verify_token_ms": 0.05,
    "fake_acceptance": {"ngram": 0.5, "suffix": 0.6, "draft": 0.8, "medusa": 0.4, "eagle": 0.75},
    "num_gpu_blocks_override": 128,
    "fake_media": 1,
    "fake_fail_prompt": "FAIL",
}
BEFORE_S, AFTER_S = 70, 40
"""Seconds of load on the real engine before it is killed, and after it has been replaced."""


@dataclass(frozen=True)
class Scraped:
    """A Prometheus with the figures of a load, and the time that they cover."""

    prometheus: Prometheus
    span: Span

    def report(self, name: str, reasons: Mapping[str, str]) -> Report:
        """What the queries of a dashboard returned, as printed."""
        dashboard = queries.load(FOLDER / f"{name}.json")
        report = check(self.prometheus, name, dashboard, self.span, REPEATED, reasons)
        print(report)
        return report


def address(served: Served) -> str:
    return served.url.removeprefix("http://")


@pytest.fixture(scope="module")
def fakes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Two servers on the fake engine under load; the second one dies before the end."""
    need_prometheus()
    folder = tmp_path_factory.mktemp("fakes")
    arguments = ("--engine", "fake", "--max-num-seqs", "4", "--engine-args", json.dumps(FAKE))
    with ExitStack() as stack:

        def start(i: int) -> Served:
            log = folder / f"server-{i}.log"
            served = Served.start_beside(log, *arguments, "--routing-rules", RULES)
            stack.callback(served.kill)
            return served

        with ThreadPoolExecutor() as pool:
            servers = list(pool.map(start, range(2)))
        prometheus = stack.enter_context(scraping(folder, [address(s) for s in servers]))
        yield asyncio.run(load_fakes(prometheus, servers))


async def load_fakes(prometheus: Prometheus, servers: list[Served]) -> Scraped:
    """The mixed load, after plain decoding alone: a mixed load may have no step without drafts."""
    began = time.time()
    await asyncio.sleep(2 * SCRAPE_S)
    for served in servers:
        async with clients(served.url) as client:
            await stream(client, chat(0, spec_decode={"proposer": "none"}))
    loads = [MixedLoad(served.url) for served in servers]

    async def fail() -> None:
        for served in servers:
            async with clients(served.url) as client:
                body = {"prompt": "FAIL", "max_tokens": 8}
                response = await client.post("/v1/completions", json=body)
                assert response.status_code == 500, response.text

    async def look() -> None:
        for served in servers:
            async with clients(served.url) as client:
                body = chat(0, messages=[{"role": "user", "content": [image_part()]}])
                await stream(client, body)

    async with asyncio.TaskGroup() as group:
        second = group.create_task(loads[1].run(11))

        async def die() -> None:
            await second
            await asyncio.to_thread(servers[1].kill)

        group.create_task(loads[0].run(17, [(4, fail), (6, look), (8, fail), (13, die)]))
    return Scraped(prometheus, Span(began, time.time()))


@pytest.mark.parametrize("name", NAMES)
def test_every_query_returns_data(fakes: Scraped, name: str) -> None:
    alone = "the fake engine is in the server's own process, so that nothing replaces it"
    assert fakes.report(name, {"Dead engines/A": alone}).findings == []


def test_a_query_of_a_metric_that_does_not_exist_is_found(fakes: Scraped) -> None:
    dashboard = queries.load(FOLDER / "proposers.json")
    text = json.dumps(dashboard).replace("specgate_proposer_draft_seconds", "specgate_no_such")
    wrong = json.loads(text)
    found = check(fakes.prometheus, "wrong", wrong, fakes.span, REPEATED, {}).findings
    silent = [finding for finding in found if "specgate_no_such" in finding]
    assert len(silent) == text.count("specgate_no_such")


def test_a_query_that_is_listed_as_empty_and_is_not_is_found(fakes: Scraped) -> None:
    reasons = {"Acceptance/A": "a wrong reason"}
    found = fakes.report("proposers", reasons).findings
    assert [finding for finding in found if finding.startswith("Acceptance/A has data")]


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """The demo on a real engine under load; the engine is killed and replaced."""
    need_prometheus()
    folder = tmp_path_factory.mktemp("real")
    flags = ("--routing-rules", RULES, "--engine-restart-delay-s", "0.5")
    served = Served.start_beside(folder / "server.log", *flags)
    try:
        with scraping(folder, [address(served)]) as prometheus:
            yield asyncio.run(load_real(prometheus, served))
    finally:
        served.stop()


async def load_real(prometheus: Prometheus, served: Served) -> Scraped:
    began = time.time()
    load = MixedLoad(served.url)

    async def die() -> None:
        served.engine.send_signal(signal.SIGKILL)

    async def come_back() -> None:
        await asyncio.to_thread(wait_until, served._ready, 120, "the engine is replaced")
        await asyncio.sleep(AFTER_S)

    await load.run(BEFORE_S, [(BEFORE_S, die), (BEFORE_S + 2, come_back)], answers=100)
    assert load.statuses[503] > 0, load.statuses
    return Scraped(prometheus, Span(began, time.time(), step_s=5))


@pytest.mark.prove
@pytest.mark.parametrize("name", NAMES)
def test_every_query_returns_data_of_a_real_engine(real: Scraped, name: str) -> None:
    text_only = "the demo's target takes no media"
    assert real.report(name, {"Time to prepare media/A": text_only}).findings == []
