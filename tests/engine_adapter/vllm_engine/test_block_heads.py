"""DFlash heads on a real engine: drafts as in plain PyTorch, in stock vLLM, and without switches.

The heads are random, so nearly every draft is rejected and every position is drafted from.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.proposers.dflash_heads import dflash
from tests.engine_adapter.vllm_engine.conftest import COMMON, CONTEXT, TARGET
from tests.engine_adapter.vllm_engine.support.draft_comparisons import (
    more_than_fit,
    never_switched,
    same_drafts,
)
from tests.engine_adapter.vllm_engine.support.live import Prompt
from tests.engine_adapter.vllm_engine.support.plain_block_head import PlainBlockHead
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine, RecordedRequest
from tests.engine_adapter.vllm_engine.support.stock_drafts import run_stock

pytestmark = [
    pytest.mark.engine,
    pytest.mark.prove,
    pytest.mark.asyncio(loop_scope="session"),
]

K = 6
DFLASH, SINGLE, NGRAM = SpecMethod("dflash", K), SpecMethod("single", K), SpecMethod("ngram", 4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A head of two layers that combines three of the target's, and one of a single layer."""
    config = json.loads((Path(TARGET) / "config.json").read_text())
    heads = {
        "dflash": dflash(config, target_layers=[1, 3, 4], seed=2),
        "single": dflash(config, target_layers=[0, 4], layers=1, seed=3),
    }
    root = tmp_path_factory.mktemp("heads")
    return {name: Path(made.write(root / name)) for name, made in heads.items()}


@pytest.fixture(scope="module")
def engine(folders: dict[str, Path]) -> Iterator[RecordedEngine]:
    """An engine with both, 22 KV blocks and 320 tokens a step; their k is the draft capacity."""
    proposers = [
        {"name": name, "method": "dflash", "model": str(folder), "num_speculative_tokens": K}
        for name, folder in folders.items()
    ]
    arguments = {"num_gpu_blocks_override": 22, "max_num_batched_tokens": 320, "max_num_seqs": 16}
    specs = parse_specs([*proposers, {"name": "ngram"}])
    started = RecordedEngine(EngineConfig(TARGET, "demo", specs, None, COMMON | arguments))
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def empty_prefix_cache(engine: RecordedEngine) -> None:
    """Each test begins with an empty prefix cache."""
    engine.reset_prefix_cache()


@pytest.mark.parametrize("method", [DFLASH, SINGLE], ids=lambda method: method.proposer)
async def test_it_drafts_as_the_plain_implementation_does(
    engine: RecordedEngine, folders: dict[str, Path], prompts: list[Prompt], method: SpecMethod
) -> None:
    """One prompt takes one step, the other one three."""
    reference = PlainBlockHead(Path(TARGET), folders[method.proposer], K)
    for prompt, length in ((prompts[8], 24), (prompts[16], 8)):
        got = engine.run([RecordedRequest(prompt, length, method)])
        assert got.outputs == engine.run([RecordedRequest(prompt, length, PLAIN)]).outputs
        tokens, drafts = prompt + got.outputs[0], got.of(0, method.proposer)
        assert len(drafts) >= length - 4
        for count, drafted in drafts.items():
            assert drafted == reference.drafts(tokens[:count])[: len(drafted)]


async def test_drafts_of_a_single_layer_are_stock_vllms(
    engine: RecordedEngine, folders: dict[str, Path], prompts: list[Prompt]
) -> None:
    """On CPU, stock vLLM drafts wrongly with more layers: see `patches/dflash_norms.py`."""
    some, length = [prompts[8], prompts[9]], 30
    speculation = {
        "method": "dflash",
        "model": str(folders["single"]),
        "num_speculative_tokens": K,
    }
    stock = run_stock(TARGET, speculation, some, length, COMMON)
    compared = 0
    for prompt, want in zip(some, stock, strict=True):
        got = engine.run([RecordedRequest(prompt, length, SINGLE)])
        assert got.outputs[0] == want.output
        for count, drafted in got.of(0, "single").items():
            assert drafted == want.drafts[count][: len(drafted)]
            compared += 1
    assert compared > length


async def test_a_smaller_k_gives_the_first_drafts_of_the_block(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    want = never_switched(engine, [prompts[8]], DFLASH, 30)
    got = engine.run([RecordedRequest(prompts[8], 30, SpecMethod("dflash", 2))])
    assert max(len(drafts) for drafts in got.of(0, "dflash").values()) == 2
    assert same_drafts(got, want, "dflash") > 20


async def test_drafts_after_a_switch_are_those_of_a_run_without(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    some = prompts[8:11]
    want = never_switched(engine, some, DFLASH, 60)
    switches = {0: PLAIN, 15: DFLASH, 25: NGRAM, 35: DFLASH, 36: PLAIN, 45: DFLASH}
    got = engine.run([RecordedRequest(prompt, 60, PLAIN) for prompt in some], switches)
    assert same_drafts(got, want, "dflash") > 60
    assert got.catchup["dflash"] > sum(map(len, some))


async def test_drafts_after_a_hit_on_blocks_filled_while_idle_are_the_same(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    want = never_switched(engine, [prompts[16]], DFLASH, 20)
    engine.run([RecordedRequest(prompts[16], 1, PLAIN)])
    got = engine.run([RecordedRequest(prompts[16], 20, DFLASH)])
    assert got.cached[0] >= 128
    assert got.catchup["dflash"] >= got.cached[0]
    assert same_drafts(got, want, "dflash") >= 15


async def test_drafts_after_preemption_are_those_of_a_run_without(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    some = more_than_fit(prompts)
    want = never_switched(engine, some, DFLASH, 40)
    got = engine.run([RecordedRequest(prompt, 40, DFLASH) for prompt in some])
    assert got.preemptions > 0
    assert same_drafts(got, want, "dflash") > 400


async def test_drafts_at_the_end_of_the_context_have_fewer_masks(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    prompt = (prompts[16] + prompts[17])[: CONTEXT - 20]
    got = engine.run([RecordedRequest(prompt, 20, DFLASH)])
    assert got.outputs == engine.run([RecordedRequest(prompt, 20, PLAIN)]).outputs
    lengths = {CONTEXT - count: len(drafts) for count, drafts in got.of(0, "dflash").items()}
    assert min(lengths) < K
    assert all(drafted <= left for left, drafted in lengths.items())
