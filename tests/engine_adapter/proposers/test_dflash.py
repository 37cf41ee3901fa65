"""DFlash checkpoints: the published layout passes, others are refused with the field."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from engine_adapter.proposers.contract import TargetSizes
from engine_adapter.proposers.eagle import aux_layers
from engine_adapter.proposers.methods import get_method, parse_spec
from tests.engine_adapter.proposers.block_layouts import (
    as_speculators,
    move_into_layer,
    with_fewer_tokens,
)
from tests.engine_adapter.proposers.dflash_heads import MASK_TOKEN, dflash, with_sinks
from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.host_head import check_it_drafts_with_the_hosts_head

TARGET = TargetSizes(hidden_size=32, vocab_size=96, num_layers=6)
CONFIG: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "num_hidden_layers": 6,
    "vocab_size": 96,
}


def check(head: Heads, folder: Path, **fields: Any) -> None:
    spec = parse_spec({"name": "dflash", "model": head.write(folder), **fields})
    get_method("dflash").check(spec, TARGET)


def test_the_published_layout_passes(tmp_path: Path) -> None:
    check(dflash(CONFIG, target_layers=[1, 3, 5]), tmp_path)


def test_ends_of_its_own_are_allowed(tmp_path: Path) -> None:
    head = dflash(CONFIG, target_layers=[0])
    head.tensors |= {
        name: torch.zeros(96, 32) for name in ("embed_tokens.weight", "lm_head.weight")
    }
    check(head, tmp_path)


def test_a_head_without_a_block_size_may_draft_any_number(tmp_path: Path) -> None:
    head = dflash(CONFIG, target_layers=[0])
    del head.config["block_size"]
    check(head, tmp_path, num_speculative_tokens=20)


@pytest.mark.parametrize("own_embedding", [True, False])
@pytest.mark.parametrize("drafted", [96, 40])
def test_the_format_of_speculators_passes(
    drafted: int, own_embedding: bool, tmp_path: Path
) -> None:
    head = dflash(CONFIG, target_layers=[1, 3, 5])
    if drafted < 96:
        head = with_fewer_tokens(head, drafted)
    head.tensors["embed_tokens.weight"] = torch.zeros(96, 32)
    made = as_speculators(head, "dflash", own_embedding=own_embedding)
    assert ("embed_tokens.weight" in made.tensors) is own_embedding
    check(made, tmp_path)


@pytest.mark.parametrize(
    ("field", "says"),
    [
        ("mask_token_id", r"mask_token_id must be a token in \[0, 96\)"),
        ("aux_hidden_state_layer_ids", "aux_hidden_state_layer_ids must be different layers"),
        ("draft_vocab_size", r"lm_head\.weight must have shape \[96, 32\]"),
    ],
)
def test_a_field_of_the_head_that_stands_among_those_of_its_layers_is_not_read(
    field: str, says: str, tmp_path: Path
) -> None:
    """vLLM does not read it there either."""
    head = as_speculators(with_fewer_tokens(dflash(CONFIG, target_layers=[1]), 40), "dflash")
    move_into_layer(head, field)
    with pytest.raises(ValueError, match=says):
        check(head, tmp_path)


@pytest.mark.parametrize("field", ["hidden_size", "vocab_size"])
def test_a_size_in_the_format_of_speculators_is_that_of_the_layers(
    field: str, tmp_path: Path
) -> None:
    head = as_speculators(dflash(CONFIG, target_layers=[1]), "dflash")
    head.config[field] = 7
    check(head, tmp_path / "beside")
    head.config[field] = head.config["transformer_layer_config"].pop(field)
    with pytest.raises(ValueError, match=f"{field} is missing"):
        check(head, tmp_path / "only beside")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("speculators_model_type", "dspark", "must be dflash, .* method, which is dflash; it is"),
        ("speculators_model_type", "peagle", "must be dflash, dflash2, dspark or eagle3, of"),
        ("transformer_layer_config", None, "must be an object"),
        ("aux_hidden_state_layer_ids", None, r"must be different layers in \[1, 7\)"),
        ("aux_hidden_state_layer_ids", [0, 2], r"must be different layers in \[1, 7\)"),
        ("aux_hidden_state_layer_ids", [7], r"must be different layers in \[1, 7\)"),
        ("mask_token_id", None, r"must be a token in \[0, 96\)"),
        ("target_hidden_size", 64, "must be 32, which is the target's hidden size"),
        ("draft_vocab_size", 97, "must be at most 96"),
        ("sample_from_anchor", True, "must be false: a mask gives the first draft"),
    ],
)
def test_an_unfit_configuration_in_the_format_of_speculators_is_refused_with_its_field(
    field: str, value: Any, says: str, tmp_path: Path
) -> None:
    head = as_speculators(dflash(CONFIG, target_layers=[1]), "dflash")
    head.config |= {field: value}
    with pytest.raises(ValueError, match=rf"config\.json: {field} .*{says}"):
        check(head, tmp_path)


WINDOW = {"sliding_window": 64, "use_sliding_window": True}
MIXED = {"layer_types": ["full_attention", "sliding_attention"]}


@pytest.mark.parametrize("published", [True, False], ids=["published", "speculators"])
def test_layers_may_have_a_window(published: bool, tmp_path: Path) -> None:
    head = dflash(CONFIG, target_layers=[1])
    head.config |= WINDOW | MIXED
    check(head if published else as_speculators(head, "dflash"), tmp_path)


@pytest.mark.parametrize("fields", [{"swa_window_size": 64}, {}], ids=["own", "of the layers"])
def test_all_layers_may_have_a_window(fields: dict[str, Any], tmp_path: Path) -> None:
    """As in XiaomiMiMo's heads."""
    head = dflash(CONFIG, target_layers=[1])
    head.config["dflash_config"] |= {"use_swa": True, **fields}
    head.config |= {} if fields else WINDOW
    check(head, tmp_path)
    head.config["dflash_config"]["swa_window_size"] = 0
    with pytest.raises(
        ValueError, match=r"dflash_config\.swa_window_size must be an integer of at"
    ):
        check(head, tmp_path / "none")


def test_layers_may_have_attention_sinks(tmp_path: Path) -> None:
    head = with_sinks(dflash(CONFIG, target_layers=[1]))
    check(head, tmp_path / "own")
    del head.config["dflash_config"]["attention_sink_bias"]
    with pytest.raises(
        ValueError, match=r"tensor layers\.0\.self_attn\.attention_sink_bias is not"
    ):
        check(head, tmp_path / "none")
    head.config["add_swa_attention_sink_bias"] = True
    check(head, tmp_path)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"sliding_window": 64}, "use_sliding_window must be true: layers have a window"),
        ({"use_sliding_window": True}, "sliding_window is missing"),
        ({**WINDOW, "sliding_window": 0}, "sliding_window must be an integer of at least 1"),
        ({"layer_types": ["chunked_attention"] * 2}, "layer_types must list full_attention and"),
        ({"layer_types": ["full_attention"]}, "layer_types must name the kind of each layer"),
    ],
)
@pytest.mark.parametrize("published", [True, False], ids=["published", "speculators"])
def test_a_window_needs_its_size(
    fields: dict[str, Any], says: str, published: bool, tmp_path: Path
) -> None:
    """vLLM drops `sliding_window` if `use_sliding_window` is not true."""
    head = dflash(CONFIG, target_layers=[1])
    head.config |= MIXED | fields
    with pytest.raises(ValueError, match=rf"config\.json: {says}"):
        check(head if published else as_speculators(head, "dflash"), tmp_path)


@pytest.mark.parametrize("uses", [False, True, None])
def test_a_head_without_kinds_of_layers_must_say_that_there_is_no_window(
    uses: bool | None, tmp_path: Path
) -> None:
    head = as_speculators(dflash(CONFIG, target_layers=[1]), "dflash")
    layer = head.config["transformer_layer_config"]
    del layer["layer_types"]
    check(head, tmp_path / "none")
    layer |= {"sliding_window": 4096, "use_sliding_window": uses}
    if uses is False:
        check(head, tmp_path)
        return
    with pytest.raises(ValueError, match="use_sliding_window must be false without layer_types"):
        check(head, tmp_path)


@pytest.mark.parametrize("tensor", ["d2t", "t2d"])
def test_a_head_with_the_whole_vocabulary_has_no_numbers_of_its_tokens(
    tensor: str, tmp_path: Path
) -> None:
    head = dflash(CONFIG, target_layers=[1])
    head.tensors[tensor] = torch.zeros(96, dtype=torch.int64)
    with pytest.raises(ValueError, match=f"tensor {tensor} is not expected"):
        check(head, tmp_path)


@pytest.mark.parametrize("tensor", ["d2t", "lm_head.weight"])
def test_a_head_with_fewer_tokens_needs_its_output_layer_and_their_numbers(
    tensor: str, tmp_path: Path
) -> None:
    head = with_fewer_tokens(dflash(CONFIG, target_layers=[1]), 40)
    check(head, tmp_path / "whole")
    del head.tensors[tensor]
    with pytest.raises(ValueError, match=rf"tensor {tensor} .* is missing"):
        check(head, tmp_path / "part")


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("architectures", ["LlamaForCausalLM"], r"must be \['DFlashDraftModel'\] or \['DFlash2"),
        ("hidden_size", 64, "must be 32, which is the target's hidden size"),
        ("vocab_size", 100, "must be 96, which is the target's vocabulary"),
        ("dflash_config", None, "must be an object"),
        ("dflash_config.mask_token_id", None, "must be a token in"),
        ("dflash_config.mask_token_id", 96, r"must be a token in \[0, 96\)"),
        ("dflash_config.target_layer_ids", None, "must be different layers"),
        ("dflash_config.target_layer_ids", [6], r"must be different layers in \[0, 6\)"),
        ("dflash_config.target_layer_ids", [1, 1], "must be different layers"),
        ("dflash_config.use_swa", "yes", "must be true or false"),
        ("dflash_config.causal", 1, "must be true or false"),
        ("dflash_config.attention_value_scale", [0.7], "must be a number"),
        ("dflash_config.sample_from_anchor", True, "must be false: a mask gives the first draft"),
        ("dflash_config.sample_from_anchor", "yes", "must be true or false"),
        ("block_size", 1, "must be an integer of at least 2"),
    ],
)
def test_an_unfit_configuration_is_refused_with_its_field(
    field: str, value: Any, says: str, tmp_path: Path
) -> None:
    head = dflash(CONFIG, target_layers=[1])
    *within, name = field.split(".")
    fields = head.config[within[0]] if within else head.config
    fields[name] = value
    with pytest.raises(ValueError, match=rf"config\.json: {re.escape(field)} .*{says}"):
        check(head, tmp_path)


@pytest.mark.parametrize(
    "tensor", ["fc.weight", "hidden_norm.weight", "layers.1.self_attn.k_norm.weight"]
)
def test_a_missing_tensor_is_refused_with_its_name(tensor: str, tmp_path: Path) -> None:
    head = dflash(CONFIG, target_layers=[1])
    del head.tensors[tensor]
    with pytest.raises(ValueError, match=rf"tensor {tensor} .* is missing"):
        check(head, tmp_path)


def test_the_width_of_fc_follows_from_the_number_of_layers(tmp_path: Path) -> None:
    head = dflash(CONFIG, target_layers=[1, 3])
    head.config["dflash_config"]["target_layer_ids"] = [1, 3, 5]
    with pytest.raises(ValueError, match=r"fc\.weight must have shape \[32, 96\]"):
        check(head, tmp_path)


def test_a_k_that_does_not_fit_into_the_block_is_refused(tmp_path: Path) -> None:
    head = dflash(CONFIG, target_layers=[1], block_size=8)
    check(head, tmp_path / "fits", num_speculative_tokens=7)
    with pytest.raises(ValueError, match="num_speculative_tokens must be at most 7, the block"):
        check(head, tmp_path / "large", num_speculative_tokens=8)


def test_the_layers_that_it_reads_are_counted_from_zero() -> None:
    assert aux_layers(dflash(CONFIG, target_layers=[4, 0]).config) == (1, 5)
    assert aux_layers({"dflash_config": {"mask_token_id": MASK_TOKEN}}) == ()


def test_drafts_lag_and_weights_are_those_of_the_hosts_head() -> None:
    check_it_drafts_with_the_hosts_head(
        parse_spec({"name": "dflash", "model": "a/b"}), "block_head"
    )
