"""MTP layers of a target: published layouts pass, targets without usable ones are refused."""

from pathlib import Path
from typing import Any

import pytest
import structlog
import torch

from engine_adapter.proposers.contract import TargetSizes
from engine_adapter.proposers.methods import get_method, parse_spec
from engine_adapter.seam.errors import EngineConfigError
from tests.engine_adapter.proposers.gemma4_assistants import assistant, gemma4_target
from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.host_head import check_it_drafts_with_the_hosts_head
from tests.engine_adapter.proposers.mtp_layout import HIDDEN
from tests.engine_adapter.proposers.mtp_targets import TARGETS, glm4_moe, mimo


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
        ("num_nextn_predict_layers", 0, "the target has no MTP layers"),
        ("num_nextn_predict_layers", "one", "must be an integer"),
        ("num_nextn_predict_layers", 2000, "must be at most 1024"),
    ],
)
def test_a_target_without_mtp_layers_is_refused_with_the_field(
    field: str, value: Any, says: str, tmp_path: Path
) -> None:
    target = mimo(vocabulary=40)
    target.config |= {field: value}
    with pytest.raises(ValueError, match=rf"config\.json: {field}.*{says}|config\.json: {says}"):
        check(target, tmp_path)


@pytest.mark.parametrize("architectures", [["LlamaForCausalLM"], None, "LlamaForCausalLM"])
@pytest.mark.parametrize("field", ["num_nextn_predict_layers", "mtp_num_hidden_layers"])
def test_a_target_that_was_not_compared_is_served_with_a_warning(
    architectures: Any, field: str, tmp_path: Path
) -> None:
    """If its configuration has MTP layers; which tensors they need is for vLLM to say."""
    target = mimo(vocabulary=40)
    del target.config["num_nextn_predict_layers"]
    target.config |= {"architectures": architectures, field: 2}
    with structlog.testing.capture_logs() as logs:
        check(target, tmp_path, k=4)
    assert [(entry["event"], entry["architecture"]) for entry in logs] == [
        ("mtp_layers_not_compared", architectures)
    ]
    with pytest.raises(ValueError, match="must be at most 2, the number of MTP layers, or a"):
        check(target, tmp_path, k=3)
    target.config[field] = 0
    with pytest.raises(ValueError, match=f"{field} must be at least 1: the target has no MTP"):
        check(target, tmp_path)


def test_layers_that_follow_the_targets_need_their_number(tmp_path: Path) -> None:
    target = glm4_moe(vocabulary=40)
    del target.config["num_hidden_layers"]
    with pytest.raises(ValueError, match=r"config\.json: num_hidden_layers is missing"):
        check(target, tmp_path)


def test_the_text_model_of_a_multimodal_target_tells_of_them(tmp_path: Path) -> None:
    target = TARGETS["qwen3_5"](vocabulary=40)
    architecture = {"architectures": ["Qwen3_5ForConditionalGeneration"], "vocab_size": 40}
    target.config = {**architecture, "text_config": target.config}
    check(target, tmp_path, k=3)
    target.config["text_config"]["mtp_num_hidden_layers"] = 0
    says = r"config\.json: mtp_num_hidden_layers must be at least 1: .* has no MTP layers; it is 0"
    with pytest.raises(ValueError, match=says):
        check(target, tmp_path)


def test_only_the_first_layer_of_some_targets_is_needed(tmp_path: Path) -> None:
    target = TARGETS["mimo_v2_flash"](vocabulary=40)
    target.config["num_nextn_predict_layers"] = 3
    check(target, tmp_path, k=2)


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


def test_a_model_is_the_path_or_id_of_a_checkpoint() -> None:
    assert parse_spec({"name": "mtp", "model": "a/b"}).model == "a/b"
    with pytest.raises(EngineConfigError, match="mtp needs the path or id of its weights, got 3"):
        parse_spec({"name": "mtp", "model": 3})


def test_layers_in_a_checkpoint_of_their_own_pass(tmp_path: Path) -> None:
    whole = glm4_moe(vocabulary=40)
    layers = {name: tensor for name, tensor in whole.tensors.items() if "layers.2." in name}
    path = Heads(whole.config, layers).write(tmp_path / "layers")
    target = Heads(whole.config, {"model.norm.weight": torch.ones(HIDDEN)}).write(
        tmp_path / "target"
    )
    spec = parse_spec({"name": "mtp", "model": path})
    get_method("mtp").check(spec, TargetSizes(HIDDEN, 40, model=target))
    with pytest.raises(ValueError, match="the target's MTP layers are missing"):
        get_method("mtp").check(parse_spec({"name": "mtp"}), TargetSizes(HIDDEN, 40, model=target))


# -- assistants of Gemma 4 --------------------------------------------------------------------


def check_assistant(target: Heads, heads: Heads, folder: Path) -> None:
    spec = parse_spec({"name": "mtp", "model": heads.write(folder / "assistant")})
    path = target.write(folder / "target")
    get_method("mtp").check(spec, TargetSizes(HIDDEN, target.config["vocab_size"], model=path))


@pytest.mark.parametrize("num_shared", [0, 2])
@pytest.mark.parametrize("centroids", [None, 2])
def test_an_assistant_passes(num_shared: int, centroids: int | None, tmp_path: Path) -> None:
    target = gemma4_target(vocabulary=64, num_shared=num_shared)
    check_assistant(target, assistant(target, centroids=centroids), tmp_path)


def test_the_text_model_of_a_multimodal_target_counts(tmp_path: Path) -> None:
    target = gemma4_target(vocabulary=64)
    heads = assistant(target)
    nested = {"model_type": "gemma4", "text_config": target.config, "vocab_size": 64}
    check_assistant(Heads(nested, target.tensors), heads, tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("backbone_hidden_size", 96, "must be 64, which is the target's hidden_size; it is 96"),
        ("text_config.vocab_size", 32, "must be 64, which is the target's; it is 32"),
        ("text_config.layer_types", ["chunked_attention"], "must name kinds of the target: full_"),
        ("text_config.layer_types", [["full_attention"]], "must name kinds of the target"),
        ("text_config.layer_types", None, "must name the kind of attention of each layer"),
        ("text_config.sliding_window", 32, "must be 64, which is the target's; it is 32"),
    ],
)
def test_an_assistant_that_cannot_read_the_targets_kv_is_refused(
    field: str, value: Any, says: str, tmp_path: Path
) -> None:
    target = gemma4_target(vocabulary=64)
    heads = assistant(target)
    part, _, name = field.rpartition(".")
    (heads.config[part] if part else heads.config)[name] = value
    with pytest.raises(ValueError, match=rf"config\.json: {name} {says}"):
        check_assistant(target, heads, tmp_path)


def test_an_assistant_of_another_target_is_refused(tmp_path: Path) -> None:
    target = mimo(vocabulary=64)
    says = "model_type must be Gemma 4's: the assistant reads its KV; it is 'qwen2'"
    with pytest.raises(ValueError, match=says):
        check_assistant(target, assistant(gemma4_target(vocabulary=64)), tmp_path)


def test_a_target_of_gemma_4_needs_an_assistant(tmp_path: Path) -> None:
    path = gemma4_target(vocabulary=64).write(tmp_path / "target")
    spec = parse_spec({"name": "mtp"})
    with pytest.raises(ValueError, match="has no MTP layers: set model to the target's assistant"):
        get_method("mtp").check(spec, TargetSizes(HIDDEN, 64, model=path))


def test_a_target_without_the_kinds_of_its_layers_is_refused(tmp_path: Path) -> None:
    target = gemma4_target(vocabulary=64)
    heads = assistant(target)
    target.config["layer_types"] = None
    with pytest.raises(ValueError, match=r"target/config\.json: layer_types must name the kind"):
        check_assistant(target, heads, tmp_path)


def test_an_assistant_without_its_projections_is_refused(tmp_path: Path) -> None:
    target = gemma4_target(vocabulary=64)
    heads = assistant(target)
    del heads.tensors["post_projection.weight"]
    with pytest.raises(ValueError, match=r"tensor post_projection\.weight .* is missing"):
        check_assistant(target, heads, tmp_path)


def test_an_assistant_drafts_with_the_hosts_query_head(tmp_path: Path) -> None:
    path = assistant(gemma4_target(vocabulary=64)).write(tmp_path / "assistant")
    check_it_drafts_with_the_hosts_head(parse_spec({"name": "mtp", "model": path}), "query_head")


def test_drafts_lag_and_weights_are_those_of_the_hosts_head() -> None:
    check_it_drafts_with_the_hosts_head(parse_spec({"name": "mtp"}), "draft_head")
