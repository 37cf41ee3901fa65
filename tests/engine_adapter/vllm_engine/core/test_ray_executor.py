"""Ray as vLLM's executor: a target on two ranks, each in an actor of a cluster on this machine."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
import pytest_asyncio

from engine_adapter.seam.errors import EngineError
from engine_adapter.seam.types import SpecMethod, Switch
from tests import ray_cluster
from tests.engine_adapter.vllm_engine.conftest import CHOICES, PROPOSERS, TARGET, start
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Stock,
    generate,
    greedy,
    pinned,
)
from tests.server.gateway import eventually

pytest.importorskip("ray", reason=ray_cluster.ABSENT)

pytestmark = [
    pytest.mark.prove,
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(1800),
]

OF_THE_TARGET = {"method": "draft_model", "model": TARGET, "num_speculative_tokens": 4}
SIZES: dict[str, dict[str, Any]] = {
    "whole": {**OF_THE_TARGET, "draft_tensor_parallel_size": 1},
    "split": {**OF_THE_TARGET, "draft_tensor_parallel_size": 2},
}
PATIENCE_S = 300.0


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def on_ray() -> AsyncIterator[Live]:
    """Every proposer, and the target as its own draft on one rank and on two."""
    sizes = [{**fields, "name": name} for name, fields in SIZES.items()]
    with ray_cluster.cluster(num_cpus=4) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", address)
        # Engines on one rank have set it to 0 in this process.
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
        started = await start(
            [*PROPOSERS, *sizes],
            tensor_parallel_size=2,
            kv_cache_memory_bytes=256 << 20,
            distributed_executor_backend="ray",
        )
        yield started
        await started.engine.stop()


async def workers(live: Live) -> list[int]:
    """The process of each rank."""
    child = live.engine._supervisor.child  # type: ignore[attr-defined]
    return [pid for _, pid in await child.collective_rpc("specgate_process")]


async def test_the_ranks_are_actors_of_ray(on_ray: Live) -> None:
    pids = await workers(on_ray)
    assert len(set(pids)) == 2
    for pid in pids:
        assert psutil.Process(pid).cmdline()[0].startswith("ray::")


@pytest.mark.parametrize("name", CHOICES)
async def test_every_proposer_is_exact(
    on_ray: Live, stock: Stock, prompts: list[Prompt], name: str
) -> None:
    for prompt in prompts[:3]:
        result = await generate(on_ray, prompt, greedy(40), pinned(name, CHOICES[name]))
        await stock.check(prompt, result.tokens)


@pytest.mark.parametrize("name", SIZES)
async def test_every_draft_of_the_target_for_itself_is_accepted(
    on_ray: Live, stock: Stock, prompts: list[Prompt], name: str
) -> None:
    result = await generate(on_ray, prompts[8], greedy(48), pinned(name, 4))
    await stock.check(prompts[8], result.tokens)
    counts = result.counts(name)
    assert counts.drafted >= 36
    assert counts.accepted == counts.drafted


async def test_requests_of_different_proposers_share_steps_and_switch(
    on_ray: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    switched, answers = asyncio.Event(), []

    async def ask(prompt: Prompt) -> None:
        while not switched.is_set():
            answers.append((prompt, await generate(on_ray, prompt, greedy(96))))

    clients = [asyncio.create_task(ask(prompt)) for prompt in prompts[:6]]
    for epoch, name in enumerate([*CHOICES, *SIZES], 1):
        k = CHOICES.get(name, 4)
        await on_ray.engine.switch(Switch(SpecMethod(name, k), epoch), running=True)
        await on_ray.recorder.more(1)
    switched.set()
    await asyncio.gather(*clients)
    for prompt, result in answers:
        await stock.check(prompt, result.tokens)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGTERM])
async def test_a_rank_that_is_killed_is_replaced(
    on_ray: Live, stock: Stock, prompts: list[Prompt], sent: signal.Signals
) -> None:
    before = await workers(on_ray)
    lost = asyncio.create_task(generate(on_ray, prompts[0], greedy(900)))
    await on_ray.recorder.more(3)
    os.kill(before[1], sent)
    with pytest.raises(EngineError, match="This request is lost"):
        await lost
    await eventually(lambda: on_ray.engine.failure is None, PATIENCE_S)
    after = await workers(on_ray)
    assert not set(after) & set(before)
    assert not any(psutil.pid_exists(pid) for pid in before)
    for name, k in (("self", 5), ("eagle", 4), ("whole", 4), ("split", 4)):
        result = await generate(on_ray, prompts[1], greedy(40), pinned(name, k))
        await stock.check(prompts[1], result.tokens)
