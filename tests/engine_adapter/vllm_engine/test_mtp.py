"""MTP layers on a real engine: stock vLLM's drafts and text, and drafts as without switches.

The targets are random, but a part of their drafts is accepted. So drafts are made after accepted
drafts, after rejected ones, and at nearly every position.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from engine_adapter.proposers import ngram
from engine_adapter.proposers.methods import parse_spec, parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.cases import proved_beyond
from tests.engine_adapter.proposers.batches import batch
from tests.engine_adapter.proposers.eagle_heads import eagle
from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.mtp_targets import HEAD, TARGETS, own_bytes, write_target
from tests.engine_adapter.vllm_engine.conftest import COMMON, TARGET
from tests.engine_adapter.vllm_engine.support.draft_comparisons import (
    more_than_fit,
    never_switched,
    same_drafts,
)
from tests.engine_adapter.vllm_engine.support.live import Prompt
from tests.engine_adapter.vllm_engine.support.recorded import (
    RecordedEngine,
    RecordedRequest,
    RecordedRun,
)
from tests.engine_adapter.vllm_engine.support.stock_drafts import run_stock

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

K = 3
MTP, NGRAM = SpecMethod("mtp", K), SpecMethod("ngram", 4)
EAGLE, CASCADE = SpecMethod("eagle", K), SpecMethod("cascade", 4)
BLOCKS = {"exaone_moe": 40, "mimo_v2_flash": 40, "mimo_v2": 40, "step3_5": 40}
"""Of KV, where layers are in several groups."""


def keep_layer_types() -> None:
    """Makes vLLM keep the attention of Step 3.5's MTP layers, as releases after 0.32 do."""
    from engine_adapter.vllm_engine import compat

    if not compat.has_defect("layer_types"):
        return
    from vllm.transformers_utils.configs import step3p5

    config_class: Any = step3p5.Step3p5Config
    original = config_class.__init__

    def init(self: Any, **fields: Any) -> None:
        original(self, **fields)
        self.layer_types = fields.get("layer_types")

    config_class.__init__ = init


MENDED = {"step3_5": keep_layer_types}
"""What stock vLLM needs to serve a family, where Specgate mends a defect."""

OTHERS: list[dict[str, Any]] = [{"name": "ngram"}, {"name": "cascade", "members": ["ngram", "mtp"]}]


@dataclass(frozen=True)
class Family:
    """An engine on a target with MTP layers, and what stock vLLM does with the same target."""

    folder: Path
    engine: RecordedEngine

    def run(self, prompts: list[Prompt], length: int, method: SpecMethod) -> RecordedRun:
        self.engine.reset_prefix_cache()
        return self.engine.run([RecordedRequest(prompt, length, method) for prompt in prompts])


def start(root: Path, name: str) -> Family:
    """An engine with few KV blocks and 320 tokens a step, beside an EAGLE head on MiMo."""
    target = TARGETS[name](seed=3)
    folder = Path(write_target(target, root / name, Path(TARGET)))
    proposers = [{"name": "mtp", "num_speculative_tokens": K}, *OTHERS]
    if name == "mimo":
        head = eagle(HEAD, seed=1).write(root / "eagle")
        proposers.append({"name": "eagle", "model": head})
    arguments = {
        "num_gpu_blocks_override": BLOCKS.get(name, 22),
        "max_num_batched_tokens": 320,
        "max_num_seqs": 16,
    }
    layer_alone = Heads(
        target.config,
        {name: tensor for name, tensor in target.tensors.items() if is_of_mtp(name)},
    )
    fields = {
        "method": "mtp",
        "num_speculative_tokens": K,
        "model": layer_alone.write(root / "own"),
    }
    proposers.append({"name": "own", **fields})
    specs = parse_specs(proposers)
    config = EngineConfig(str(folder), name, specs, None, COMMON | arguments)
    return Family(folder, RecordedEngine(config))


def is_of_mtp(name: str) -> bool:
    """Whether a checkpoint of an MTP layer alone has this tensor: both ends, and the layer's."""
    return any(part in name for part in ("mtp", "layers.2.", "embed_tokens", "lm_head"))


@pytest.fixture(
    scope="module",
    params=proved_beyond(
        ["mimo"],
        ["mimo", "ernie", "glm4_moe", "exaone_moe", "hy_v3", "mimo_v2_flash", "mimo_v2", "step3_5"],
    ),
)
def family(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Family]:
    """An engine on each target in turn."""
    started = start(tmp_path_factory.mktemp("mtp"), request.param)
    yield started
    started.engine.stop()


@pytest.mark.prove
async def test_drafts_and_text_are_stock_vllms(family: Family, prompts: list[Prompt]) -> None:
    some, length = [prompts[8], prompts[9], prompts[16]], 48
    speculation = {"method": "mtp", "num_speculative_tokens": K}
    mend = MENDED.get(family.folder.name)
    stock = run_stock(str(family.folder), speculation, some, length, COMMON, mend)
    accepted = 0
    for prompt, want in zip(some, stock, strict=True):
        got, plain = (family.run([prompt], length, method) for method in (MTP, PLAIN))
        assert got.outputs[0] == want.output == plain.outputs[0]
        drafts = {n: drafted for n, drafted in got.of(0, "mtp").items() if len(drafted) == K}
        assert drafts == {n: want.drafts[n] for n in drafts}
        assert set(want.drafts) - set(drafts) <= {len(prompt) + length - i for i in range(1, K + 1)}
        accepted += length - 1 - len(want.drafts)
    assert accepted > length // 4


async def test_drafts_after_a_switch_are_those_of_a_run_without(
    family: Family, prompts: list[Prompt]
) -> None:
    some = prompts[8:11]
    want = never_switched(family.engine, some, MTP, 60)
    switches = {0: PLAIN, 15: MTP, 25: NGRAM, 35: MTP, 36: PLAIN, 42: CASCADE, 46: MTP}
    got = family.engine.run([RecordedRequest(prompt, 60, PLAIN) for prompt in some], switches)
    assert same_drafts(got, want, "mtp") > 30
    assert got.catchup["mtp"] > sum(map(len, some))


async def test_drafts_after_a_hit_on_blocks_filled_while_idle_are_the_same(
    family: Family, prompts: list[Prompt]
) -> None:
    prompt = prompts[16]
    want = never_switched(family.engine, [prompt], MTP, 20)
    family.engine.run([RecordedRequest(prompt, 1, PLAIN)])
    got = family.engine.run([RecordedRequest(prompt, 20, MTP)])
    assert got.cached[0] >= 128
    assert got.catchup["mtp"] >= got.cached[0]
    assert same_drafts(got, want, "mtp") >= 8


@pytest.mark.prove
async def test_drafts_after_preemption_are_those_of_a_run_without(
    family: Family, prompts: list[Prompt]
) -> None:
    some = more_than_fit(prompts)
    want = never_switched(family.engine, some, MTP, 40)
    got = family.run(some, 40, MTP)
    assert got.preemptions > 0
    assert same_drafts(got, want, "mtp") > 300


async def test_a_cascade_drafts_with_it_where_the_lookup_has_none(
    family: Family, prompts: list[Prompt]
) -> None:
    prompt = prompts[9]
    want = never_switched(family.engine, [prompt], MTP, 40)
    got = family.run([prompt], 40, CASCADE)
    assert got.outputs == want.outputs
    tokens, alone = prompt + got.outputs[0], want.of(0, "mtp")
    lookup = ngram.METHOD.create(parse_spec({"name": "ngram"}), None)  # type: ignore[arg-type]
    compared = 0
    for n, drafts in got.of(0, "cascade").items():
        if n in alone and not lookup.propose(batch({"r": tokens[:n]}, k=4)).tokens[0]:
            assert drafts == alone[n][: len(drafts)]
            compared += 1
    assert compared > 8


async def test_a_checkpoint_of_the_layer_alone_drafts_the_same(
    family: Family, prompts: list[Prompt]
) -> None:
    some = prompts[8:10]
    want, got = family.run(some, 30, MTP), family.run(some, 30, SpecMethod("own", K))
    assert got.outputs == want.outputs
    assert [got.of(i, "own") for i in range(2)] == [want.of(i, "mtp") for i in range(2)]
    assert family.engine.memory()["own"][0] == family.engine.memory()["mtp"][0]


async def test_only_its_own_layer_is_counted_as_its_weights(family: Family) -> None:
    weights, kv = family.engine.memory()["mtp"]
    assert weights == own_bytes(family.folder)
    assert kv > 0


async def test_it_drafts_beside_an_eagle_head_in_one_batch(
    family: Family, prompts: list[Prompt]
) -> None:
    if "eagle" not in family.engine.memory():
        pytest.skip("the EAGLE head is for MiMo's sizes")
    methods = [MTP, EAGLE, MTP, EAGLE]
    some = prompts[8:12]
    family.engine.reset_prefix_cache()
    got = family.engine.run(
        [RecordedRequest(p, 40, method) for p, method in zip(some, methods, strict=True)]
    )
    for i, method in enumerate(methods):
        assert {name for name, _ in got.drafts[i].values()} == {method.proposer}
        want = never_switched(family.engine, [some[i]], method, 40)
        single = RecordedRun([got.drafts[i]], [got.outputs[i]], [0], 0, {})
        assert same_drafts(single, want, method.proposer) > 20
