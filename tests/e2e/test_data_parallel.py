"""Two real engines behind one server: exact texts, switches at both, the death of one of them."""

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from demo import model_path
from tests.e2e.faulted_load import CLIENTS, Load, body_of, connecting, greedy_texts
from tests.e2e.greedy import Plain
from tests.e2e.served import Served
from tests.e2e.traffic import gather

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.timeout(3600)]

WAIT_S = 900
FLAGS = (
    str(model_path("target")),
    *("--dtype", "float32", "--max-model-len", "2048", "--spec-method", "ngram"),
    *("--proposer", json.dumps({"name": "ngram", "num_speculative_tokens": 4})),
    *("--proposer", json.dumps({"name": "suffix", "num_speculative_tokens": 4})),
    *("--engine-restart-delay-s", "0.5"),
    *("--engine-args", json.dumps({"async_scheduling": bool(os.environ.get("ASYNC_SCHEDULING"))})),
)
LATE = {"name": "late", "method": "ngram", "num_speculative_tokens": 2}
"""A proposer that is loaded while one engine is dead."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data-parallel")


@pytest.fixture(scope="module")
def texts(folder: Path) -> list[Plain]:
    """The greedy texts of a server with one engine, without speculation."""
    one = Served.start_beside(folder / "one.log", *FLAGS)
    try:
        found = asyncio.run(greedy_texts(one))
        assert one.stop() == 0, one.tail()
    finally:
        one.process.kill()
    return found


@pytest.fixture(scope="module")
def two(folder: Path, texts: list[Plain]) -> Iterator[Served]:
    """A server with two engines, while no other one runs."""
    two = Served.start_beside(folder / "two.log", *FLAGS, "--data-parallel-size", "2")
    try:
        yield two
        assert two.stop() == 0, two.tail()
        assert "Traceback" not in two.log.read_text(errors="replace"), two.tail()
    finally:
        two.process.kill()


def cores(served: Served) -> list[psutil.Process]:
    """The engines' processes, the oldest first."""
    children = psutil.Process(served.process.pid).children(recursive=True)
    found = [child for child in children if "EngineCore" in " ".join(child.cmdline())]
    return sorted(found, key=lambda process: process.create_time())


def known(served: Served, engine: int) -> dict[str, Any]:
    """What the policies of an engine have measured."""
    evidence = served.get("/v1/spec_policy").json()["evidence"]
    own: dict[str, Any] = evidence["engines"][str(engine)]
    return own


def drafts(served: Served, engine: int, proposer: str) -> int:
    """How many drafts of a proposer an engine has verified."""
    figures = known(served, engine).get("proposers", {}).get(proposer, {"acceptance": {}})
    return sum(kind["drafts"] for kind in figures["acceptance"].values())


async def grows(load: Load, served: Served, proposer: str) -> None:
    """Waits until both engines verify drafts of a proposer."""
    for engine in (0, 1):
        before = drafts(served, engine, proposer)
        await load.until(
            lambda engine=engine, before=before: drafts(served, engine, proposer) > before,
            WAIT_S,
            f"engine {engine} drafts with {proposer}",
        )


def ours(texts: list[Plain]) -> Load:
    """A load whose failures are those of one dead engine."""
    lost = "of 2: The engine process "
    return Load(texts, "engine_dead", lost, refusal_says=lost)


def test_each_engine_has_cores_of_its_own(two: Served) -> None:
    first, second = (set(process.cpu_affinity() or ()) for process in cores(two))
    assert first
    assert second
    assert not first & second
    assert first | second <= set(psutil.Process(two.process.pid).cpu_affinity() or ())


async def wrong_texts(two: Served, texts: list[Plain]) -> list[tuple[str, str, str]]:
    """Asks for every text with several proposers: the proposer, and both texts, where it differs.

    Both engines must have generated some.
    """
    before = generated(two)
    wrong = []
    async with connecting(two.url) as client:

        async def answer(i: int, proposer: str) -> str:
            body = {**body_of(i), "stream": False, "stream_options": None}
            body["spec_decode"] = {"proposer": proposer}
            response = await client.post("/v1/chat/completions", json=body)
            assert response.status_code == 200, response.text
            return str(response.json()["choices"][0]["message"]["content"])

        for proposer in ("none", "ngram", "suffix", "auto"):
            answers = await gather(*(answer(i, proposer) for i in range(CLIENTS)))
            wrong += [
                (proposer, plain.text, text)
                for plain, text in zip(texts, answers, strict=True)
                if not plain.allows(text)
            ]
    after = generated(two)
    assert all(after[engine] > before[engine] for engine in ("0", "1"))
    return wrong


def generated(two: Served) -> dict[str, float]:
    """Engine -> how many tokens it has generated."""
    return two.scrape().by("engine", "vllm:generation_tokens_total")


async def test_texts_are_those_of_one_engine(two: Served, texts: list[Plain]) -> None:
    assert await wrong_texts(two, texts) == []


@pytest.mark.parametrize(
    ("mode", "old", "new"),
    [
        ("immediate", "ngram", "suffix"),
        ("new_requests", "suffix", "ngram"),
        ("drain", "ngram", "suffix"),
    ],
)
async def test_a_switch_under_load_reaches_both(
    two: Served, texts: list[Plain], mode: str, old: str, new: str
) -> None:
    two.switch(old)
    load = ours(texts)
    async with load.running(two):
        await grows(load, two, old)
        body = {"speculative_model": new, "mode": mode, "timeout_s": 100}
        await asyncio.to_thread(two.post, "/v1/switch_spec_method", body)
        await grows(load, two, new)
        # Every request that began before the switch has ended when each client has ended two more.
        whole = load.whole
        await load.until(lambda: load.whole >= whole + 2 * CLIENTS, WAIT_S, "requests end")
        await grows(load, two, new)
        before = [drafts(two, engine, old) for engine in (0, 1)]
        await grows(load, two, new)
        assert [drafts(two, engine, old) for engine in (0, 1)] == before
    assert not load.cut_off + load.refused
    two.wait_until_idle()


async def test_a_killed_engine_loses_only_its_requests_and_comes_back_up_to_date(
    two: Served, texts: list[Plain]
) -> None:
    two.switch("ngram")
    load = ours(texts)
    async with load.running(two):
        await grows(load, two, "ngram")
        cores(two)[1].kill()
        await load.until(lambda: states(two) == {"serving", "restarting"}, WAIT_S, "it is noticed")
        # All this happens at the engine that serves, and then at the one that is back.
        await asyncio.to_thread(two.post, "/v1/load_proposer", LATE)
        switched = await asyncio.to_thread(two.switch, "late")
        await load.until(lambda: states(two) == {"serving"}, WAIT_S, "it is replaced")
        await grows(load, two, "late")
    # A client has one request at a time, and sends it again to the engine that serves.
    assert 0 < load.cut_off + load.refused < CLIENTS
    two.wait_until_idle()
    shown = two.get("/v1/spec_method").json()
    assert (shown["spec_method"], shown["generation"]) == ("late", switched["generation"])
    (died,) = two.logged("engine_died")
    assert "engine=1" in died
    assert len(two.logged("engine_restarted")) == 1
    first, second = (set(process.cpu_affinity() or ()) for process in cores(two))
    assert not first & second
    assert await wrong_texts(two, texts) == []


def states(served: Served) -> set[str]:
    """The states of the engines; the server is ready throughout."""
    return set(served.get("/ready").json()["engines"])
