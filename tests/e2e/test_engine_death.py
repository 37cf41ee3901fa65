"""The engine's process is killed or stopped under load: clients get an error, it is replaced."""

import asyncio
import json
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.served import PROPOSERS, Served, wait_until
from tests.e2e.traffic import chat, clients

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

CLIENTS = 12
BACK_S = 240
LIMIT = 30
HANG_S = 4
FLAGS = (
    *("--engine-restart-delay-s", "0.5", "--engine-restart-max-delay-s", "0.5"),
    *("--engine-restart-limit", str(LIMIT), "--engine-hang-timeout-s", str(HANG_S)),
)
FAULTS = 20
CAUSES = {signal.SIGKILL: "was killed by signal 9 (SIGKILL)", signal.SIGSTOP: "was stopped"}
"""The signal that the engine gets -> what its death is said to be."""

COUNTERS = (
    "vllm:spec_decode_num_draft_tokens_total",
    "specgate_spec_decode_draft_tokens_total",
    "specgate_requests_total",
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose engine is killed; at the end it is stopped during a replacement."""
    served = Served.start_beside(tmp_path_factory.mktemp("death") / "server.log", *FLAGS)
    try:
        yield served
        check_that_a_stop_ends_a_replacement(served)
    finally:
        served.process.kill()


def check_that_a_stop_ends_a_replacement(served: Served) -> None:
    """Uses the same server, because a start takes long. The engine is idle, and hangs."""
    before = set(children(served))
    served.engine.suspend()
    wait_until(lambda: bool(set(children(served)) - before), BACK_S, "a replacement loads")
    assert "the engine process did not answer for" in logged(served, "engine_hung")[-1]
    processes = children(served)
    begun = time.monotonic()
    assert served.stop() == 0, served.tail()
    assert time.monotonic() - begun < 15
    psutil.wait_procs(processes, timeout=5)
    assert not [process for process in processes if process.is_running()]
    log = served.log.read_text(errors="replace")
    assert "Traceback" not in log, served.tail()


def children(served: Served) -> list[psutil.Process]:
    return psutil.Process(served.process.pid).children(recursive=True)


def logged(served: Served, event: str) -> list[str]:
    """Specgate's log lines of an event."""
    lines = served.log.read_text(errors="replace").splitlines()
    return [line for line in lines if f" {event} " in line]


@dataclass
class Load:
    """Clients that send requests repeatedly, half of them streams, and the outcomes."""

    client: httpx.AsyncClient
    whole: int = 0
    refused: list[httpx.Response] = field(default_factory=list)
    cut_off: int = 0
    stopping: bool = False

    async def run(self, i: int) -> None:
        """One client."""
        while not self.stopping:
            if i % 2:
                await self._stream(chat(i, max_tokens=200))
            else:
                await self._ask(chat(i, max_tokens=200, stream=False, stream_options=None))

    async def _ask(self, body: dict[str, Any]) -> None:
        response = await self.client.post("/v1/chat/completions", json=body)
        if response.status_code == 200:
            answer = response.json()
            assert answer["choices"][0]["finish_reason"] == "length"
            assert answer["usage"]["completion_tokens"] == 200
            self.whole += 1
        else:
            await self._check_refusal(response)

    async def _stream(self, body: dict[str, Any]) -> None:
        async with self.client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                await self._check_refusal(response)
                return
            lines = [line async for line in response.aiter_lines() if line.startswith("data: ")]
        *events, done = (line.removeprefix("data: ") for line in lines)
        assert done == "[DONE]", lines[-1]
        chunks = [json.loads(event) for event in events]
        reasons = [c["choices"][0]["finish_reason"] for c in chunks if c.get("choices")]
        if "error" in chunks[-1]:
            assert chunks[-1]["error"]["code"] == "engine_dead"
            assert "This request is lost." in chunks[-1]["error"]["message"]
            assert not any(reasons)
            self.cut_off += 1
        else:
            assert chunks[-1]["usage"]["completion_tokens"] == 200
            assert reasons[-1] == "length"
            self.whole += 1

    async def _check_refusal(self, response: httpx.Response) -> None:
        error = response.json()["error"]
        assert (response.status_code, error["code"]) == (503, "engine_dead"), response.text
        assert int(response.headers["retry-after"]) >= 1
        self.refused.append(response)
        await asyncio.sleep(0.2)


@asynccontextmanager
async def load(served: Served) -> AsyncIterator[Load]:
    """A load while the block runs; fails if a request ends in another way."""
    async with clients(served.url) as client, asyncio.TaskGroup() as group:
        load = Load(client)
        for i in range(CLIENTS):
            group.create_task(load.run(i))
        yield load
        load.stopping = True


async def until(condition: Any, seconds: float, what: str) -> None:
    """`wait_until` in a thread, so that the load continues."""
    await asyncio.to_thread(wait_until, condition, seconds, what)


async def fault_under_load(
    served: Served, method: str, number: signal.Signals = signal.SIGKILL
) -> None:
    """One fault: from the first responses to the first responses after the replacement."""
    switched = served.switch(method)
    before, deaths = served.scrape(), len(logged(served, "engine_died"))
    async with load(served) as running:
        await until(lambda: running.whole > CLIENTS // 2, 120, "responses come")
        served.engine.send_signal(number)
        await until(lambda: len(running.refused) > CLIENTS, 10 + HANG_S, "clients get errors")
        cause = CAUSES[number]
        await asyncio.to_thread(check_the_server_during_the_outage, served, method, cause)
        whole = running.whole
        await until(served._ready, BACK_S, "the engine is replaced")
        await until(lambda: running.whole >= whole + CLIENTS, 120, "responses come again")
        assert running.cut_off + len(running.refused) >= CLIENTS
    served.wait_until_idle()
    shown = served.get("/v1/spec_method").json()
    assert (shown["spec_method"], shown["generation"]) == (method, switched["generation"])
    assert shown["engine"]["state"] == "serving"
    after = served.scrape()
    assert after("vllm:generation_tokens_total") > before("vllm:generation_tokens_total")
    for name in COUNTERS:
        assert after(name) >= before(name), name
    assert len(after.families) == len(set(after.families))
    restarted = {"name": "specgate_engine_restarts_total", "outcome": "restarted"}
    assert after(**restarted) - before(**restarted) == 1
    assert len(logged(served, "engine_died")) - deaths == 1


def check_the_server_during_the_outage(served: Served, method: str, cause: str) -> None:
    """Probes, admin routes and metrics of a server without an engine."""
    for path in ("/ready", "/health"):
        response = httpx.get(f"{served.url}{path}", trust_env=False)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
        assert cause in response.json()["error"]["message"]
        assert int(response.headers["retry-after"]) >= 1
    shown = served.get("/v1/spec_method").json()
    assert (shown["spec_method"], shown["engine"]["state"]) == (method, "restarting")
    names = {proposer["name"] for proposer in served.get("/v1/proposers").json()["data"]}
    assert names >= set(PROPOSERS)
    body = {"speculative_model": "none", "reason": "in the gap"}
    refused = httpx.post(f"{served.url}/v1/switch_spec_method", json=body, trust_env=False)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "engine_dead")
    record = served.get("/v1/spec_method").json()["switches"][0]
    assert (record["outcome"], record["reason"]) == ("failed", "in the gap")
    scrape = served.scrape()
    for gauge in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
        assert scrape(f"vllm:{gauge}") == 0, gauge


LOAD = {"light": {"proposer": "draft", "max_running": 3}, "dwell_steps": 7}
"""Parameters of a policy that are not its defaults."""


def learn(served: Served) -> dict[str, Any]:
    """Changes a policy, and lets `suffix` draft, which no later request does; what is known."""
    body = {"policies": {"load": LOAD}}
    changed = httpx.put(f"{served.url}/v1/spec_policy", json=body, trust_env=False)
    assert changed.status_code == 200, changed.text
    options = {"stream": False, "stream_options": None, "spec_decode": {"proposer": "suffix"}}

    def reported() -> bool:
        # A fast engine ends one request before its next report, which comes with a step.
        served.post("/v1/chat/completions", chat(0, max_tokens=200, **options))
        return drafts_of(served, "suffix") > 0

    wait_until(reported, 60, "the engine reports its evidence")
    return policies(served)


def policies(served: Served) -> dict[str, Any]:
    """The parameters of every policy."""
    shown = served.get("/v1/spec_policy").json()["policies"]
    return {policy["name"]: policy["parameters"] for policy in shown}


def drafts_of(served: Served, proposer: str) -> int:
    """How many drafts of a proposer the engine's evidence has."""
    evidence = served.get("/v1/spec_policy").json()["evidence"]
    known = evidence.get("proposers", {}).get(proposer, {"acceptance": {}})
    return sum(kind["drafts"] for kind in known["acceptance"].values())


async def test_a_killed_engine_is_replaced_and_clients_get_errors(served: Served) -> None:
    parameters = await asyncio.to_thread(learn, served)
    assert parameters["load"]["light"]["max_running"] == 3
    learned = drafts_of(served, "suffix")
    await fault_under_load(served, "ngram")
    assert policies(served) == parameters
    assert drafts_of(served, "ngram") > 0, "the new process has reported"
    assert drafts_of(served, "suffix") >= learned, "it knows what the old one had measured"
    (died,) = logged(served, "engine_died")
    assert "was killed by signal 9 (SIGKILL)" in died
    assert f"attempt 1 of {LIMIT} within 600 s" in died
    assert logged(served, "engine_loading")
    assert len(logged(served, "engine_restarted")) == 1


@pytest.mark.prove
@pytest.mark.timeout(FAULTS * BACK_S)
async def test_twenty_faults_under_load_leak_nothing(served: Served) -> None:
    gateway = psutil.Process(served.process.pid)
    descriptors, threads = [], []
    methods = ("draft", "suffix", "none", "draft-small", "ngram")
    for i in range(FAULTS):
        number = signal.SIGSTOP if i % 2 else signal.SIGKILL
        await fault_under_load(served, methods[i % len(methods)], number)
        descriptors.append(gateway.num_fds())
        threads.append(gateway.num_threads())
    # vLLM allocates once during the first replacement; after it nothing may grow.
    assert descriptors[-1] <= descriptors[0], descriptors
    assert threads[-1] <= threads[0], threads
