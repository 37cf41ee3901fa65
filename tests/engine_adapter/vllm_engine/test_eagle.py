"""EAGLE and EAGLE-3 heads on a real engine: exact outputs, and drafts as without switches.

The heads are random, so nearly every draft is rejected and every position is drafted from. Their
drafts are compared with the same mathematics in plain PyTorch, and then with a run that never
switched.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.cases import proved_beyond
from tests.engine_adapter.proposers.eagle_heads import eagle, eagle3, speculators_eagle3
from tests.engine_adapter.vllm_engine.conftest import COMMON, TARGET
from tests.engine_adapter.vllm_engine.support.draft_comparisons import (
    more_than_fit,
    never_switched,
    same_drafts,
)
from tests.engine_adapter.vllm_engine.support.live import Prompt, Stock
from tests.engine_adapter.vllm_engine.support.plain_head import PlainHead
from tests.engine_adapter.vllm_engine.support.recorded import (
    RecordedEngine,
    RecordedRequest,
    RecordedRun,
)

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

K = 3
ONE, TWO = SpecMethod("one", K), SpecMethod("two", K)
THREE, SMALL = SpecMethod("three", K), SpecMethod("small", K)
NGRAM = SpecMethod("ngram", 4)
HEADS = [ONE, TWO, THREE, SMALL]
LEAN = {SpecMethod("lean-two", K): TWO, SpecMethod("lean-small", K): SMALL}
"""Heads for which the target's states are not kept, and the same ones for which they are."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two EAGLE heads, one with a bias, and two EAGLE-3 heads that combine different layers."""
    config = json.loads((Path(TARGET) / "config.json").read_text())
    heads = {
        "one": eagle(config, bias=True, seed=1),
        "two": eagle(config, seed=2),
        "three": speculators_eagle3(config, aux_layers=[1, 3, 5]),
        "small": eagle3(config, aux_layers=[2, 3, 4], draft_vocabulary=512, seed=4),
    }
    root = tmp_path_factory.mktemp("heads")
    return {name: Path(made.write(root / name)) for name, made in heads.items()}


@pytest.fixture(scope="module")
def engine(folders: dict[str, Path]) -> Iterator[RecordedEngine]:
    """An engine with all of them, 22 KV blocks and 320 tokens a step."""
    methods = {"one": "eagle", "two": "eagle", "three": "eagle3", "small": "eagle3"}
    proposers = [
        {"name": name, "method": methods[name], "model": str(folder), "num_speculative_tokens": 4}
        for name, folder in folders.items()
    ]
    for lean, kept in LEAN.items():
        (same,) = (fields for fields in proposers if fields["name"] == kept.proposer)
        proposers.append({**same, "name": lean.proposer, "keep_states": False})
    arguments = {"num_gpu_blocks_override": 22, "max_num_batched_tokens": 320, "max_num_seqs": 16}
    started = RecordedEngine(
        EngineConfig(
            TARGET, "demo", parse_specs([*proposers, {"name": "ngram"}]), None, COMMON | arguments
        )
    )
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def empty_prefix_cache(engine: RecordedEngine) -> None:
    """Each test begins with an empty prefix cache."""
    engine.reset_prefix_cache()


@pytest.mark.parametrize("method", HEADS, ids=lambda method: method.proposer)
async def test_a_head_drafts_as_the_plain_implementation_does(
    engine: RecordedEngine, folders: dict[str, Path], prompts: list[Prompt], method: SpecMethod
) -> None:
    """One prompt takes one step, the other one three."""
    reference = PlainHead(Path(TARGET), folders[method.proposer])
    for prompt, length in ((prompts[8], 24), (prompts[16], 6)):
        got = engine.run([RecordedRequest(prompt, length, method)])
        tokens = prompt + got.outputs[0]
        drafts = got.of(0, method.proposer)
        assert len(drafts) >= length - 3
        for count, drafted in drafts.items():
            assert drafted == reference.drafts(tokens[:count], len(drafted))


@pytest.mark.parametrize(
    "method", proved_beyond([TWO, SMALL], HEADS), ids=lambda method: method.proposer
)
async def test_drafts_after_a_switch_are_those_of_a_run_without(
    engine: RecordedEngine, prompts: list[Prompt], method: SpecMethod
) -> None:
    some = prompts[8:11]
    want = never_switched(engine, some, method, 60)
    switches = {0: PLAIN, 15: method, 25: NGRAM, 35: method, 36: PLAIN, 45: method}
    got = engine.run([RecordedRequest(prompt, 60, PLAIN) for prompt in some], switches)
    assert same_drafts(got, want, method.proposer) > 60
    assert got.catchup[method.proposer] > sum(map(len, some))


@pytest.mark.parametrize(
    "method", proved_beyond([TWO, SMALL], HEADS), ids=lambda method: method.proposer
)
async def test_drafts_after_a_hit_on_blocks_filled_while_idle_are_the_same(
    engine: RecordedEngine, prompts: list[Prompt], method: SpecMethod
) -> None:
    prompt = prompts[16]
    want = never_switched(engine, [prompt], method, 20)
    engine.run([RecordedRequest(prompt, 1, PLAIN)])
    got = engine.run([RecordedRequest(prompt, 20, method)])
    assert got.cached[0] >= 128
    assert got.catchup[method.proposer] >= got.cached[0]
    assert same_drafts(got, want, method.proposer) >= 15


@pytest.mark.parametrize(
    "method", proved_beyond([SMALL], [TWO, SMALL]), ids=lambda method: method.proposer
)
async def test_drafts_after_preemption_are_those_of_a_run_without(
    engine: RecordedEngine, prompts: list[Prompt], method: SpecMethod
) -> None:
    some = more_than_fit(prompts)
    want = never_switched(engine, some, method, 40)
    got = engine.run([RecordedRequest(prompt, 40, method) for prompt in some])
    assert got.preemptions > 0
    assert same_drafts(got, want, method.proposer) > 400


@pytest.mark.parametrize("method", LEAN, ids=lambda method: method.proposer)
async def test_a_head_without_kept_states_drafts_the_same_for_rows_that_begin_with_it(
    engine: RecordedEngine, prompts: list[Prompt], method: SpecMethod
) -> None:
    some = [prompts[8], prompts[16]]
    want = never_switched(engine, some, LEAN[method], 24)
    got = engine.run([RecordedRequest(prompt, 24, method) for prompt in some])
    assert got.outputs == want.outputs
    for i in range(2):
        assert got.of(i, method.proposer) == want.of(i, LEAN[method].proposer)
        assert len(got.of(i, method.proposer)) > 15
    assert not got.catchup.get(method.proposer)
    late = engine.run([RecordedRequest(prompts[9], 24, PLAIN)], {0: PLAIN, 12: method})
    assert late.of(0, method.proposer) == {}


async def test_four_heads_draft_in_one_batch_each_for_its_own_rows(
    engine: RecordedEngine, prompts: list[Prompt], stock: Stock
) -> None:
    some = prompts[8:12]
    got = engine.run(
        [RecordedRequest(prompt, 40, head) for prompt, head in zip(some, HEADS, strict=True)]
    )
    for i, head in enumerate(HEADS):
        assert {name for name, _ in got.drafts[i].values()} == {head.proposer}
        await stock.check(some[i], got.outputs[i])
        want = never_switched(engine, [some[i]], head, 40)
        single = RecordedRun([got.drafts[i]], [got.outputs[i]], [0], 0, {})
        assert same_drafts(single, want, head.proposer) > 30


async def test_drafts_of_rows_that_diverge_after_a_shared_block_are_the_same(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    stem = prompts[16][:256]
    pair = [stem + prompts[9], stem + prompts[10][5:]]
    assert pair[0][256] != pair[1][256]
    want = never_switched(engine, pair, ONE, 30)
    got = engine.run([RecordedRequest(pair[0], 30, ONE), RecordedRequest(pair[1], 30, ONE, at=8)])
    assert got.cached[1] == 256
    assert same_drafts(got, want, "one") > 40
