"""DSpark heads on a real engine: drafts as in plain PyTorch, and as in a run without switches.

The heads are random, so nearly every draft is rejected and every position is drafted from. Stock
vLLM cannot be asked: it has DSpark in its V2 model runner alone, which needs a GPU.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.proposers.dspark_heads import dspark
from tests.engine_adapter.vllm_engine.conftest import COMMON, TARGET
from tests.engine_adapter.vllm_engine.support.draft_comparisons import (
    more_than_fit,
    never_switched,
    same_drafts,
)
from tests.engine_adapter.vllm_engine.support.live import Prompt
from tests.engine_adapter.vllm_engine.support.plain_block_head import PlainBlockHead
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine, RecordedRequest

pytestmark = [pytest.mark.engine, pytest.mark.prove]

K = 6
DSPARK, MASKED = SpecMethod("dspark", K), SpecMethod("masked", K)
NGRAM, CASCADE = SpecMethod("ngram", 4), SpecMethod("cascade", K)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A head whose first draft comes from the newest token, and one where it comes from a mask."""
    config = json.loads((Path(TARGET) / "config.json").read_text())
    heads = {
        "dspark": dspark(config, target_layers=[1, 3, 4], block_size=K, seed=2),
        "masked": dspark(
            config, target_layers=[0, 4], layers=1, block_size=K + 1, from_newest=False, seed=3
        ),
    }
    root = tmp_path_factory.mktemp("heads")
    return {name: Path(made.write(root / name)) for name, made in heads.items()}


@pytest.fixture(scope="module")
def engine(folders: dict[str, Path]) -> Iterator[RecordedEngine]:
    """An engine with both and a cascade, 22 KV blocks and 320 tokens a step."""
    proposers = [
        {"name": name, "method": "dspark", "model": str(folder), "num_speculative_tokens": K}
        for name, folder in folders.items()
    ]
    cascade = {"name": "cascade", "members": ["ngram", "dspark"]}
    arguments = {"num_gpu_blocks_override": 22, "max_num_batched_tokens": 320, "max_num_seqs": 16}
    specs = parse_specs([*proposers, {"name": "ngram"}, cascade])
    started = RecordedEngine(EngineConfig(TARGET, "demo", specs, None, COMMON | arguments))
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def empty_prefix_cache(engine: RecordedEngine) -> None:
    """Each test begins with an empty prefix cache."""
    engine.reset_prefix_cache()


@pytest.mark.parametrize("method", [DSPARK, MASKED], ids=lambda method: method.proposer)
def test_it_drafts_as_the_plain_implementation_does(
    engine: RecordedEngine, folders: dict[str, Path], prompts: list[Prompt], method: SpecMethod
) -> None:
    """One prompt takes one step, the other one three. The Markov head must decide some drafts."""
    reference = PlainBlockHead(Path(TARGET), folders[method.proposer], K)
    without = PlainBlockHead(Path(TARGET), folders[method.proposer], K, markov=False)
    decided = 0
    for prompt, length in ((prompts[8], 24), (prompts[16], 8)):
        got = engine.run([RecordedRequest(prompt, length, method)])
        assert got.outputs == engine.run([RecordedRequest(prompt, length, PLAIN)]).outputs
        tokens, drafts = prompt + got.outputs[0], got.of(0, method.proposer)
        assert len(drafts) >= length - 4
        for count, drafted in drafts.items():
            assert drafted == reference.drafts(tokens[:count])[: len(drafted)]
            decided += drafted != without.drafts(tokens[:count])[: len(drafted)]
    assert decided > 10


def test_a_smaller_k_gives_the_first_drafts_of_the_block(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    want = never_switched(engine, [prompts[8]], DSPARK, 30)
    got = engine.run([RecordedRequest(prompts[8], 30, SpecMethod("dspark", 2))])
    assert max(len(drafts) for drafts in got.of(0, "dspark").values()) == 2
    assert same_drafts(got, want, "dspark") > 20


def test_drafts_after_a_switch_are_those_of_a_run_without(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    some = prompts[8:11]
    want = never_switched(engine, some, DSPARK, 60)
    switches = {0: PLAIN, 15: DSPARK, 25: NGRAM, 35: DSPARK, 36: CASCADE, 45: DSPARK}
    got = engine.run([RecordedRequest(prompt, 60, PLAIN) for prompt in some], switches)
    assert same_drafts(got, want, "dspark") > 60
    assert got.catchup["dspark"] > sum(map(len, some))


def test_drafts_after_a_hit_on_blocks_filled_while_idle_are_the_same(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    want = never_switched(engine, [prompts[16]], DSPARK, 20)
    engine.run([RecordedRequest(prompts[16], 1, PLAIN)])
    got = engine.run([RecordedRequest(prompts[16], 20, DSPARK)])
    assert got.cached[0] >= 128
    assert got.catchup["dspark"] >= got.cached[0]
    assert same_drafts(got, want, "dspark") >= 15


def test_drafts_after_preemption_are_those_of_a_run_without(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    some = more_than_fit(prompts)
    want = never_switched(engine, some, DSPARK, 40)
    got = engine.run([RecordedRequest(prompt, 40, DSPARK) for prompt in some])
    assert got.preemptions > 0
    assert same_drafts(got, want, "dspark") > 400
