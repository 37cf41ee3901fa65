"""EAGLE and EAGLE-3 checkpoints: valid ones pass, others are refused with the field."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_adapter.proposers.contract import TargetSizes
from engine_adapter.proposers.methods import get_method, parse_spec
from engine_adapter.seam.errors import EngineConfigError
from tests.engine_adapter.proposers.eagle_heads import (
    eagle,
    eagle3,
    latent_eagle3,
    speculators_eagle3,
)
from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.host_head import check_it_drafts_with_the_hosts_head

TARGET = TargetSizes(hidden_size=32, vocab_size=96, num_layers=6)
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 6,
    "vocab_size": 96,
}


LATENT: dict[str, Any] = CONFIG | {
    "kv_lora_rank": 24,
    "q_lora_rank": 20,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 4,
    "v_head_dim": 10,
}


def check(heads: Heads, folder: Path, name: str) -> None:
    spec = parse_spec({"name": name, "model": heads.write(folder)})
    get_method(name).check(spec, TARGET)


# -- valid checkpoints -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("eagle", lambda: eagle(CONFIG)),
        ("eagle", lambda: eagle(CONFIG, bias=True)),
        ("eagle3", lambda: eagle3(CONFIG, aux_layers=[1, 3, 6])),
        ("eagle3", lambda: eagle3(CONFIG, aux_layers=[0, 3], first="layers.0.")),
        ("eagle3", lambda: eagle3(CONFIG, aux_layers=[1, 3, 5], draft_vocabulary=40)),
        ("eagle3", lambda: speculators_eagle3(CONFIG, aux_layers=[1, 3, 5])),
        ("eagle3", lambda: latent_eagle3(LATENT, aux_layers=[1, 3, 5])),
    ],
    ids=[
        "eagle",
        "eagle with a bias",
        "eagle3",
        "numbered layers",
        "smaller vocabulary",
        "speculators",
        "latent attention",
    ],
)
def test_a_published_layout_passes(name: str, make: Callable[[], Heads], tmp_path: Path) -> None:
    check(make(), tmp_path, name)


@pytest.mark.parametrize("name", ["embed_tokens.weight", "layers.0.self_attn.rotary_emb.inv_freq"])
def test_the_targets_embedding_and_unused_tensors_are_allowed(name: str, tmp_path: Path) -> None:
    heads = eagle(CONFIG)
    heads.tensors[name] = torch.zeros(96, 32)
    check(heads, tmp_path, "eagle")


def test_a_head_that_names_no_layers_reads_those_of_the_original(tmp_path: Path) -> None:
    heads = eagle3(CONFIG, aux_layers=[1, 3, 5])
    del heads.config["eagle_config"]
    spec = parse_spec({"name": "eagle3", "model": heads.write(tmp_path)})
    get_method("eagle3").check(spec, replace(TARGET, num_layers=7))
    says = r"eagle_aux_hidden_state_layer_ids must name .* without it they are 2, 3, 3"
    with pytest.raises(ValueError, match=says):
        get_method("eagle3").check(spec, TARGET)


def test_a_head_that_reads_only_the_final_state_needs_no_fc(tmp_path: Path) -> None:
    heads = eagle3(CONFIG, aux_layers=[1, 3, 5])
    heads.config["eagle_config"] = {"use_aux_hidden_state": False}
    del heads.tensors["fc.weight"]
    check(heads, tmp_path, "eagle3")


def test_a_narrower_head_needs_an_embedding_and_an_output_layer_of_its_own(tmp_path: Path) -> None:
    narrow = CONFIG | {"hidden_size": 16, "intermediate_size": 24}
    heads = eagle3(narrow, aux_layers=[1, 3, 5])
    heads.config["target_hidden_size"] = 32
    heads.tensors["fc.weight"] = torch.zeros(16, 3 * 32)
    with pytest.raises(ValueError, match=r"embed_tokens\.weight of shape \[96, 16\] is missing"):
        check(heads, tmp_path, "eagle3")
    heads.tensors["embed_tokens.weight"] = torch.zeros(96, 16)
    check(heads, tmp_path, "eagle3")


def test_biases_of_the_attention_are_needed_if_the_configuration_has_them(tmp_path: Path) -> None:
    heads = eagle3(CONFIG, aux_layers=[1, 3, 5])
    heads.config["attention_bias"] = True
    with pytest.raises(ValueError, match=r"midlayer\.self_attn\.q_proj\.bias .* is missing"):
        check(heads, tmp_path, "eagle3")
    for name, tensor in list(heads.tensors.items()):
        if "self_attn" in name:
            heads.tensors[name.replace("weight", "bias")] = tensor[:, 0].clone()
    check(heads, tmp_path, "eagle3")


def test_a_head_of_qwen3_has_norms_in_its_attention(tmp_path: Path) -> None:
    heads = speculators_eagle3(CONFIG, aux_layers=[1, 3, 5])
    heads.config["transformer_layer_config"]["model_type"] = "qwen3"
    with pytest.raises(ValueError, match=r"self_attn\.q_norm\.weight of shape \[8\] is missing"):
        check(heads, tmp_path, "eagle3")
    for name in "qk":
        heads.tensors[f"layers.0.self_attn.{name}_norm.weight"] = torch.ones(8)
    check(heads, tmp_path, "eagle3")


@pytest.mark.parametrize("target", ["Qwen2_5vl", "Qwen3vl", "MiniMaxM2"])
def test_vllms_names_of_llama_heads_pass(target: str, tmp_path: Path) -> None:
    heads = eagle3(CONFIG, aux_layers=[1, 3, 5])
    heads.config["architectures"] = [f"Eagle3{target}ForCausalLM"]
    check(heads, tmp_path, "eagle3")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("model_type", "deepseek_v3", "model_type must be deepseek_v2 or kimi_k2"),
        ("q_lora_rank", None, "q_lora_rank is missing"),
        ("kv_lora_rank", 0, "kv_lora_rank must be an integer of at least 1"),
        ("v_head_dim", 12, "kv_b_proj"),
    ],
)
def test_an_unfit_head_with_latent_attention_is_refused(
    field: str, value: Any, says: str, tmp_path: Path
) -> None:
    heads = latent_eagle3(LATENT, aux_layers=[1, 3, 5])
    heads.config[field] = value
    with pytest.raises(ValueError, match=says):
        check(heads, tmp_path, "eagle3")


# -- invalid checkpoints -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "field", "value", "says"),
    [
        ("eagle", "architectures", ["MistralForCausalLM"], "must be one of LlamaForCausalLM"),
        ("eagle", "architectures", None, "must be one of LlamaForCausalLM"),
        ("eagle", "hidden_size", 64, "must be 32, which is the target's hidden size"),
        ("eagle", "vocab_size", 100, "must be 96, which is the target's vocabulary"),
        ("eagle", "num_attention_heads", 0, "must be an integer of at least 1"),
        ("eagle3", "architectures", ["EagleLlamaForCausalLM"], "must be one of"),
        ("eagle3", "hidden_size", 64, "must be 32"),
        ("eagle3", "target_hidden_size", 64, "must be 32"),
        ("eagle3", "vocab_size", 100, "must be 96"),
        ("eagle3", "eagle_config", {"eagle_aux_hidden_state_layer_ids": [7]}, "0 to 6"),
        ("eagle3", "eagle_config", {"eagle_aux_hidden_state_layer_ids": 7}, "0 to 6"),
        ("eagle3", "eagle_aux_hidden_state_layer_ids", ["a", 2], "0 to 6"),
        ("eagle3", "norm_before_fc", "yes", "must be true or false"),
        ("eagle3", "num_aux_hidden_states", 4, "must be 3, which is the number of layers"),
    ],
)
def test_an_unfit_configuration_is_refused_with_its_field(
    name: str, field: str, value: Any, says: str, tmp_path: Path
) -> None:
    heads = eagle(CONFIG) if name == "eagle" else eagle3(CONFIG, aux_layers=[1, 3, 5])
    heads.config |= {field: value}
    with pytest.raises(ValueError, match=rf"config\.json: {field} .*{says}"):
        check(heads, tmp_path, name)


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("eagle", "fc.weight"),
        ("eagle", "layers.0.mlp.up_proj.weight"),
        ("eagle3", "midlayer.input_layernorm.weight"),
        ("eagle3", "d2t"),
        ("eagle3", "lm_head.weight"),
        ("eagle3", "norm.weight"),
    ],
)
def test_a_missing_tensor_is_refused_with_its_name(name: str, tensor: str, tmp_path: Path) -> None:
    layers = [1, 3, 5]
    heads = (
        eagle(CONFIG) if name == "eagle" else eagle3(CONFIG, aux_layers=layers, draft_vocabulary=40)
    )
    del heads.tensors[tensor]
    with pytest.raises(ValueError, match=rf"model\.safetensors: tensor {tensor} .* is missing"):
        check(heads, tmp_path, name)


def test_a_tensor_that_vllm_would_not_load_is_refused(tmp_path: Path) -> None:
    heads = eagle(CONFIG)
    heads.tensors["lm_head.weight"] = torch.zeros(96, 32)
    with pytest.raises(ValueError, match=r"tensor lm_head\.weight is not expected"):
        check(heads, tmp_path, "eagle")


def test_the_width_of_fc_follows_from_the_number_of_layers(tmp_path: Path) -> None:
    heads = eagle3(CONFIG, aux_layers=[1, 3, 5])
    heads.config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 3]}
    with pytest.raises(ValueError, match=r"fc\.weight must have shape \[32, 64\]"):
        check(heads, tmp_path, "eagle3")


def test_another_kind_of_speculator_is_refused(tmp_path: Path) -> None:
    heads = speculators_eagle3(CONFIG, aux_layers=[1, 3, 5])
    heads.config["speculators_model_type"] = "dflash"
    with pytest.raises(
        ValueError, match="speculators_model_type must be dflash, dflash2, dspark or eagle3"
    ):
        check(heads, tmp_path, "eagle3")


# -- drafting --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["eagle", "eagle3"])
def test_drafts_lag_and_weights_are_those_of_the_hosts_head(name: str) -> None:
    spec = parse_spec({"name": name, "model": "a/b"})
    check_it_drafts_with_the_hosts_head(spec, "draft_head")


def test_a_model_is_required() -> None:
    with pytest.raises(EngineConfigError, match="model"):
        parse_spec({"name": "eagle"})
