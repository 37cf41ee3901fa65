"""Compiled models (`enforce_eager: false`): texts and drafts are those of the eager engine.

On a CPU, Inductor makes code of the target and of each draft model and head when the engine starts.
"""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from demo import model_path
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import NONE, PLAIN, SpecMethod
from tests.engine_adapter.proposers import heads
from tests.engine_adapter.proposers.dflash_heads import dflash
from tests.engine_adapter.proposers.eagle_heads import eagle
from tests.engine_adapter.proposers.mtp_targets import mimo, write_target
from tests.engine_adapter.vllm_engine import test_async_scheduling as async_scheduling
from tests.engine_adapter.vllm_engine import test_loading as loading
from tests.engine_adapter.vllm_engine import test_switching as switching
from tests.engine_adapter.vllm_engine.conftest import COMMON, PROPOSERS, TARGET, start
from tests.engine_adapter.vllm_engine.support.draft_comparisons import same_drafts
from tests.engine_adapter.vllm_engine.support.live import (
    Live,
    Prompt,
    Stock,
    generate,
    greedy,
    pinned,
)
from tests.engine_adapter.vllm_engine.support.recorded import (
    RecordedEngine,
    RecordedRequest,
    RecordedRun,
)

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.timeout(1200),
]

K = 3


@dataclass(frozen=True)
class Family:
    """A target and its proposers."""

    model: str
    proposers: list[dict[str, Any]]

    @property
    def methods(self) -> dict[str, SpecMethod]:
        """Plain decoding, and the proposers."""
        names = [fields["name"] for fields in self.proposers]
        return {NONE: PLAIN} | {name: SpecMethod(name, K) for name in names}

    def config(self, *, eager: bool) -> EngineConfig:
        """The engine with all proposers."""
        specs = parse_specs([{"num_speculative_tokens": K, **fields} for fields in self.proposers])
        return EngineConfig(self.model, "target", specs, None, COMMON | {"enforce_eager": eager})


def with_mtp(root: Path) -> Family:
    """A small target with an MTP layer, an EAGLE head and a draft model."""
    target = mimo(seed=3)
    # They name the kinds of the target's layers; the head has another number of them.
    fields = {name: value for name, value in target.config.items() if name != "layer_types"}
    fields |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    proposers: list[dict[str, Any]] = [
        {"name": "draft", "method": "draft_model", "model": str(model_path("draft-small"))},
        {"name": "mtp"},
        {"name": "eagle", "model": eagle(fields, seed=1).write(root / "eagle")},
    ]
    model = write_target(target, root / "target", Path(TARGET))
    return Family(str(model), proposers)


def with_heads(root: Path) -> Family:
    """The demo target with heads that read its layers, and a lookup."""
    block = dflash(json.loads((Path(TARGET) / "config.json").read_text()), target_layers=[1, 3, 4])
    proposers: list[dict[str, Any]] = [
        {"name": "eagle3", "model": str(model_path("eagle3"))},
        {"name": "dflash", "model": block.write(root / "dflash")},
        {"name": "medusa", "model": str(model_path("medusa"))},
        {"name": "ngram"},
    ]
    return Family(TARGET, proposers)


@pytest.fixture(scope="module", params=[with_mtp, with_heads])
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    """The families in turn."""
    family: Family = request.param(tmp_path_factory.mktemp("compiled"))
    return family


def runs(
    engine: RecordedEngine, family: Family, prompts: list[Prompt]
) -> tuple[dict[str, RecordedRun], RecordedRun]:
    """A run with each method, and one that is switched from each to the next."""
    by_method = {}
    for name, method in family.methods.items():
        engine.reset_prefix_cache()
        by_method[name] = engine.run([RecordedRequest(prompt, 40, method) for prompt in prompts])
    engine.reset_prefix_cache()
    switches = {4 * i: method for i, method in enumerate(family.methods.values())}
    requests = [RecordedRequest(prompt, 40, PLAIN) for prompt in prompts]
    return by_method, engine.run(requests, switches)


def num_compiled() -> int:
    """How many graphs have become code in this process."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


async def test_texts_and_drafts_are_those_of_the_eager_engine(
    family: Family, prompts: list[Prompt]
) -> None:
    some = prompts[:3]
    engine = RecordedEngine(family.config(eager=True))
    try:
        want, want_switched = runs(engine, family, some)
        assert engine.call(num_compiled) == 0
        engine.restart(family.config(eager=False))
        count = engine.call(num_compiled)
        assert count >= 3, "the target and two others; not every class of vLLM's is compiled"
        got, switched = runs(engine, family, some)
        assert engine.call(num_compiled) == count, "nothing is compiled while it serves"
    finally:
        engine.stop()
    assert switched.outputs == want[NONE].outputs
    for name, run in got.items():
        assert run.outputs == want[NONE].outputs
        if name != NONE:
            assert same_drafts(run, want[name], name) > 20
            assert same_drafts(switched, want_switched, name) > 3


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def compiled() -> AsyncIterator[Live]:
    """A compiled engine on the demo target, with every kind of proposer."""
    started = await start(PROPOSERS, enforce_eager=False, kv_cache_memory_bytes=512 << 20)
    yield started
    await started.engine.stop()


async def test_rows_of_every_proposer_share_batches_and_keep_stock_vllms_texts(
    compiled: Live, stock: Stock, prompts: list[Prompt]
) -> None:
    await async_scheduling.test_rows_of_every_proposer_share_batches_and_keep_stock_vllms_texts(
        compiled, stock, prompts
    )


async def test_switches_change_no_text(compiled: Live, stock: Stock, prompts: list[Prompt]) -> None:
    await switching.test_fifty_switches_under_sixteen_streams_change_no_output(
        compiled, stock, prompts, True
    )


async def test_proposers_are_loaded_and_unloaded_under_load(
    compiled: Live, stock: Stock, prompts: list[Prompt], tmp_path: Path
) -> None:
    model = heads.medusa(hidden=256, vocabulary=2048).write(tmp_path)
    async with loading.under_load(compiled, prompts):
        for _ in range(3):
            await loading.cycle(compiled, model, prompts[4])
    result = await generate(compiled, prompts[4], greedy(40), pinned("self", 5))
    await stock.check(prompts[4], result.tokens)
