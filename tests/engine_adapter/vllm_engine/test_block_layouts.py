"""Heads that draft blocks in the format of `speculators` on a real engine.

Each is served in its authors' layout too. It is random; those of DFlash and DSpark draft a part of
the vocabulary. In the format, the DFlash head has an embedding of its own, and the others use the
target's. Each has layers with a window; those of DFlash2 are not causal.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import PLAIN, SpecMethod
from tests.engine_adapter.proposers.block_layouts import as_speculators, with_fewer_tokens
from tests.engine_adapter.proposers.dflash2_heads import SCALES, dflash2
from tests.engine_adapter.proposers.dflash_heads import dflash
from tests.engine_adapter.proposers.dspark_heads import dspark
from tests.engine_adapter.vllm_engine.conftest import COMMON, TARGET
from tests.engine_adapter.vllm_engine.support.live import Prompt
from tests.engine_adapter.vllm_engine.support.plain_block_head import PlainBlockHead
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine, RecordedRequest

pytestmark = [pytest.mark.engine, pytest.mark.prove]

K, LENGTH, DRAFTED = 6, 24, 512
METHODS = {"dflash": "dflash", "dflash2": "dflash", "dspark": "dspark"}
"""Algorithm of the format -> method."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A head of each algorithm, and the same in the format of `speculators` beside it."""
    config = json.loads((Path(TARGET) / "config.json").read_text())
    embedding = load_file(Path(TARGET) / "model.safetensors")["model.embed_tokens.weight"]
    heads = {
        "dflash": dflash(config, target_layers=[1, 3, 4], block_size=K + 1, seed=2),
        "dflash2": dflash2(config, target_layers=[1, 3, 4], block_size=K + 1, seed=4),
        "dspark": dspark(config, target_layers=[1, 3, 4], block_size=K, seed=2),
    }
    window = {"sliding_window": 16, "use_sliding_window": True}
    for name in ("dflash", "dspark"):
        heads[name].config |= {"layer_types": ["sliding_attention", "full_attention"], **window}
    heads["dflash2"].config |= {"layer_types": ["sliding_attention"] * 2, **window}
    heads["dflash2"].config["dflash_config"]["causal"] = False
    for name in SCALES:  # the format lacks these fields
        del heads["dflash2"].config["dflash_config"][name]
    root = tmp_path_factory.mktemp("heads")
    for algorithm, whole_head in heads.items():
        head = whole_head if algorithm == "dflash2" else with_fewer_tokens(whole_head, DRAFTED)
        head.tensors["embed_tokens.weight"] = embedding.clone()
        head.write(root / algorithm)
        speculator = as_speculators(
            head,
            algorithm,
            own_embedding=algorithm == "dflash",
            causal_windows=algorithm != "dflash2",
        )
        speculator.write(root / f"{algorithm}-speculators")
    return root


@pytest.fixture(scope="module")
def engine(root: Path) -> Iterator[RecordedEngine]:
    """An engine with all of them."""
    proposers = [
        {"name": name, "method": method, "model": str(root / name), "num_speculative_tokens": K}
        for algorithm, method in METHODS.items()
        for name in (algorithm, f"{algorithm}-speculators")
    ]
    arguments = {"num_gpu_blocks_override": 22, "max_num_batched_tokens": 320}
    specs = parse_specs(proposers)
    started = RecordedEngine(EngineConfig(TARGET, "demo", specs, None, COMMON | arguments))
    yield started
    started.stop()


@pytest.mark.parametrize("algorithm", METHODS)
def test_it_drafts_what_the_head_in_the_layout_of_its_authors_drafts(
    engine: RecordedEngine, root: Path, prompts: list[Prompt], algorithm: str
) -> None:
    """In a short text, most drafts depend on tokens behind them in the block."""
    reference = PlainBlockHead(Path(TARGET), root / algorithm, K)
    causal = PlainBlockHead(Path(TARGET), root / algorithm, K, causal=True)
    named, decided = f"{algorithm}-speculators", 0
    for prompt in (prompts[8], prompts[8][:12]):
        got, want, plain = (
            engine.run([RecordedRequest(prompt, LENGTH, method)])
            for method in (SpecMethod(named, K), SpecMethod(algorithm, K), PLAIN)
        )
        assert got.outputs == want.outputs == plain.outputs
        drafts = got.of(0, named)
        assert len(drafts) >= LENGTH - 4
        tokens = prompt + got.outputs[0]
        for count, drafted in drafts.items():
            assert drafted == reference.drafts(tokens[:count])[: len(drafted)]
            decided += drafted != causal.drafts(tokens[:count])[: len(drafted)]
        common = drafts.keys() & want.of(0, algorithm).keys()
        assert len(common) >= LENGTH - 4
        assert all(drafts[count] == want.of(0, algorithm)[count] for count in common)
    assert decided > 3
