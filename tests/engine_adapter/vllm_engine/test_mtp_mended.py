"""MTP layers of targets that stock vLLM mistakes on a CPU: exact texts, drafts as without switches.

vLLM's kernels of gated delta networks need bfloat16 on a CPU: here they are PyTorch's, in float32.
Latent attention has kernels in bfloat16 for CPUs with AMX: here it has those of other CPUs. The
router of LongCat's experts needs a GPU: here it is PyTorch's.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.cases import proved_beyond
from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.longcat_target import for_transformers
from tests.engine_adapter.proposers.mtp_targets import TARGETS, own_bytes, write_target
from tests.engine_adapter.vllm_engine.conftest import COMMON, TARGET
from tests.engine_adapter.vllm_engine.support.draft_comparisons import (
    more_than_fit,
    never_switched,
    same_drafts,
)
from tests.engine_adapter.vllm_engine.support.hidden_amx import (
    hide_amx,
    hide_amx_and_mend_rotary_embeddings,
)
from tests.engine_adapter.vllm_engine.support.live import TIE, Prompt
from tests.engine_adapter.vllm_engine.support.plain_gated_delta import compute_in_any_dtype
from tests.engine_adapter.vllm_engine.support.plain_model import PlainModel
from tests.engine_adapter.vllm_engine.support.plain_zero_experts import (
    route_on_cpu,
    route_on_cpu_and_mend_rotary_embeddings,
)
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine, RecordedRequest
from tests.engine_adapter.vllm_engine.support.stock_drafts import run_stock

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

K, LENGTH = 3, 48
MTP, NGRAM, CASCADE = SpecMethod("mtp", K), SpecMethod("ngram", 4), SpecMethod("cascade", 4)


@dataclass(frozen=True)
class Family:
    """A family of targets.

    Attributes:
        prepare: is called in the engine's process before it starts.
        prepare_stock: the same of stock vLLM, with what Specgate mends.
        blocks: of KV, fewer than the prompts of a test need.
        seed: of the target's weights. With some, two tokens are nearly equally likely.
        for_transformers: makes a checkpoint that transformers reads.
    """

    prepare: Callable[[], None]
    prepare_stock: Callable[[], None]
    blocks: int
    seed: int = 3
    for_transformers: Callable[[Heads], Heads] = lambda target: target


def do_nothing() -> None:
    """For a family that is compared as it is."""


def mend_recurrent_layers() -> None:
    """As `patch_recurrent_layers`, whose module imports vLLM."""
    from engine_adapter.vllm_engine.patches.recurrent_layers import patch_recurrent_layers

    patch_recurrent_layers()


LATENT = Family(hide_amx, hide_amx_and_mend_rotary_embeddings, blocks=120)
DELTA = Family(compute_in_any_dtype, compute_in_any_dtype, blocks=60)
FAMILIES = {
    "qwen3_5": DELTA,
    "qwen3_5_moe": DELTA,
    "qwen3_next": DELTA,
    "nemotron_h": Family(do_nothing, mend_recurrent_layers, blocks=60, seed=5),
    "deepseek_v3": LATENT,
    "glm4_moe_lite": LATENT,
    "longcat": Family(
        route_on_cpu,
        route_on_cpu_and_mend_rotary_embeddings,
        blocks=120,
        for_transformers=for_transformers,
    ),
}


@dataclass(frozen=True)
class Case:
    """An engine on a target with an MTP layer, and the target in transformers."""

    family: Family
    folder: Path
    engine: RecordedEngine
    target: PlainModel


@pytest.fixture(
    scope="module",
    params=proved_beyond(["qwen3_5"], FAMILIES),
)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    family, root = FAMILIES[request.param], tmp_path_factory.mktemp("mtp")
    target = TARGETS[request.param](seed=family.seed)
    folder = Path(write_target(target, root / "target", Path(TARGET)))
    plain_folder = write_target(family.for_transformers(target), root / "plain", Path(TARGET))
    specs = parse_specs(
        [
            {"name": "mtp", "num_speculative_tokens": K},
            {"name": "ngram"},
            {"name": "cascade", "members": ["ngram", "mtp"]},
        ]
    )
    arguments = {
        "num_gpu_blocks_override": family.blocks,
        "max_num_batched_tokens": 320,
        "max_num_seqs": 16,
    }
    config = EngineConfig(str(folder), "mtp", specs, None, COMMON | arguments)
    engine = RecordedEngine(config, family.prepare)
    yield Case(family, folder, engine, PlainModel(plain_folder))
    engine.stop()


@pytest.mark.prove
async def test_drafts_and_text_are_stock_vllms(case: Case, prompts: list[Prompt]) -> None:
    some = [prompts[8], prompts[9], prompts[16]]
    speculation = {"method": "mtp", "num_speculative_tokens": K}
    stock = run_stock(
        str(case.folder), speculation, some, LENGTH, COMMON, prepare=case.family.prepare_stock
    )
    got = case.engine.run([RecordedRequest(prompt, LENGTH, MTP) for prompt in some])
    compared = accepted = 0
    for i, (prompt, want) in enumerate(zip(some, stock, strict=True)):
        # Stock vLLM's last steps have rows with fewer drafts than k, whose states it mistakes.
        sure = LENGTH - K - 1
        assert got.outputs[i][:sure] == want.output[:sure]
        for n, drafts in got.of(i, "mtp").items():
            if n in want.drafts and n < len(prompt) + sure:
                assert drafts == want.drafts[n]
                compared += 1
        accepted += LENGTH - 1 - len(want.drafts)
    assert compared > LENGTH
    assert accepted > LENGTH // 4


@pytest.mark.prove
async def test_texts_are_exact_under_switches_and_preemption(
    case: Case, prompts: list[Prompt]
) -> None:
    some = more_than_fit(prompts)
    want = never_switched(case.engine, some, MTP, 40)
    methods = [PLAIN, MTP, NGRAM, CASCADE]
    switches = {step: methods[step // 3 % 4] for step in range(0, 900, 3)}
    requests = [RecordedRequest(prompt, 40, PLAIN, at=i) for i, prompt in enumerate(some)]
    got = case.engine.run(requests, switches)
    assert got.preemptions > 0
    assert same_drafts(got, want, "mtp") > 50
    assert got.catchup["mtp"] > 2 * len(some[0]), "the first prompts were read while it was idle"
    for prompt, output in zip(some, got.outputs, strict=True):
        assert await case.target.gap(prompt, output) < TIE


async def test_only_its_own_layer_is_counted_as_its_weights(case: Case) -> None:
    weights, kv = case.engine.memory()["mtp"]
    assert weights == own_bytes(case.folder)
    assert kv > 0
