"""A fault of the engine's process under load: what the server and its clients must do about it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass

import httpx
import psutil

from tests.e2e.faulted_load import CLIENTS, Load
from tests.e2e.greedy import Plain
from tests.e2e.served import PROPOSERS, START_S, Samples, Served

BACK_S = 600
"""Seconds in which the engine is replaced."""

LOAD_S = 540
"""Seconds for the rest of a fault: the load before it, its errors, and the load after it."""

DIED = "engine_died"
"""The event of a death in the log."""

LIMIT = 30
HANG_S = 4
FLAGS = (
    *("--engine-restart-delay-s", "0.5", "--engine-restart-max-delay-s", "0.5"),
    *("--engine-restart-limit", str(LIMIT), "--engine-hang-timeout-s", str(HANG_S)),
)
"""A server that replaces its engine at once, and often."""

METHODS = ("draft", "suffix", "none", "draft-small", "ngram")
"""The methods in force at one fault after another."""

COUNTERS = (
    "vllm:spec_decode_num_draft_tokens_total",
    "specgate_spec_decode_draft_tokens_total",
    "specgate_requests_total",
)


@dataclass(frozen=True)
class Fault:
    """What happens to the engine's process.

    Attributes:
        name: in a table.
        strike: makes it happen.
        causes: the message of the death has one of these.
        signs: the log has one of these after it.
    """

    name: str
    strike: Callable[[psutil.Process], None]
    causes: tuple[str, ...]
    signs: tuple[str, ...] = (DIED,)


KILL = Fault("SIGKILL", psutil.Process.kill, ("was killed by signal 9 (SIGKILL)",))
STOP = Fault("SIGSTOP", psutil.Process.suspend, ("was stopped",))


def limit_s(faults: int) -> int:
    """The most seconds that a test with so many faults takes, with the start of its server."""
    return START_S + faults * (BACK_S + LOAD_S)


async def fault_under_load(
    served: Served, texts: list[Plain], method: str, fault: Fault
) -> tuple[Load, float]:
    """One fault under load. The load begins before it, and ends after the replacement answers.

    Returns the load, and the seconds from the fault until the server was ready again.
    """
    switched = served.switch(method)
    before, deaths = served.scrape(), len(served.logged(DIED))
    load = Load(texts, "engine_dead", "This request is lost.")
    async with load.running(served):
        await load.until(lambda: load.whole > CLIENTS // 2, 120, "responses come")
        begun, logged = time.monotonic(), served.log.stat().st_size
        fault.strike(served.engine)
        await load.until(lambda: load.refused > CLIENTS, 60 + HANG_S, "clients get errors")
        # A process that ends by itself takes a moment; until then the server cannot tell the cause.
        await load.until(lambda: "has died" not in failure(served), 120, "the cause is known")
        await asyncio.to_thread(check_the_server_during_the_outage, served, method, fault.causes)
        log = served.log.read_bytes()[logged:].decode(errors="replace")
        assert any(sign in log for sign in fault.signs), log[-4000:]
        whole = load.whole
        await load.until(served._ready, BACK_S, "the engine is replaced")
        seconds = time.monotonic() - begun
        await load.until(lambda: load.whole >= whole + CLIENTS, 120, "responses come again")
        assert load.cut_off + load.refused >= CLIENTS
    served.wait_until_idle()
    shown = served.get("/v1/spec_method").json()
    assert (shown["spec_method"], shown["generation"]) == (method, switched["generation"])
    assert shown["engine"]["state"] == "serving"
    check_the_metrics_go_on(before, served.scrape())
    assert len(served.logged(DIED)) - deaths == 1
    return load, seconds


def check_the_metrics_go_on(before: Samples, after: Samples) -> None:
    """The metrics before a death and after its replacement."""
    assert after("vllm:generation_tokens_total") > before("vllm:generation_tokens_total")
    for name in COUNTERS:
        assert after(name) >= before(name), name
    assert len(after.families) == len(set(after.families))
    restarted = {"name": "specgate_engine_restarts_total", "outcome": "restarted"}
    assert after(**restarted) - before(**restarted) == 1


def failure(served: Served) -> str:
    """What the server says of its engine's death; it fails if the engine serves."""
    response = httpx.get(f"{served.url}/ready", trust_env=False, timeout=60)
    assert response.status_code == 503, f"/ready is {response.status_code}: {response.text}"
    return str(response.json()["error"]["message"])


def check_the_server_during_the_outage(
    served: Served, method: str, causes: tuple[str, ...]
) -> None:
    """Probes, admin routes and metrics of a server without an engine."""
    for path in ("/ready", "/health"):
        response = httpx.get(f"{served.url}{path}", trust_env=False, timeout=60)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_dead")
        assert any(cause in response.json()["error"]["message"] for cause in causes), response.text
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
