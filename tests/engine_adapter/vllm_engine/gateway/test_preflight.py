"""Models that cannot be served are refused before anything is loaded."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.gateway import preflight
from tests.engine_adapter.vllm_engine.gateway.model_folders import (
    LLAMA,
    MakeModel,
    config,
    draft,
    refusal,
)


def test_a_plain_target_is_accepted(make_model: MakeModel) -> None:
    preflight.check_models(config(make_model("target"), [{"name": "ngram"}]))


@pytest.mark.parametrize(
    "path", ["/no/such/folder", "./no-such-folder", "~/no-such-folder", "~nobody-of-this-name/x"]
)
def test_a_missing_folder_is_named(path: str) -> None:
    error = refusal(preflight.check_models, config(path))
    assert error.setting == "model"
    assert path in str(error)


def test_a_folder_without_a_configuration_is_named(tmp_path: Path) -> None:
    error = refusal(preflight.check_models, config(str(tmp_path)))
    assert error.setting == "model"
    assert str(tmp_path) in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        "{}",
        '{"model_type": "nonesuch"}',
        '{"model_type": "llama", "hidden_size": "wide"}',
        '{"model_type": "llama", "layer_types": ["nonesuch"]}',
    ],
)
def test_a_configuration_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    error = refusal(preflight.check_models, config(str(tmp_path)))
    assert error.setting == "model"
    assert str(tmp_path) in str(error)


@pytest.mark.parametrize(
    "fields",
    [
        {"model_type": "mistral", "sliding_window": None},
        {"model_type": "mistral", "sliding_window": 4096},
        {"model_type": "mixtral", "sliding_window": 4096},
        {"model_type": "phi3", "sliding_window": 2047},
        {"model_type": "starcoder2", "sliding_window": 4096},
        {"model_type": "qwen2", "use_sliding_window": False, "sliding_window": 4096},
        {"model_type": "qwen2", "use_sliding_window": True, "max_window_layers": 1},
        {"model_type": "gemma2", "head_dim": 8},
        {"model_type": "gemma3_text", "head_dim": 8},
        {"model_type": "gpt_oss"},
        {"model_type": "llama4_text"},
        {"model_type": "opt"},
        {"model_type": "gpt2"},
    ],
    ids=lambda fields: f"{fields['model_type']} {fields.get('sliding_window', '')}",
)
def test_a_model_whose_layers_are_all_attention_is_accepted(
    make_model: MakeModel, fields: dict[str, Any]
) -> None:
    folder = make_model("target", LLAMA | fields)
    preflight.check_models(config(folder, [draft(folder)]))


def warnings(make_model: MakeModel, target: str | None, small: str | None) -> list[Any]:
    """The warnings for a target and a draft model of the named architectures."""

    def folder(name: str, architecture: str | None) -> str:
        return make_model(name, LLAMA | {"architectures": architecture and [architecture]})

    with capture_logs() as lines:
        preflight.check_models(config(folder("target", target), [draft(folder("draft", small))]))
    return [line for line in lines if line["event"] == "architecture_not_proven"]


def test_an_architecture_outside_the_table_starts_with_a_warning(make_model: MakeModel) -> None:
    (line,) = warnings(make_model, "NewForCausalLM", "LlamaForCausalLM")
    assert line["log_level"] == "warning"
    assert line["architecture"] == "NewForCausalLM"
    assert line["model"].endswith("/target")
    assert "docs/models.md" in line["meaning"]


def test_a_draft_model_outside_the_table_has_a_warning_of_its_own(make_model: MakeModel) -> None:
    (line,) = warnings(make_model, "LlamaForCausalLM", "NewForCausalLM")
    assert line["model"].endswith("/draft")


def test_a_configuration_without_architectures_is_named_by_its_type(make_model: MakeModel) -> None:
    (line,) = warnings(make_model, "LlamaForCausalLM", None)
    assert line["architecture"] == "llama"


def test_an_architecture_of_the_table_has_no_warning(make_model: MakeModel) -> None:
    assert not warnings(make_model, "LlamaForCausalLM", "LlamaForCausalLM")


@pytest.mark.parametrize("on_cpu", [True, False])
def test_experts_that_vllm_cannot_choose_on_cpu_are_refused_there(
    make_model: MakeModel, monkeypatch: pytest.MonkeyPatch, on_cpu: bool
) -> None:
    platform = SimpleNamespace(is_cpu=lambda: on_cpu)
    monkeypatch.setitem(vars(compat), "current_platform", platform)
    target = make_model("target", LLAMA | {"model_type": "minimax_m2"})
    if on_cpu:
        error = refusal(preflight.check_models, config(target))
        assert (error.setting, "experts chosen by a sigmoid" in str(error)) == ("model", True)
    else:
        preflight.check_models(config(target))
