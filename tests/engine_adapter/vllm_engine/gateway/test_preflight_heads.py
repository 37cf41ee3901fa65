"""Heads that do not fit their target are refused before anything is loaded."""

from pathlib import Path
from typing import Any

import pytest

from engine_adapter.vllm_engine.gateway import preflight
from tests.engine_adapter.proposers.heads import (
    Heads,
    fasterdecoding_medusa,
    medusa,
    mlp_speculator,
)
from tests.engine_adapter.proposers.mtp_targets import mimo
from tests.engine_adapter.vllm_engine.gateway.model_folders import LLAMA, MakeModel, config, refusal

SIZES: dict[str, Any] = {"hidden": LLAMA["hidden_size"], "vocabulary": LLAMA["vocab_size"]}
HEADS = [
    ("mlp_speculator", mlp_speculator(**SIZES)),
    ("medusa", medusa(**SIZES)),
    ("medusa", fasterdecoding_medusa(**SIZES)),
]


def head(method: str, model: str, **fields: Any) -> dict[str, Any]:
    return {"name": "head", "method": method, "model": model, **fields}


@pytest.mark.parametrize(("method", "heads"), HEADS)
def test_heads_that_fit_are_accepted_without_a_tokenizer(
    make_model: MakeModel, tmp_path: Path, method: str, heads: Heads
) -> None:
    model = heads.write(tmp_path / "heads")
    preflight.check_models(config(make_model("target"), [head(method, model)]))


@pytest.mark.parametrize("other", [{"hidden_size": 32}, {"vocab_size": 48}], ids=str)
@pytest.mark.parametrize(("method", "heads"), HEADS)
def test_heads_of_another_target_are_refused_with_file_and_proposer(
    make_model: MakeModel, tmp_path: Path, method: str, heads: Heads, other: dict[str, int]
) -> None:
    model = heads.write(tmp_path / "heads")
    target = make_model("target", LLAMA | other)
    error = refusal(preflight.check_models, config(target, [head(method, model)]))
    assert error.setting == "proposer"
    assert str(error).startswith(f"proposer: head: {model}/")
    assert str(next(iter(other.values()))) in str(error)


@pytest.mark.parametrize(("method", "heads"), HEADS)
def test_a_k_above_the_steps_of_a_head_is_refused(
    make_model: MakeModel, tmp_path: Path, method: str, heads: Heads
) -> None:
    fields = head(method, heads.write(tmp_path / "heads"), num_speculative_tokens=9)
    error = refusal(preflight.check_models, config(make_model("target"), [fields]))
    assert "head: " in str(error)
    assert "num_speculative_tokens must be at most" in str(error)


@pytest.mark.parametrize("method", ["mlp_speculator", "medusa"])
def test_a_model_that_is_not_a_head_is_refused(make_model: MakeModel, method: str) -> None:
    model = make_model("draft")
    error = refusal(preflight.check_models, config(make_model("target"), [head(method, model)]))
    assert f"head: {model}/config.json: " in str(error)
    assert "'LlamaForCausalLM'" in str(error)


def test_mtp_layers_of_the_target_are_accepted(tmp_path: Path) -> None:
    target = mimo(vocabulary=32).write(tmp_path / "target")
    preflight.check_models(config(target, [{"name": "mtp"}]))


def test_mtp_is_refused_for_a_target_without_mtp_layers(make_model: MakeModel) -> None:
    target = make_model("target", LLAMA | {"architectures": ["LlamaForCausalLM"]})
    error = refusal(preflight.check_models, config(target, [{"name": "mtp"}]))
    assert error.setting == "proposer"
    says = f"{target}/config.json: num_nextn_predict_layers must be at least 1"
    assert str(error).startswith(f"proposer: mtp: {says}: the target has no MTP layers")
