"""EAGLE-3 heads with latent attention, for a target that has it: drafts as in plain PyTorch.

The heads are random, so nearly every draft is rejected and every position is drafted from. vLLM's
kernel of such attention for CPUs without AMX is for states of 512 + 64 numbers, in blocks of 16.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.proposers.eagle_heads import latent_eagle3
from tests.engine_adapter.vllm_engine.architectures.architecture import Architecture
from tests.engine_adapter.vllm_engine.architectures.small_models import write_model
from tests.engine_adapter.vllm_engine.conftest import COMMON
from tests.engine_adapter.vllm_engine.support.draft_comparisons import never_switched, same_drafts
from tests.engine_adapter.vllm_engine.support.hidden_amx import hide_amx
from tests.engine_adapter.vllm_engine.support.live import Prompt
from tests.engine_adapter.vllm_engine.support.plain_head import PlainLatentHead
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine, RecordedRequest
from tests.engine_adapter.vllm_engine.test_latent_attention import DENSE, LATENT

pytestmark = [pytest.mark.engine, pytest.mark.prove]

EAGLE3, OTHER = SpecMethod("eagle3", 4), SpecMethod("other", 4)
HEADS = {EAGLE3: [1, 2, 3], OTHER: [1, 3]}
"""Head -> the layers of the target that it reads."""

NGRAM = SpecMethod("ngram", 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target of DeepSeek-V3's architecture, and its heads beside it."""
    root = tmp_path_factory.mktemp("latent")
    fields = {**LATENT, **DENSE, "num_hidden_layers": 4, "first_k_dense_replace": 4}
    write_model(Architecture("deepseek_v3", "deepseek_v3", fields), root / "target")
    config = json.loads((root / "target" / "config.json").read_text())
    for seed, (head, layers) in enumerate(HEADS.items()):
        heads = latent_eagle3(config, aux_layers=layers, seed=seed)
        heads.config["model_type"] = "kimi_k2" if head is OTHER else "deepseek_v2"
        heads.write(root / head.proposer)
    return root


@pytest.fixture(scope="module")
def engine(folder: Path) -> Iterator[RecordedEngine]:
    heads = [
        {"name": head.proposer, "method": "eagle3", "model": str(folder / head.proposer)}
        for head in HEADS
    ]
    arguments = {
        "block_size": 16,
        "max_num_batched_tokens": 200,
        "long_prefill_token_threshold": 100,
        "max_num_seqs": 8,
        "num_gpu_blocks_override": 500,
    }
    specs = parse_specs([*heads, {"name": "ngram"}])
    config = EngineConfig(str(folder / "target"), "latent", specs, 5, COMMON | arguments)
    started = RecordedEngine(config, hide_amx)
    yield started
    started.stop()


@pytest.mark.parametrize("head", HEADS, ids=lambda head: head.proposer)
def test_a_head_drafts_as_the_plain_implementation_does(
    engine: RecordedEngine, folder: Path, prompts: list[Prompt], head: SpecMethod
) -> None:
    """One prompt takes one step, the other one three."""
    reference = PlainLatentHead(folder / "target", folder / head.proposer)
    for prompt, length in ((prompts[8], 24), (prompts[16], 8)):
        got = engine.run([RecordedRequest(prompt, length, head)])
        assert got.outputs == engine.run([RecordedRequest(prompt, length, PLAIN)]).outputs
        tokens, drafts = prompt + got.outputs[0], got.of(0, head.proposer)
        assert len(drafts) >= length - 3
        for count, drafted in drafts.items():
            assert drafted == reference.drafts(tokens[:count], len(drafted))


def test_drafts_after_a_switch_are_those_of_a_run_without(
    engine: RecordedEngine, prompts: list[Prompt]
) -> None:
    some = prompts[8:11]
    want = never_switched(engine, some, EAGLE3, 60)
    switches = {0: PLAIN, 15: EAGLE3, 25: NGRAM, 35: EAGLE3, 36: OTHER, 45: EAGLE3}
    got = engine.run([RecordedRequest(prompt, 60, PLAIN) for prompt in some], switches)
    assert same_drafts(got, want, EAGLE3.proposer) > 60
    assert got.catchup[EAGLE3.proposer] > sum(map(len, some))
