"""MTP layers of a target: published layouts pass, targets without usable ones are refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_adapter.proposers.contract import TargetSizes
from engine_adapter.proposers.methods import get_method, parse_spec
from engine_adapter.seam.errors import EngineConfigError
from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.host_head import check_it_drafts_with_the_hosts_head
from tests.engine_adapter.proposers.mtp_targets import HIDDEN, TARGETS, glm4_moe, mimo


def check(target: Heads, folder: Path, k: int = 1) -> None:
    spec = parse_spec({"name": "mtp", "num_speculative_tokens": k})
    sizes = TargetSizes(HIDDEN, target.config["vocab_size"], model=target.write(folder))
    get_method("mtp").check(spec, sizes)


@pytest.mark.parametrize("name", TARGETS)
def test_a_published_layout_passes(name: str, tmp_path: Path) -> None:
    check(TARGETS[name](vocabulary=40), tmp_path, k=3)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("architectures", ["LlamaForCausalLM"], "must be one of MiMoForCausalLM, .* not been run"),
        ("architectures", None, "must be one of MiMoForCausalLM"),
        ("architectures", "MiMoForCausalLM", "must be one of MiMoForCausalLM"),
        ("num_nextn_predict_layers", 0, "the target has no MTP layers"),
        ("num_nextn_predict_layers", "one", "must be an integer"),
        ("num_nextn_predict_layers", 2000, "must be at most 1024"),
        ("num_hidden_layers", None, "num_hidden_layers is missing"),
    ],
)
def test_a_target_without_mtp_layers_is_refused_with_the_field(
    field: str, value: Any, says: str, tmp_path: Path
) -> None:
    target = mimo(vocabulary=40)
    target.config |= {field: value}
    with pytest.raises(ValueError, match=rf"config\.json: {field}.*{says}|config\.json: {says}"):
        check(target, tmp_path)


def test_a_target_whose_configuration_does_not_mention_them_is_refused(tmp_path: Path) -> None:
    target = mimo(vocabulary=40)
    del target.config["num_nextn_predict_layers"]
    with pytest.raises(ValueError, match="the target has no MTP layers"):
        check(target, tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_a_copy_that_was_saved_without_the_layers_is_refused(name: str, tmp_path: Path) -> None:
    target = TARGETS[name](vocabulary=40)
    first = f"layers.{target.config['num_hidden_layers']}."
    kept = {n: t for n, t in target.tensors.items() if "mtp" not in n and first not in n}
    assert kept.keys() < target.tensors.keys()
    target.tensors = kept
    with pytest.raises(ValueError, match=r"MTP layers are missing .*this copy was saved without"):
        check(target, tmp_path)


def test_each_layer_that_the_configuration_states_must_be_there(tmp_path: Path) -> None:
    target = glm4_moe(vocabulary=40)
    target.config["num_nextn_predict_layers"] = 2
    with pytest.raises(ValueError, match=r"tensor model\.layers\.3\.eh_proj\.weight .*is missing"):
        check(target, tmp_path)


@pytest.mark.parametrize("k", [1, 2, 4])
def test_a_k_that_several_layers_can_draft_in_turn_passes(k: int, tmp_path: Path) -> None:
    check(glm4_moe(vocabulary=40, layers=2), tmp_path, k)


def test_another_k_is_refused_as_vllm_does(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"num_speculative_tokens must be at most 2, .* it is 3"):
        check(glm4_moe(vocabulary=40, layers=2), tmp_path, 3)


def test_a_projection_of_another_width_is_refused(tmp_path: Path) -> None:
    target = mimo(vocabulary=40)
    target.tensors["model.mtp_layers.0.input_proj.weight"] = torch.zeros(HIDDEN, HIDDEN)
    with pytest.raises(ValueError, match=r"input_proj\.weight must have shape \[64, 128\]"):
        check(target, tmp_path)


# -- configuration and drafting ---------------------------------------------------------------


def test_it_needs_only_its_name() -> None:
    spec = parse_spec({"name": "mtp"})
    assert (spec.method, spec.model, spec.num_speculative_tokens) == ("mtp", None, 1)


def test_a_model_is_refused() -> None:
    with pytest.raises(EngineConfigError, match="mtp has no weights of its own; leave it out"):
        parse_spec({"name": "mtp", "model": "a/b"})


def test_drafts_lag_and_weights_are_those_of_the_hosts_head() -> None:
    check_it_drafts_with_the_hosts_head(parse_spec({"name": "mtp"}), "draft_head")
