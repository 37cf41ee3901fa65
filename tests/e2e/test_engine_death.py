"""The engine's process is killed or stopped under load: clients get an error, it is replaced."""

import asyncio
import os
import time
from collections.abc import Iterator
from typing import Any

import httpx
import psutil
import pytest

from tests.e2e.engine_faults import (
    BACK_S,
    FLAGS,
    KILL,
    LIMIT,
    METHODS,
    STOP,
    fault_under_load,
    limit_s,
)
from tests.e2e.faulted_load import Faults, greedy_texts
from tests.e2e.greedy import Plain
from tests.e2e.served import Served, wait_until
from tests.e2e.traffic import chat

pytestmark = [pytest.mark.engine, pytest.mark.timeout(limit_s(2))]
"""One fault more than a test makes: at its end the server's engine hangs."""

FAULTS = int(os.environ.get("FAULTS", "20"))


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
    assert "the engine process did not answer for" in served.logged("engine_hung")[-1]
    processes = children(served)
    begun = time.monotonic()
    assert served.stop() == 0, served.tail()
    assert time.monotonic() - begun < 30
    psutil.wait_procs(processes, timeout=60)
    assert not [process for process in processes if process.is_running()]
    log = served.log.read_text(errors="replace")
    assert "Traceback" not in log, served.tail()


def children(served: Served) -> list[psutil.Process]:
    return psutil.Process(served.process.pid).children(recursive=True)


@pytest.fixture(scope="module")
def texts(served: Served) -> list[Plain]:
    return asyncio.run(greedy_texts(served))


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


async def test_a_killed_engine_is_replaced_and_clients_get_errors(
    served: Served, texts: list[Plain]
) -> None:
    parameters = await asyncio.to_thread(learn, served)
    assert parameters["load"]["light"]["max_running"] == 3
    learned = drafts_of(served, "suffix")
    await fault_under_load(served, texts, "ngram", KILL)
    assert policies(served) == parameters
    assert drafts_of(served, "ngram") > 0, "the new process has reported"
    assert drafts_of(served, "suffix") >= learned, "it knows what the old one had measured"
    (died,) = served.logged("engine_died")
    assert "was killed by signal 9 (SIGKILL)" in died
    assert f"attempt 1 of {LIMIT} within 600 s" in died
    assert served.logged("engine_loading")
    assert len(served.logged("engine_restarted")) == 1


@pytest.mark.prove
@pytest.mark.timeout(limit_s(FAULTS + 1))
async def test_many_faults_under_load_leak_nothing(served: Served, texts: list[Plain]) -> None:
    """`FAULTS` sets their number; with `-s` their table is on the terminal."""
    gateway = psutil.Process(served.process.pid)
    descriptors, threads, faults = [], [], Faults()
    for i in range(FAULTS):
        fault, method = STOP if i % 2 else KILL, METHODS[i % len(METHODS)]
        load, seconds = await fault_under_load(served, texts, method, fault)
        faults.add(fault.name, method, load, seconds)
        descriptors.append(gateway.num_fds())
        threads.append(gateway.num_threads())
    print(f"\n{faults.table()}\ndescriptors {descriptors}\nthreads {threads}")
    # vLLM allocates once during the first replacement; after it nothing may grow.
    assert descriptors[-1] <= descriptors[0], descriptors
    assert threads[-1] <= threads[0], threads
