"""Known defects of vLLM, each with a test that Specgate does not have it."""

import asyncio
import json
import shutil
import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
import torch
from prometheus_client import CollectorRegistry
from safetensors.torch import load_file, save_file

from demo import model_path
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.errors import EngineConfigError, EngineDead
from engine_adapter.seam.factory import create_engine
from engine_adapter.seam.types import (
    PLAIN,
    GenerationRequest,
    SamplingOptions,
    SpecDecodeParams,
    SpecMethod,
    Switch,
)
from tests.engine_adapter.vllm_engine.conftest import COMMON, CONTEXT, TARGET, start
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Recorder,
    Stock,
    generate,
    greedy,
    pinned,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]


async def test_a_seeded_request_survives_chunked_prefill_and_repeats(
    cramped: Live, prompts: list[Prompt]
) -> None:
    """It kills stock vLLM's engine on CPU: `CPU Generator does not use offset`."""
    long = max(prompts, key=len)
    assert len(long) > 2 * 320
    options = SamplingOptions(temperature=1.5, seed=7, max_tokens=24, ignore_eos=True)
    alone = await generate(cramped, long, options, pinned("ngram", 5))
    fillers = [generate(cramped, p, greedy(24), pinned("draft", 4)) for p in prompts[:4]]
    again, *_ = await asyncio.gather(generate(cramped, long, options, pinned("ngram", 5)), *fillers)
    assert again.tokens == alone.tokens
    other = SamplingOptions(temperature=1.5, seed=8, max_tokens=24, ignore_eos=True)
    assert (await generate(cramped, long, other, pinned("ngram", 5))).tokens != alone.tokens


@pytest.mark.parametrize(("name", "k"), [("none", 0), ("self", 5)])
async def test_a_prefix_hit_with_one_token_left_is_not_padded_with_drafts(
    live: Live, prompts: list[Prompt], name: str, k: int
) -> None:
    prompt = max(prompts, key=len)[: 128 * 4 + 1]
    await generate(live, prompt, greedy(1), pinned("none", 0))
    running = asyncio.create_task(generate(live, prompts[0], greedy(60), pinned("none", 0)))
    await live.recorder.more(3)
    before = live.metric("vllm:spec_decode_num_drafts_total")
    hit = await generate(live, prompt, greedy(8), pinned(name, k))
    assert hit.num_cached_tokens == len(prompt) - 1
    drafts = live.metric("vllm:spec_decode_num_drafts_total") - before
    assert drafts == hit.counts(name).drafts
    assert hit.counts(name).accepted == hit.counts(name).drafted
    await running


async def test_a_prefix_hit_on_blocks_cached_while_the_drafter_was_idle(
    live: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    prompt = max(prompts, key=len)[::-1]
    await generate(live, prompt, greedy(8), pinned("none", 0))
    for _ in range(2):
        hit = await generate(live, prompt, greedy(40), pinned("self", 5))
        assert hit.num_cached_tokens >= 128
        assert hit.counts("self").accepted == hit.counts("self").drafted > 0
        await stock.check(prompt, hit.tokens)


async def test_a_row_near_the_end_of_its_context_does_not_change_others(
    live: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    """vLLM's own check writes zeros as drafts for every row when one row is near the end."""
    long = (max(prompts, key=len) * 2)[: CONTEXT - 12]
    near, neighbour = await asyncio.gather(
        generate(live, long, greedy(12), pinned("self", 5)),
        generate(live, prompts[1], greedy(60), pinned("self", 5)),
    )
    assert len(near.tokens) == 12
    await stock.check(long, near.tokens)
    for result in (near, neighbour):
        assert result.counts("self").accepted == result.counts("self").drafted > 0
    assert neighbour.spec.decode_steps == 10


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def padded(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """An engine whose draft model is the target with rows for tokens that do not exist."""
    folder = tmp_path_factory.mktemp("models") / "padded"
    shutil.copytree(model_path("target"), folder)
    config = json.loads((folder / "config.json").read_text())
    config["vocab_size"] += 64
    (folder / "config.json").write_text(json.dumps(config))
    weights = load_file(folder / "model.safetensors")
    for name in [n for n in weights if "embed_tokens" in n or "lm_head" in n]:
        rows = torch.full((64, weights[name].shape[1]), 0.5, dtype=weights[name].dtype)
        weights[name] = torch.cat([weights[name], rows])
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    started = await start([{"name": "padded", "method": "draft_model", "model": str(folder)}])
    yield started
    await started.engine.stop()


async def test_a_draft_model_with_a_padded_vocabulary_is_the_same_tokenizer(
    padded: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    """Qwen2.5 7B and 0.5B are such a pair; vLLM compares the sizes and refuses it."""
    result = await generate(padded, prompts[0], greedy(40), pinned("padded", 4))
    await stock.check(prompts[0], result.tokens)
    assert result.counts("padded").accepted == result.counts("padded").drafted > 0


@pytest.mark.prove
async def test_a_killed_engine_is_reported_and_replaced(
    padded: Live, prompts: list[Prompt]
) -> None:
    """Kills the engine's process during a request; uses the engine above, since a start is slow."""
    started, prompt = padded, prompts[0]
    before_the_switch = SpecDecodeParams(PLAIN, switch_epoch=started.epoch)
    await started.switch("padded", 4)
    tokens = started.metric("vllm:generation_tokens_total")
    request = GenerationRequest("cut-short", prompt, greedy(900))
    stream = started.engine.generate(request)
    await anext(stream)
    for process in started.processes:
        process.kill()
    with pytest.raises(EngineDead, match="This request is lost"):
        async for _ in stream:
            pass
    assert started.engine.failure is not None
    assert (started.engine.failure.retry_after_s or 0) > 0
    with pytest.raises(EngineDead):
        await generate(started, prompt, greedy(4))
    for running in (True, False):
        with pytest.raises(EngineDead):
            await started.engine.switch(Switch(SpecMethod("padded", 4), 2), running=running)

    deadline = time.monotonic() + 240
    while started.engine.failure is not None:
        assert time.monotonic() < deadline, "it was not replaced"
        await asyncio.sleep(0.05)
    assert started.recorder.restarts == [True]
    # A request that was admitted before the switch, and arrives in the new process only.
    result = await generate(started, prompt, greedy(40), before_the_switch)
    assert result.counts("padded").drafted > 0
    assert started.metric("vllm:generation_tokens_total") >= tokens + 40


async def test_a_k_above_the_draft_capacity_is_refused_at_start() -> None:
    """vLLM's counters assert accepted <= k of the engine, and the assertion kills it."""
    config = EngineConfig(
        TARGET, "demo", parse_specs([{"name": "suffix", "num_speculative_tokens": 24}]), 8, COMMON
    )
    with pytest.raises(EngineConfigError, match=r"suffix.*24.*--max-speculative-tokens, 8"):
        create_engine("vllm", config, CollectorRegistry(), Recorder())
