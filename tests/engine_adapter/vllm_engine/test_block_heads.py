"""DFlash and DSpark heads on a real engine: drafts as in plain PyTorch, and as without switches.

The heads are random, so nearly every draft is rejected and every position is drafted from. Drafts
of DFlash are also compared with stock vLLM's. It has DSpark in its V2 model runner alone, which
needs a GPU.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.proposers.dflash_heads import dflash
from tests.engine_adapter.proposers.dspark_heads import dspark
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

pytestmark = [pytest.mark.engine, pytest.mark.prove]

K = 6
DFLASH, DSPARK = SpecMethod("dflash", K), SpecMethod("dspark", K)
SINGLE = SpecMethod("single", K)
NGRAM, CASCADE = SpecMethod("ngram", 4), SpecMethod("cascade", K)
METHODS = {"dflash": "dflash", "single": "dflash", "dspark": "dspark", "masked": "dspark"}
"""Name of a head -> its method."""

each_method = pytest.mark.parametrize("head", [DFLASH, DSPARK], ids=lambda head: head.proposer)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Heads of two layers that combine three of the target's, and such of a single layer.

    The first draft of `dspark` comes from the newest token, that of `masked` from a mask.
    """
    config = json.loads((Path(TARGET) / "config.json").read_text())
    heads = {
        "dflash": dflash(config, target_layers=[1, 3, 4], seed=2),
        "single": dflash(config, target_layers=[0, 4], layers=1, seed=3),
        "dspark": dspark(config, target_layers=[1, 3, 4], block_size=K, seed=2),
        "masked": dspark(
            config, target_layers=[0, 4], layers=1, block_size=K + 1, from_newest=False, seed=3
        ),
    }
    root = tmp_path_factory.mktemp("heads")
    return {name: Path(made.write(root / name)) for name, made in heads.items()}


@pytest.fixture(scope="module")
def engine(folders: dict[str, Path]) -> Iterator[RecordedEngine]:
    """An engine with all of them, 22 KV blocks and 320 tokens a step."""
    heads = [
        {"name": name, "method": method, "model": str(folders[name]), "num_speculative_tokens": K}
        for name, method in METHODS.items()
    ]
    cascade = {"name": "cascade", "members": ["ngram", "dspark"]}
    arguments = {"num_gpu_blocks_override": 22, "max_num_batched_tokens": 320, "max_num_seqs": 16}
    specs = parse_specs([*heads, {"name": "ngram"}, cascade])
    started = RecordedEngine(EngineConfig(TARGET, "demo", specs, None, COMMON | arguments))
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def empty_prefix_cache(engine: RecordedEngine) -> None:
    """Each test begins with an empty prefix cache."""
    engine.reset_prefix_cache()


@pytest.mark.parametrize("name", METHODS)
def test_a_head_drafts_as_the_plain_implementation_does(
    engine: RecordedEngine, folders: dict[str, Path], prompts: list[Prompt], name: str
) -> None:
    """One prompt takes one step, the other one three. A Markov head must decide some drafts."""
    reference = PlainBlockHead(Path(TARGET), folders[name], K)
    without = PlainBlockHead(Path(TARGET), folders[name], K, markov=False)
    decided = 0
    for prompt, length in ((prompts[8], 24), (prompts[16], 8)):
        got = engine.run([RecordedRequest(prompt, length, SpecMethod(name, K))])
        assert got.outputs == engine.run([RecordedRequest(prompt, length, PLAIN)]).outputs
        tokens, drafts = prompt + got.outputs[0], got.of(0, name)
        assert len(drafts) >= length - 4
        for count, drafted in drafts.items():
            assert drafted == reference.drafts(tokens[:count])[: len(drafted)]
            decided += drafted != without.drafts(tokens[:count])[: len(drafted)]
    assert (decided > 10) == (METHODS[name] == "dspark")


def test_drafts_of_a_single_layer_are_stock_vllms(
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


@each_method
def test_a_smaller_k_gives_the_first_drafts_of_the_block(
    engine: RecordedEngine, prompts: list[Prompt], head: SpecMethod
) -> None:
    want = never_switched(engine, [prompts[8]], head, 30)
    got = engine.run([RecordedRequest(prompts[8], 30, SpecMethod(head.proposer, 2))])
    assert max(len(drafts) for drafts in got.of(0, head.proposer).values()) == 2
    assert same_drafts(got, want, head.proposer) > 20


@each_method
def test_drafts_after_a_switch_are_those_of_a_run_without(
    engine: RecordedEngine, prompts: list[Prompt], head: SpecMethod
) -> None:
    some = prompts[8:11]
    want = never_switched(engine, some, head, 60)
    other = CASCADE if head is DSPARK else PLAIN
    switches = {0: PLAIN, 15: head, 25: NGRAM, 35: head, 36: other, 45: head}
    got = engine.run([RecordedRequest(prompt, 60, PLAIN) for prompt in some], switches)
    assert same_drafts(got, want, head.proposer) > 60
    assert got.catchup[head.proposer] > sum(map(len, some))


@each_method
def test_drafts_after_a_hit_on_blocks_filled_while_idle_are_the_same(
    engine: RecordedEngine, prompts: list[Prompt], head: SpecMethod
) -> None:
    want = never_switched(engine, [prompts[16]], head, 20)
    engine.run([RecordedRequest(prompts[16], 1, PLAIN)])
    got = engine.run([RecordedRequest(prompts[16], 20, head)])
    assert got.cached[0] >= 128
    assert got.catchup[head.proposer] >= got.cached[0]
    assert same_drafts(got, want, head.proposer) >= 15


@each_method
def test_drafts_after_preemption_are_those_of_a_run_without(
    engine: RecordedEngine, prompts: list[Prompt], head: SpecMethod
) -> None:
    some = more_than_fit(prompts)
    want = never_switched(engine, some, head, 40)
    got = engine.run([RecordedRequest(prompt, 40, head) for prompt in some])
    assert got.preemptions > 0
    assert same_drafts(got, want, head.proposer) > 400


def test_drafts_at_the_end_of_the_context_have_fewer_masks(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    prompt = (prompts[16] + prompts[17])[: CONTEXT - 20]
    got = engine.run([RecordedRequest(prompt, 20, DFLASH)])
    assert got.outputs == engine.run([RecordedRequest(prompt, 20, PLAIN)]).outputs
    lengths = {CONTEXT - count: len(drafts) for count, drafts in got.of(0, "dflash").items()}
    assert min(lengths) < K
    assert all(drafted <= left for left, drafted in lengths.items())
