"""An assistant of Gemma 4 on a real engine: its drafts and the text are stock vLLM's.

It reads the target's KV, in layers with a window and without. So its drafts do not depend on which
proposer drafted before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.cases import proved_beyond
from tests.engine_adapter.proposers.gemma4_assistants import CENTROIDS, assistant, gemma4_target
from tests.engine_adapter.proposers.mtp_targets import write_target
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

K, BLOCKS = 3, 24
MTP, NGRAM, CASCADE = SpecMethod("mtp", K), SpecMethod("ngram", 4), SpecMethod("cascade", 4)


@dataclass(frozen=True)
class Case:
    """An engine on a target of Gemma 4 with assistants, and their folder."""

    folder: Path
    engine: RecordedEngine

    def run(self, prompts: list[Prompt], length: int, method: SpecMethod) -> RecordedRun:
        self.engine.reset_prefix_cache()
        return self.engine.run([RecordedRequest(prompt, length, method) for prompt in prompts])


@pytest.fixture(
    scope="module", params=proved_beyond([2], [0, 2]), ids=lambda num_shared: f"{num_shared}_shared"
)
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Case]:
    """An engine on a target of which some layers read the KV of another one."""
    folder = tmp_path_factory.mktemp("gemma4")
    target = gemma4_target(num_shared=request.param, seed=3)
    write_target(target, folder / "target", Path(TARGET))
    usual = {"method": "mtp", "num_speculative_tokens": K}
    models = {
        "mtp": assistant(target, seed=4),
        "ordered": assistant(target, centroids=CENTROIDS, seed=4),
        "few": assistant(target, centroids=2, seed=4),
    }
    proposers: list[dict[str, Any]] = [
        {"name": name, **usual, "model": heads.write(folder / name)}
        for name, heads in models.items()
    ]
    proposers += [
        {"name": "gated", **usual, "model": str(folder / "mtp"), "min_confidence": 0.3},
        {"name": "ngram"},
        {"name": "cascade", "members": ["ngram", "mtp"]},
    ]
    arguments = {
        "num_gpu_blocks_override": BLOCKS,
        "max_num_batched_tokens": 320,
        "max_num_seqs": 16,
    }
    specs = parse_specs(proposers)
    engine = RecordedEngine(
        EngineConfig(str(folder / "target"), "gemma4", specs, None, COMMON | arguments)
    )
    yield Case(folder, engine)
    engine.stop()


@pytest.mark.prove
async def test_drafts_and_text_are_stock_vllms(case: Case, prompts: list[Prompt]) -> None:
    some, length = [prompts[8], prompts[9], prompts[16]], 48
    speculation = {
        "method": "mtp",
        "model": str(case.folder / "mtp"),
        "num_speculative_tokens": K,
    }
    stock = run_stock(str(case.folder / "target"), speculation, some, length, COMMON)
    got, plain = case.run(some, length, MTP), case.run(some, length, PLAIN)
    accepted = 0
    for i, (prompt, want) in enumerate(zip(some, stock, strict=True)):
        assert got.outputs[i] == want.output == plain.outputs[i]
        drafts = {n: drafted for n, drafted in got.of(i, "mtp").items() if len(drafted) == K}
        assert drafts == {n: want.drafts[n] for n in drafts}
        assert set(want.drafts) - set(drafts) <= {len(prompt) + length - n for n in range(1, K + 1)}
        accepted += length - 1 - len(want.drafts)
    assert accepted > length // 4


async def test_drafts_after_a_switch_are_those_of_a_run_without(
    case: Case, prompts: list[Prompt]
) -> None:
    some = prompts[8:11]
    want = never_switched(case.engine, some, MTP, 60)
    switches = {0: PLAIN, 15: MTP, 25: NGRAM, 35: MTP, 36: PLAIN, 42: CASCADE, 46: MTP}
    got = case.engine.run([RecordedRequest(prompt, 60, PLAIN) for prompt in some], switches)
    assert same_drafts(got, want, "mtp") > 20
    assert not got.catchup.get("mtp")


async def test_drafts_after_a_prefix_hit_are_the_same(case: Case, prompts: list[Prompt]) -> None:
    prompt = prompts[16]
    want = never_switched(case.engine, [prompt], MTP, 20)
    case.engine.run([RecordedRequest(prompt, 1, PLAIN)])
    got = case.engine.run([RecordedRequest(prompt, 20, MTP)])
    assert got.cached[0] >= 128
    assert same_drafts(got, want, "mtp") >= 5


@pytest.mark.prove
async def test_drafts_after_preemption_are_those_of_a_run_without(
    case: Case, prompts: list[Prompt]
) -> None:
    some = more_than_fit(prompts)
    want = never_switched(case.engine, some, MTP, 40)
    got = case.run(some, 40, MTP)
    assert got.preemptions > 0
    assert same_drafts(got, want, "mtp") > 150


async def test_parts_of_the_vocabulary_limit_the_drafts(case: Case, prompts: list[Prompt]) -> None:
    """With all parts its drafts are those of an assistant without parts."""
    some = prompts[8:11]
    whole, ordered, few = (
        case.run(some, 40, SpecMethod(name, K)) for name in ("mtp", "ordered", "few")
    )
    assert whole.outputs == ordered.outputs == few.outputs
    for i in range(len(some)):
        assert whole.of(i, "mtp") == ordered.of(i, "ordered")
    assert any(whole.of(i, "mtp") != few.of(i, "few") for i in range(len(some)))


async def test_a_gate_ends_its_drafts(case: Case, prompts: list[Prompt]) -> None:
    some = prompts[8:11]
    want, got = case.run(some, 40, MTP), case.run(some, 40, SpecMethod("gated", K))
    assert got.outputs == want.outputs
    lengths = set()
    for i in range(len(some)):
        whole = want.of(i, "mtp")
        for n, drafts in got.of(i, "gated").items():
            if n in whole:
                assert drafts == whole[n][: len(drafts)]
                lengths.add(len(drafts))
    assert len(lengths) > 1


async def test_it_takes_no_kv(case: Case) -> None:
    tensors = load_file(case.folder / "mtp" / "model.safetensors")
    stored = sum(tensor.nbytes for name, tensor in tensors.items() if "layer_scalar" not in name)
    assert case.engine.memory()["mtp"] == (stored, 0)
