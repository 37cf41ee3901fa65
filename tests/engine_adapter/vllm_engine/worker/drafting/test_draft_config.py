"""vLLM's configurations of draft models: nothing but the proposer decides what they are."""

import json
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from engine_adapter.proposers.eagle import aux_layers
from engine_adapter.proposers.methods import parse_spec
from engine_adapter.vllm_engine import compat
from tests.engine_adapter.proposers.block_layouts import as_speculators
from tests.engine_adapter.proposers.dflash_heads import dflash
from tests.engine_adapter.proposers.dspark_heads import dspark
from tests.engine_adapter.proposers.step_target import layer_types, step3_5
from tests.engine_adapter.vllm_engine.architectures.catalog import SERVED
from tests.engine_adapter.vllm_engine.conftest import TARGET

pytestmark = pytest.mark.needs_vllm

WITH_MTP_LAYERS = {
    "glm4_moe": "Glm4MoeForCausalLM",
    "ernie4_5_moe": "Ernie4_5_MoeForCausalLM",
    "exaone_moe": "ExaoneMoeForCausalLM",
    "hy_v3": "HYV3ForCausalLM",
}
"""Rows of the catalog whose architectures can have MTP layers -> these architectures."""


@pytest.fixture(scope="module")
def target() -> Any:
    """A configuration of an engine, as far as it is read."""
    config = import_module("vllm.config")
    return SimpleNamespace(
        target_model_config=config.ModelConfig(TARGET, dtype="float32", max_model_len=256),
        target_parallel_config=config.ParallelConfig(),
    )


def draft(model: Path, target: Any, method: str = "draft_model") -> Any:
    """vLLM's configuration of a draft model or a head in the folder."""
    module = import_module("engine_adapter.vllm_engine.worker.drafting.draft_config")
    spec = parse_spec({"name": "small", "method": method, "model": str(model)})
    additional = SimpleNamespace(compiled_for=lambda name: name)
    config = SimpleNamespace(speculative_config=target, additional_config=additional)
    return module.draft_vllm_config(spec, config).speculative_config


def write_config(row: str, architecture: str, folder: Path) -> None:
    one = next(one for one in SERVED if one.name == row)
    config = AutoConfig.for_model(one.model_type, **one.config)
    config.architectures = [architecture]
    config.save_pretrained(folder)


@pytest.mark.parametrize("row", WITH_MTP_LAYERS)
def test_a_draft_model_keeps_its_own_layers(row: str, target: Any, tmp_path: Path) -> None:
    write_config(row, WITH_MTP_LAYERS[row], tmp_path)
    made = draft(tmp_path, target)
    assert made.method == "draft_model"
    assert made.draft_model_config.architectures == [WITH_MTP_LAYERS[row]]
    assert made.draft_model_config.hf_config.model_type == row


@pytest.mark.parametrize("word", ["eagle-", "eagle3", "dflash", "dspark"])
def test_a_word_in_the_path_makes_no_head_of_a_draft_model(
    word: str, target: Any, tmp_path: Path
) -> None:
    folder = tmp_path / f"{word}beside" / "draft"
    write_config("qwen3", "Qwen3ForCausalLM", folder)
    made = draft(folder, target)
    assert made.method == "draft_model"
    assert made.draft_model_config.architectures == ["Qwen3ForCausalLM"]


def test_a_target_changed_by_a_function_has_draft_models_changed_by_it(
    target: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As vLLM does; the fields that change a target alone do not change its drafts."""

    def one_layer(config: Any) -> Any:
        config.num_hidden_layers = 1
        return config

    write_config("qwen3", "Qwen3ForCausalLM", tmp_path)
    for overrides, layers in (({"num_hidden_layers": 1}, 2), (one_layer, 1)):
        monkeypatch.setattr(target.target_model_config, "hf_overrides", overrides)
        made = draft(tmp_path, target)
        assert made.draft_model_config.hf_config.num_hidden_layers == layers


@pytest.mark.parametrize("kind", ["dflash", "dspark"])
@pytest.mark.parametrize("non_causal", [False, True, None])
def test_layers_without_a_window_are_not_causal_in_the_format_of_speculators(
    non_causal: bool | None, kind: str, target: Any, tmp_path: Path
) -> None:
    """`sliding_window_non_causal` is about those with a window, which are causal without it."""
    causality = import_module("vllm.model_executor.models.qwen3_dflash")
    config = json.loads((Path(TARGET) / "config.json").read_text())
    published = {"dflash": dflash, "dspark": dspark}[kind](config, target_layers=[1, 3])  # type: ignore[operator]
    published.config |= {
        "layer_types": ["full_attention", "sliding_attention"],
        "sliding_window": 64,
        "use_sliding_window": True,
    }
    head = as_speculators(published, kind)
    head.config["sliding_window_non_causal"] = non_causal
    if non_causal is None:
        del head.config["sliding_window_non_causal"]
    loaded = draft(Path(head.write(tmp_path)), target, kind).draft_model_config
    assert aux_layers(vars(loaded.hf_config)) == (2, 4)
    flags = [causality._dflash_layer_causal(loaded.hf_config, layer) for layer in range(2)]
    assert flags == [False, not non_causal]


def test_mtp_layers_have_their_kinds_of_attention(target: Any, tmp_path: Path) -> None:
    folder = step3_5(vocabulary=40, layers=2).write(tmp_path)
    head = draft(Path(folder), target, "mtp").draft_model_config.hf_config
    assert head.layer_types + getattr(head, "mtp_layer_types", []) == layer_types(2)


def test_vllms_own_configuration_has_the_defect(tmp_path: Path) -> None:
    """It cuts `layer_types` to the target's layers, and has those of MTP layers nowhere else."""
    folder = step3_5(vocabulary=40, layers=2).write(tmp_path)
    config = import_module("vllm.config").ModelConfig(folder, skip_tokenizer_init=True).hf_config
    is_cut = config.layer_types + getattr(config, "mtp_layer_types", []) != layer_types(2)
    assert is_cut is compat.has_defect("layer_types")


def test_the_name_in_vllms_module_is_its_own_afterwards(target: Any, tmp_path: Path) -> None:
    write_config("qwen3", "Qwen3ForCausalLM", tmp_path)
    draft(tmp_path, target)
    assert compat.speculative.SpeculativeConfig is compat.SpeculativeConfig
