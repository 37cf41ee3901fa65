"""DSpark checkpoints: the published layout passes, others are refused with the field."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_adapter.proposers.contract import TargetSizes
from engine_adapter.proposers.dspark import from_newest
from engine_adapter.proposers.eagle import aux_layers
from engine_adapter.proposers.methods import get_method, parse_spec
from tests.engine_adapter.proposers.block_layouts import (
    as_speculators,
    move_into_layer,
    with_fewer_tokens,
)
from tests.engine_adapter.proposers.dspark_heads import dspark
from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.host_head import check_it_drafts_with_the_hosts_head
from tests.engine_adapter.proposers.test_dflash import CONFIG

TARGET = TargetSizes(hidden_size=32, vocab_size=96, num_layers=6)


def check(head: Heads, folder: Path, **fields: Any) -> None:
    spec = parse_spec({"name": "dspark", "model": head.write(folder), **fields})
    get_method("dspark").check(spec, TARGET)


@pytest.mark.parametrize("first", [True, False], ids=["from the newest token", "from a mask"])
def test_the_published_layout_passes(first: bool, tmp_path: Path) -> None:
    head = dspark(CONFIG, target_layers=[1, 3, 5], block_size=8, from_newest=first)
    check(head, tmp_path)
    assert from_newest(head.config) is first


def test_ends_of_its_own_are_allowed(tmp_path: Path) -> None:
    head = dspark(CONFIG, target_layers=[0])
    ends = ("embed_tokens.weight", "lm_head.weight")
    head.tensors |= {name: torch.zeros(96, 32) for name in ends}
    check(head, tmp_path)


def test_the_head_that_estimates_acceptance_may_be_missing(tmp_path: Path) -> None:
    head = dspark(CONFIG, target_layers=[0])
    for name in ("weight", "bias"):
        del head.tensors[f"confidence_head.proj.{name}"]
    head.config["enable_confidence_head"] = False
    check(head, tmp_path)


@pytest.mark.parametrize("drafted", [96, 40])
def test_the_format_of_speculators_passes(drafted: int, tmp_path: Path) -> None:
    head = dspark(CONFIG, target_layers=[1, 3, 5])
    if drafted < 96:
        head = with_fewer_tokens(head, drafted)
        assert head.tensors["markov_head.markov_w2.weight"].shape == (40, 8)
    check(as_speculators(head, "dspark"), tmp_path)


def test_the_anchor_is_not_read_among_the_fields_of_the_layers(tmp_path: Path) -> None:
    """As in vLLM: the first mask gives the first draft then."""
    head = as_speculators(dspark(CONFIG, target_layers=[1], block_size=7), "dspark")
    move_into_layer(head, "sample_from_anchor")
    with pytest.raises(ValueError, match="num_speculative_tokens must be at most 6"):
        check(head, tmp_path, num_speculative_tokens=7)


def test_the_rank_may_be_among_the_fields_of_the_layers(tmp_path: Path) -> None:
    """vLLM takes it from there if it is not beside them."""
    head = as_speculators(dspark(CONFIG, target_layers=[1]), "dspark")
    move_into_layer(head, "markov_rank")
    check(head, tmp_path)


def test_in_the_format_of_speculators_a_mask_gives_the_first_draft_by_default(
    tmp_path: Path,
) -> None:
    """As vLLM reads it; elsewhere it is the newest token."""
    head = as_speculators(dspark(CONFIG, target_layers=[1], block_size=7), "dspark")
    check(head, tmp_path / "named", num_speculative_tokens=7)
    del head.config["sample_from_anchor"]
    with pytest.raises(ValueError, match="num_speculative_tokens must be at most 6"):
        check(head, tmp_path / "default", num_speculative_tokens=7)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("architectures", ["DFlashDraftModel"], r"must be \['Qwen3DSparkModel'\]"),
        ("hidden_size", 64, "must be 32, which is the target's hidden size"),
        ("vocab_size", 100, "must be 96, which is the target's vocabulary"),
        ("draft_vocab_size", 97, "must be at most 96"),
        ("mask_token_id", 96, r"must be a token in \[0, 96\)"),
        ("mask_token_id", None, r"must be a token in \[0, 96\)"),
        ("target_layer_ids", None, r"must be different layers in \[0, 6\)"),
        ("target_layer_ids", [6], r"must be different layers in \[0, 6\)"),
        ("layer_types", "sliding_attention", "must list full_attention and sliding_attention"),
        ("sample_from_anchor", "no", "must be true or false"),
        ("markov_head_type", "gated", 'must be "vanilla"'),
        ("dflash_config", {"mask_token_id": 3}, "must not be there"),
        ("markov_rank", 0, "must be an integer of at least 1"),
        ("block_size", 1, "must be an integer of at least 2"),
    ],
)
def test_an_unfit_configuration_is_refused_with_its_field(
    field: str, value: Any, says: str, tmp_path: Path
) -> None:
    head = dspark(CONFIG, target_layers=[1])
    head.config |= {field: value}
    with pytest.raises(ValueError, match=rf"config\.json: {field} .*{says}"):
        check(head, tmp_path)


def test_layers_may_have_a_window(tmp_path: Path) -> None:
    head = dspark(CONFIG, target_layers=[1])
    head.config |= {"layer_types": ["full_attention", "sliding_attention"]}
    with pytest.raises(ValueError, match="use_sliding_window must be true: layers have a window"):
        check(head, tmp_path / "without its size")
    head.config |= {"sliding_window": 64, "use_sliding_window": True}
    check(head, tmp_path)


@pytest.mark.parametrize("tensor", ["fc.weight", "markov_head.markov_w2.weight"])
def test_a_missing_tensor_is_refused_with_its_name(tensor: str, tmp_path: Path) -> None:
    head = dspark(CONFIG, target_layers=[1])
    del head.tensors[tensor]
    with pytest.raises(ValueError, match=rf"tensor {tensor} .* is missing"):
        check(head, tmp_path)


def test_the_rank_of_the_markov_head_is_that_of_the_configuration(tmp_path: Path) -> None:
    head = dspark(CONFIG, target_layers=[1], rank=8)
    head.config["markov_rank"] = 16
    with pytest.raises(ValueError, match=r"markov_w1\.weight must have shape \[96, 16\]"):
        check(head, tmp_path)


@pytest.mark.parametrize(("first", "most"), [(True, 7), (False, 6)])
def test_a_k_that_does_not_fit_into_the_block_is_refused(
    first: bool, most: int, tmp_path: Path
) -> None:
    head = dspark(CONFIG, target_layers=[1], block_size=7, from_newest=first)
    check(head, tmp_path / "fits", num_speculative_tokens=most)
    with pytest.raises(ValueError, match=f"num_speculative_tokens must be at most {most}, the"):
        check(head, tmp_path / "large", num_speculative_tokens=most + 1)


def test_the_layers_that_it_reads_are_counted_from_zero() -> None:
    assert aux_layers(dspark(CONFIG, target_layers=[4, 0]).config) == (1, 5)


def test_drafts_lag_and_weights_are_those_of_the_hosts_head() -> None:
    check_it_drafts_with_the_hosts_head(
        parse_spec({"name": "dspark", "model": "a/b"}), "block_head"
    )
