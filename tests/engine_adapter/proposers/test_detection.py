"""The method of a proposer that names a checkpoint only."""

import json
from pathlib import Path
from typing import Any

import pytest

from demo import HEADS, MODELS, model_path
from engine_adapter.proposers.checkpoint import CheckpointError
from engine_adapter.proposers.detection import method_of


def checkpoint(folder: Path, **config: Any) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize("name", [*MODELS, *HEADS])
def test_a_model_of_the_demo_is_recognized(name: str) -> None:
    method = "draft_model" if name in MODELS else name.replace("-", "_")
    assert method_of(str(model_path(name))) == method


@pytest.mark.parametrize(
    ("config", "method"),
    [
        ({"speculators_config": {}, "speculators_model_type": "eagle3"}, "eagle3"),
        ({"architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama"}, "eagle3"),
        ({"architectures": ["EagleDeepSeekMTPModel"], "model_type": "eagle"}, "eagle"),
        ({"architectures": ["DFlashDraftModel"], "model_type": "qwen3"}, "dflash"),
        ({"architectures": ["Qwen3DSparkModel"], "model_type": "qwen3"}, "dspark"),
        ({"model_type": "qwen3_next_mtp"}, "mtp"),
        ({"model_type": "gemma4_assistant"}, "mtp"),
        ({"architectures": ["Gemma4UnifiedAssistantForCausalLM"]}, "mtp"),
        ({"medusa_num_heads": 4, "medusa_num_layers": 1}, "medusa"),
        ({"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3"}, "draft_model"),
        ({"architectures": 7}, "draft_model"),
    ],
)
def test_a_configuration_says_the_method(
    tmp_path: Path, config: dict[str, Any], method: str
) -> None:
    assert method_of(checkpoint(tmp_path / "head", **config)) == method


@pytest.mark.parametrize(
    ("name", "method"),
    [("EAGLE-Llama-8B", "eagle"), ("Qwen3-8B_eagle3", "eagle3"), ("dspark_block7", "dspark")],
)
def test_a_head_with_the_architecture_of_its_target_is_recognized_by_its_name(
    tmp_path: Path, name: str, method: str
) -> None:
    folder = checkpoint(tmp_path / name, architectures=["LlamaForCausalLM"], model_type="llama")
    assert method_of(folder) == method


def test_a_folder_without_a_configuration_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"config\.json"):
        method_of(str(tmp_path))
