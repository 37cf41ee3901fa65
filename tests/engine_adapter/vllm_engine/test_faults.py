"""Proposers that misbehave in a real engine: no output changes, no neighbour is disturbed."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from importlib import import_module
from typing import Any

import pytest
import pytest_asyncio

from engine_adapter.seam.errors import EngineConfigError
from engine_adapter.vllm_engine.core.quarantine import MAX_FAULTS
from tests.engine_adapter.vllm_engine.conftest import TARGET, start
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Stock,
    generate,
    greedy,
    pinned,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

GOOD = {"none": 0, "ngram": 5, "self": 5}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def faulty() -> AsyncIterator[Live]:
    """An engine with a proposer for each way to fail, beside good ones."""
    module = import_module("tests.engine_adapter.vllm_engine.support.faulty")
    model = {"model": TARGET, "num_speculative_tokens": 5}
    started = await start(
        [
            {"name": "ngram", "num_speculative_tokens": 5},
            {"name": "self", "method": "draft_model", **model},
            {"name": "loses", "method": "faulty_draft", **model},
            *({"name": way, "method": "faulty"} for way in module.WAYS),
            {"name": "cascade", "members": ["raises", "self"]},
        ],
        kv_cache_memory_bytes=256 << 20,
        distributed_executor_backend=module.FaultyExecutor,
    )
    yield started
    await started.engine.stop()


async def test_faults_change_no_output_and_quarantine_only_their_proposer(
    faulty: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    ways = list(import_module("tests.engine_adapter.vllm_engine.support.faulty").WAYS)
    choices = [pinned(name, k) for name, k in GOOD.items()] * 2
    choices += [pinned(way, 4) for way in ways]
    chosen = list(zip(prompts, choices, strict=False))
    await stock.greedy([prompt for prompt, _ in chosen], 40)
    results = await asyncio.gather(*(generate(faulty, p, greedy(40), c) for p, c in chosen))
    for (prompt, choice), result in zip(chosen, results, strict=True):
        await stock.check(prompt, result.tokens)
        counts = result.counts(choice.spec_method.proposer)
        if choice.spec_method.proposer in ways:
            assert result.spec.by_proposer == {}
            assert result.spec.decode_steps == 39
        if choice.spec_method.proposer == "self":
            assert counts.accepted == counts.drafted > 0, (
                "its KV is as without the faulty proposers"
            )
    faults = Counter(name for step in faulty.recorder.steps for name in step.faults)
    engine: Any = faulty.engine
    # Steps that were scheduled before the quarantine call the proposer once more each.
    ahead = 2 * (engine._supervisor.child.vllm_config.max_concurrent_batches - 1)
    assert faults.keys() == set(ways)
    assert set(faults.values()) <= set(range(MAX_FAULTS, MAX_FAULTS + ahead + 1)), (
        "a quarantined proposer is not called again"
    )
    shown = {info.name: info for info in await faulty.engine.proposers()}
    assert {name for name, info in shown.items() if info.state == "quarantined"} == set(ways)
    assert "RuntimeError: broken at" in (shown["raises"].last_error or "")
    assert shown["ngram"].last_error is None


async def test_a_request_for_a_quarantined_proposer_is_served(
    faulty: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    assert any(info.state == "quarantined" for info in faulty.engine.info.proposers)
    result = await generate(faulty, prompts[3], greedy(20), pinned("ids", 4))
    await stock.check(prompts[3], result.tokens)
    assert result.spec.by_proposer == {}


async def test_a_cascade_drafts_without_its_quarantined_member(
    faulty: Live, prompts: list[Prompt]
) -> None:
    result = await generate(faulty, prompts[5], greedy(40), pinned("cascade", 5))
    counts = result.counts("cascade")
    assert counts.accepted == counts.drafted >= 30


async def test_drafts_that_a_model_lost_leave_its_kv_consistent(
    faulty: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    since = len(faulty.recorder.steps)
    spec = pinned("loses", 5)
    results = await asyncio.gather(*(generate(faulty, p, greedy(60), spec) for p in prompts[:2]))
    for prompt, result in zip(prompts, results, strict=False):
        await stock.check(prompt, result.tokens)
        assert result.counts("loses").accepted == result.counts("loses").drafted > 0
    faults = [step.faults for step in faulty.recorder.steps[since:] if step.faults]
    assert faults == [{"loses": "RuntimeError: lost"}] * 3


async def test_a_proposer_that_is_loaded_again_starts_without_faults(
    faulty: Live, prompts: list[Prompt]
) -> None:
    await faulty.engine.unload_proposer("rows")
    assert "rows" not in {info.name for info in await faulty.engine.proposers()}
    info = await faulty.engine.load_proposer({"name": "rows", "method": "ngram"})
    assert (info.state, info.last_error) == ("loaded", None)
    result = await generate(faulty, prompts[0], greedy(40), pinned("rows", 5))
    assert result.counts("rows").accepted > 0


async def test_a_proposer_whose_trial_fails_is_not_loaded_and_the_engine_serves_on(
    faulty: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    before = await faulty.engine.proposers()
    running = asyncio.create_task(generate(faulty, prompts[1], greedy(60), pinned("self", 5)))
    await faulty.recorder.more(2)
    said = "late: the method broken cannot draft for this target: RuntimeError: broken at 4 tokens"
    with pytest.raises(EngineConfigError, match=said):
        await faulty.engine.load_proposer({"name": "late", "method": "broken"})
    result = await running
    await stock.check(prompts[1], result.tokens)
    assert result.counts("self").accepted == result.counts("self").drafted > 0
    names = [info.name for info in await faulty.engine.proposers()]
    assert names == [info.name for info in before]


async def test_an_engine_does_not_start_with_a_proposer_whose_trial_fails() -> None:
    module = import_module("tests.engine_adapter.vllm_engine.support.faulty")
    with pytest.raises(EngineConfigError, match="late: the method broken cannot draft") as caught:
        await start(
            [{"name": "ngram"}, {"name": "late", "method": "broken"}],
            kv_cache_memory_bytes=64 << 20,
            distributed_executor_backend=module.FaultyExecutor,
        )
    assert caught.value.setting == "proposer"
