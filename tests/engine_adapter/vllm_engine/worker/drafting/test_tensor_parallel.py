"""A target on two ranks, with draft models on one and on two: exact outputs, all accepted."""

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from engine_adapter.seam.types import GenerationRequest, SamplingOptions
from engine_adapter.vllm_engine import compat
from tests.cases import proved_beyond
from tests.engine_adapter.proposers.dflash2_heads import dflash2
from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.xpress_heads import xpress
from tests.engine_adapter.vllm_engine.conftest import TARGET, start
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Stock,
    generate,
    greedy,
    pinned,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(900),
]

HEADS: dict[str, Callable[..., Heads]] = {"dflash2": dflash2}
if not compat.is_before("0.33"):
    HEADS["xpress"] = xpress

ENVIRONMENT = {
    # One core each; otherwise vLLM requires a NUMA node for each rank.
    "VLLM_CPU_OMP_THREADS_BIND": "0|1",
    # Engines on one rank have set it to 0 in this process.
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Live]:
    """The target as its own draft model: whole on each rank, and split like the target.

    Beside it heads whose ranks must know the same candidates.
    """
    draft = {"method": "draft_model", "model": TARGET, "num_speculative_tokens": 4}
    proposers = [
        {**draft, "name": "whole", "draft_tensor_parallel_size": 1},
        {**draft, "name": "split"},
        {
            **draft,
            "name": "sampled",
            "draft_tensor_parallel_size": 1,
            "draft_sampling": "probabilistic",
        },
    ]
    config = json.loads((Path(TARGET) / "config.json").read_text())
    fields = {"method": "dflash", "draft_sampling": "probabilistic", "num_speculative_tokens": 4}
    for name, make in HEADS.items():
        head = make(config, target_layers=[1, 3]).write(tmp_path_factory.mktemp(name))
        proposers.append({**fields, "name": name, "model": head})
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        started = await start(proposers, tensor_parallel_size=2, kv_cache_memory_bytes=256 << 20)
    yield started
    await started.engine.stop()


@pytest.mark.parametrize("name", ["whole", "split"])
async def test_every_draft_is_accepted_and_the_text_is_the_targets(
    two_ranks: Live, stock: Stock, prompts: list[Prompt], name: str
) -> None:
    for prompt in prompts[8:10]:
        result = await generate(two_ranks, prompt, greedy(48), pinned(name, 4))
        await stock.check(prompt, result.tokens)
        counts = result.counts(name)
        assert counts.drafted >= 36
        assert counts.accepted == counts.drafted


async def test_a_switch_between_the_sizes_loses_nothing(
    two_ranks: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    prompt = prompts[10]
    first = await generate(two_ranks, prompt, greedy(8), pinned("split", 4))
    second = await generate(two_ranks, prompt + first.tokens, greedy(24), pinned("whole", 4))
    await stock.check(prompt, first.tokens + second.tokens)
    assert second.counts("whole").accepted == second.counts("whole").drafted


@pytest.mark.parametrize(
    "name", proved_beyond(["split"], ["none", "whole", "split", "sampled", *HEADS])
)
async def test_the_ranks_sample_the_same_tokens_without_a_seed(
    two_ranks: Live, stock: Stock, prompts: list[Prompt], name: str
) -> None:
    """A rank that had read another token would change the log probabilities of all that follow."""
    sampled, _ = await unseeded(two_ranks, prompts[11], name, 0 if name == "none" else 4)
    await check_logprobs(stock, prompts[11], sampled)


async def unseeded(live: Live, prompt: Prompt, name: str, k: int) -> tuple[list[Any], int]:
    """The tokens of an unseeded answer with their log probabilities, and how many were drafted."""
    sampling = SamplingOptions(temperature=1.0, max_tokens=24, ignore_eos=True, logprobs=0)
    request = GenerationRequest(f"unseeded-{name}", prompt, sampling, pinned(name, k))
    sampled, drafted = [], 0
    async for delta in live.engine.generate(request):
        sampled += [entry.actual for entry in delta.logprobs or ()]
        if delta.spec is not None:
            drafted = sum(counts.drafted for counts in delta.spec.by_proposer.values())
    return sampled, drafted


async def check_logprobs(stock: Stock, prompt: Prompt, sampled: list[Any]) -> None:
    want = await stock.logprobs(prompt, tuple(token.token_id for token in sampled))
    assert [token.logprob for token in sampled] == pytest.approx(want, abs=1e-3)


async def test_each_draft_model_reports_its_size_and_memory(two_ranks: Live) -> None:
    infos = {info.name: info for info in await two_ranks.engine.proposers()}
    whole, split = infos["whole"], infos["split"]
    assert (whole.tensor_parallel_size, split.tensor_parallel_size) == (1, 2)
    assert whole.kv_bytes == 2 * split.kv_bytes
    # The norms of a split model are on every rank.
    assert whole.weights_bytes == pytest.approx(2 * split.weights_bytes, rel=0.01)
