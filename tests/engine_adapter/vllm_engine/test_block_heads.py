"""Heads that draft blocks on a real engine: drafts as in plain PyTorch, and as without switches.

The heads are random, so nearly every draft is rejected and every position is drafted from. Drafts
of DFlash are also compared with stock vLLM's. It has the others in its V2 model runner alone, which
needs a GPU; and XPress in 0.33 alone.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from engine_adapter.vllm_engine import compat
from tests.engine_adapter.proposers.dflash2_heads import dflash2
from tests.engine_adapter.proposers.dflash_heads import dflash, with_sinks
from tests.engine_adapter.proposers.dspark_heads import dspark
from tests.engine_adapter.proposers.xpress_heads import xpress
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
DFLASH, DFLASH2, DSPARK, XPRESS = (
    SpecMethod(name, K) for name in ("dflash", "dflash2", "dspark", "xpress")
)
KINDS = [DFLASH, DFLASH2, DSPARK]
SINGLE = SpecMethod("single", K)
NGRAM, CASCADE = SpecMethod("ngram", 4), SpecMethod("cascade", K)
METHODS = {
    "dflash": "dflash",
    "single": "dflash",
    "dflash2": "dflash",
    "mixed": "dflash",
    "windows": "dflash",
    "causal": "dflash",
    "dspark": "dspark",
    "masked": "dspark",
}
"""Name of a head -> its method."""

if not compat.is_before("0.33"):
    METHODS |= {"xpress": "dflash", "unbounded": "dflash"}
    KINDS += [XPRESS]

WINDOW = 20
"""Of the layers that have one; shorter than the prompts."""

SEQUENTIAL = {"dflash2", "dspark", "masked", "xpress", "unbounded"}
"""The heads whose drafts depend on those before."""

WITH_WINDOWS = {"dflash2", "mixed", "windows", "dspark"}

each_kind = pytest.mark.parametrize("head", KINDS, ids=lambda head: head.proposer)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Heads of two layers that combine three of the target's, and such of a single layer.

    The first draft of `dspark` comes from the newest token, that of `masked` from a mask. In layers
    with a window, blocks are causal, but in those of `windows`, which also has sinks. XPress heads
    score a few tokens of a place, and `unbounded` all of them.
    """
    config = json.loads((Path(TARGET) / "config.json").read_text())
    heads = {
        "dflash": dflash(config, target_layers=[1, 3, 4], seed=2),
        "single": dflash(config, target_layers=[0, 4], layers=1, seed=3),
        "dflash2": dflash2(config, target_layers=[1, 3, 4], seed=4),
        "mixed": dflash(config, target_layers=[1, 3, 4], seed=5),
        "windows": dflash(config, target_layers=[1, 3, 4], seed=6),
        "causal": dflash(config, target_layers=[1, 3, 4], seed=7),
        "dspark": dspark(config, target_layers=[1, 3, 4], block_size=K, seed=2),
        "masked": dspark(
            config, target_layers=[0, 4], layers=1, block_size=K + 1, from_newest=False, seed=3
        ),
    }
    heads["xpress"] = xpress(config, target_layers=[1, 3, 4], block_size=K + 1, seed=8)
    heads["unbounded"] = xpress(
        config, target_layers=[0, 4], layers=1, block_size=K + 3, candidates=0, seed=9
    )
    window = {"sliding_window": WINDOW, "use_sliding_window": True}
    mixed = {"layer_types": ["sliding_attention", "full_attention"], **window}
    heads["mixed"].config |= mixed
    heads["dspark"].config |= mixed
    heads["dflash2"].config |= {"layer_types": ["sliding_attention"] * 2, **window}
    heads["windows"].config["dflash_config"] |= {
        "use_swa": True,
        "swa_window_size": WINDOW,
        "attention_value_scale": 0.7,
    }
    with_sinks(heads["windows"])
    heads["causal"].config["dflash_config"]["causal"] = True
    root = tmp_path_factory.mktemp("heads")
    return {name: Path(made.write(root / name)) for name, made in heads.items()}


@pytest.fixture(scope="module")
def engine(folders: dict[str, Path]) -> Iterator[RecordedEngine]:
    """An engine with all of them, 22 KV blocks and 320 tokens a step."""
    heads = [
        {"name": name, "method": method, "model": str(folders[name]), "num_speculative_tokens": K}
        for name, method in METHODS.items()
    ]
    heads += [
        {**fields, "name": f"{fields['name']}-sampled", "draft_sampling": "probabilistic"}
        for fields in heads
        if fields["name"] in [head.proposer for head in KINDS]
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
    """One prompt takes one step, the other one three.

    In a sequential head the draft before must decide some drafts, in others their windows.
    """
    reference = PlainBlockHead(Path(TARGET), folders[name], K)
    controls = {
        "sequential": PlainBlockHead(Path(TARGET), folders[name], K, sequential=False),
        "windows": PlainBlockHead(Path(TARGET), folders[name], K, windows=False),
    }
    decided = dict.fromkeys(controls, 0)
    for prompt, length in ((prompts[8], 24), (prompts[16], 8)):
        got = engine.run([RecordedRequest(prompt, length, SpecMethod(name, K))])
        assert got.outputs == engine.run([RecordedRequest(prompt, length, PLAIN)]).outputs
        tokens, drafts = prompt + got.outputs[0], got.of(0, name)
        assert len(drafts) >= length - 4
        for count, drafted in drafts.items():
            assert drafted == reference.drafts(tokens[:count])[: len(drafted)]
            for control, without in controls.items():
                decided[control] += drafted != without.drafts(tokens[:count])[: len(drafted)]
    assert (decided["sequential"] > 10) == (name in SEQUENTIAL)
    assert (decided["windows"] > 10) == (name in WITH_WINDOWS)


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


@each_kind
def test_a_smaller_k_gives_the_first_drafts_of_the_block(
    engine: RecordedEngine, prompts: list[Prompt], head: SpecMethod
) -> None:
    want = never_switched(engine, [prompts[8]], head, 30)
    got = engine.run([RecordedRequest(prompts[8], 30, SpecMethod(head.proposer, 2))])
    assert max(len(drafts) for drafts in got.of(0, head.proposer).values()) == 2
    assert same_drafts(got, want, head.proposer) > 20


@each_kind
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


@each_kind
def test_drafts_after_a_hit_on_blocks_filled_while_idle_are_the_same(
    engine: RecordedEngine, prompts: list[Prompt], head: SpecMethod
) -> None:
    want = never_switched(engine, [prompts[16]], head, 20)
    engine.run([RecordedRequest(prompts[16], 1, PLAIN)])
    got = engine.run([RecordedRequest(prompts[16], 20, head)])
    assert got.cached[0] >= 128
    assert got.catchup[head.proposer] >= got.cached[0]
    assert same_drafts(got, want, head.proposer) >= 15


@each_kind
def test_drafts_after_preemption_are_those_of_a_run_without(
    engine: RecordedEngine, prompts: list[Prompt], head: SpecMethod
) -> None:
    some = more_than_fit(prompts)
    want = never_switched(engine, some, head, 40)
    got = engine.run([RecordedRequest(prompt, 40, head) for prompt in some])
    assert got.preemptions > 0
    assert same_drafts(got, want, head.proposer) > 400


@each_kind
def test_sampled_texts_are_those_without_drafts(
    engine: RecordedEngine, prompts: list[Prompt], head: SpecMethod
) -> None:
    """Under a seed. Some requests allow 1,000 tokens only, so that many candidates are banned."""
    allowed = {"allowed_token_ids": list(range(500, 1500))}
    options: list[dict[str, Any]] = [
        {"temperature": 0.8, "seed": 7},
        {"temperature": 1.2, "seed": 8, "top_k": 20},
        {"temperature": 1.0, "seed": 9, **allowed},
        {"temperature": 0.0, **allowed},
    ]
    sampled = SpecMethod(f"{head.proposer}-sampled", K)
    runs = [
        engine.run([RecordedRequest(prompts[8], 40, how, options=each) for each in options])
        for how in (PLAIN, head, sampled)
    ]
    assert runs[0].outputs == runs[1].outputs == runs[2].outputs
    for run, how in zip(runs[1:], (head, sampled), strict=True):
        drafts = [run.of(i, how.proposer) for i in range(len(options))]
        assert all(len(each) > 30 for each in drafts)
        tokens = {token for i in (2, 3) for each in drafts[i].values() for token in each}
        assert tokens <= set(allowed["allowed_token_ids"])


def test_drafts_at_the_end_of_the_context_have_fewer_masks(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    prompt = (prompts[16] + prompts[17])[: CONTEXT - 20]
    got = engine.run([RecordedRequest(prompt, 20, DFLASH)])
    assert got.outputs == engine.run([RecordedRequest(prompt, 20, PLAIN)]).outputs
    lengths = {CONTEXT - count: len(drafts) for count, drafts in got.of(0, "dflash").items()}
    assert min(lengths) < K
    assert all(drafted <= left for left, drafted in lengths.items())


@pytest.mark.parametrize("head", [head for head in KINDS if head in (DFLASH2, XPRESS)])
def test_a_head_that_needs_whole_blocks_drafts_nothing_else(
    engine: RecordedEngine, prompts: list[Prompt], head: SpecMethod
) -> None:
    """The longer prompt reaches the end of the context, and the other one is drafted for beside it.

    A convolution takes the rows of a pass for blocks of K + 1 tokens.
    """
    long_prompt = (prompts[16] + prompts[17])[: CONTEXT - 20]
    want = never_switched(engine, [prompts[8]], head, 30)
    got = engine.run([RecordedRequest(prompt, 20, head) for prompt in (long_prompt, prompts[8])])
    name = head.proposer
    lengths = {CONTEXT - count: len(drafts) for count, drafts in got.of(0, name).items()}
    assert min(left for left, drafted in lengths.items() if drafted) == K
    beside = got.of(1, name)
    assert {count: want.of(0, name)[count][: len(beside[count])] for count in beside} == beside
    assert len(beside) >= 15
