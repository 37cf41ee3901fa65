"""The published layouts of heads on a real engine: each drafts what the demo's head drafts.

The demo's heads are written again in each layout (`published`), and served beside the demo's own.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from demo import model_path
from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import SpecMethod
from tests.engine_adapter.proposers.published import LAYOUTS, write_shards
from tests.engine_adapter.vllm_engine.conftest import COMMON, TARGET
from tests.engine_adapter.vllm_engine.support.live import Prompt
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine, RecordedRequest

pytestmark = [pytest.mark.engine, pytest.mark.prove]

K, LENGTH = 4, 40
SHARDED = ("safeailab-eagle", "specforge-eagle3")
"""The layouts that are written in two shards: one of pickles, one of safetensors."""


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RecordedEngine]:
    """An engine with the demo's heads, and each of them once more in every layout."""
    root = tmp_path_factory.mktemp("layouts")
    proposers = []
    for layout, (demo, method, make) in LAYOUTS.items():
        heads = make()
        sharded = layout in SHARDED
        model = write_shards(heads, root / layout) if sharded else heads.write(root / layout)
        proposers.append(fields(layout, method, model))
        if all(one["name"] != demo for one in proposers):
            proposers.append(fields(demo, method, str(model_path(demo))))
    config = EngineConfig(
        TARGET, "demo", parse_specs(proposers), None, COMMON | {"num_gpu_blocks_override": 40}
    )
    started = RecordedEngine(config)
    yield started
    started.stop()


def fields(name: str, method: str, model: str) -> dict[str, object]:
    return {"name": name, "method": method, "model": model, "num_speculative_tokens": K}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_head_in_a_published_layout_drafts_what_the_demos_head_drafts(
    engine: RecordedEngine, prompts: list[Prompt], layout: str
) -> None:
    demo = LAYOUTS[layout][0]
    drafted = 0
    for prompt in prompts[:3]:
        want, got = (
            engine.run([RecordedRequest(prompt, LENGTH, SpecMethod(name, K))])
            for name in (demo, layout)
        )
        assert got.outputs == want.outputs
        assert got.of(0, layout) == want.of(0, demo)
        drafted += sum(map(len, got.of(0, layout).values()))
    assert drafted > 3 * LENGTH / 2


def test_every_file_format_is_among_the_layouts(tmp_path: Path) -> None:
    suffixes = {Path(make().file).suffix for _, _, make in LAYOUTS.values()}
    assert suffixes == {".bin", ".pt", ".safetensors"}
