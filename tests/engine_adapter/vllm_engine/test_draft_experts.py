"""A draft model with experts under a target without: its drafts are the model's own text."""

from pathlib import Path

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import EngineConfig
from engine_adapter.seam.types import SpecMethod
from tests.engine_adapter.vllm_engine.architectures.catalog import SERVED
from tests.engine_adapter.vllm_engine.architectures.checks import make_prompts
from tests.engine_adapter.vllm_engine.architectures.small_models import write_model
from tests.engine_adapter.vllm_engine.conftest import COMMON
from tests.engine_adapter.vllm_engine.support.plain_model import PlainModel
from tests.engine_adapter.vllm_engine.support.recorded import RecordedEngine, RecordedRequest

pytestmark = [pytest.mark.engine, pytest.mark.prove, pytest.mark.asyncio(loop_scope="session")]

DENSE = SERVED[0]
BY_NAME = {architecture.name: architecture for architecture in SERVED}
K, LENGTH = 3, 12


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe", "glm4_moe", "gpt_oss"])
async def test_drafts_are_the_models_own_text(name: str, tmp_path: Path) -> None:
    target, draft = write_model(DENSE, tmp_path / "t"), write_model(BY_NAME[name], tmp_path / "d")
    fields = {"name": "draft", "method": "draft_model", "model": draft}
    specs = parse_specs([{**fields, "num_speculative_tokens": K}])
    engine = RecordedEngine(EngineConfig(target, "dense", specs, None, COMMON))
    (prompt, *_), _ = make_prompts()
    run = engine.run([RecordedRequest(prompt, LENGTH, SpecMethod("draft", K))])
    engine.stop()
    text, plain = prompt + run.outputs[0], PlainModel(draft)
    drafted = run.of(0, "draft")
    assert len(drafted) > LENGTH // 2
    for length, drafts in drafted.items():
        assert await plain.greedy([text[:length]], len(drafts)) == [drafts]
