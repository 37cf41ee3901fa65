"""DFlash2 checkpoints: the published layout passes, others are refused with the field."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_adapter.proposers.contract import TargetSizes
from engine_adapter.proposers.detection import method_of
from engine_adapter.proposers.methods import get_method, parse_spec
from engine_adapter.proposers.speculators import read_speculator
from tests.engine_adapter.proposers.block_layouts import as_speculators, with_fewer_tokens
from tests.engine_adapter.proposers.dflash2_heads import SCALES, dflash2
from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.test_dflash import CONFIG

TARGET = TargetSizes(hidden_size=32, vocab_size=96, num_layers=6)
LAYER, SELECTOR = "layers.1.attention_conv.", "candidate_selector."


def check(head: Heads, folder: Path, **fields: Any) -> None:
    spec = parse_spec({"name": "dflash", "model": head.write(folder), **fields})
    get_method("dflash").check(spec, TARGET)


def test_the_published_layout_passes(tmp_path: Path) -> None:
    head = dflash2(CONFIG, target_layers=[1, 3, 5])
    check(head, tmp_path)
    assert method_of(str(tmp_path)) == "dflash"


def test_fields_that_scale_may_be_missing(tmp_path: Path) -> None:
    head = dflash2(CONFIG, target_layers=[1])
    for name in SCALES:
        del head.config["dflash_config"][name]
    check(head, tmp_path)


def test_the_format_of_speculators_passes(tmp_path: Path) -> None:
    """It is a head of the method `dflash`, as in vLLM."""
    head = as_speculators(dflash2(CONFIG, target_layers=[1, 3]), "dflash2")
    check(head, tmp_path)
    assert method_of(str(tmp_path)) == "dflash"
    speculator = read_speculator(str(tmp_path))
    assert speculator is not None
    assert parse_spec(speculator.proposer).method == "dflash"


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("conv_kernel_size", None, "conv_kernel_size is missing"),
        ("conv_kernel_size", 9, "conv_kernel_size must be at most 8, the tokens of a block"),
        ("conv_group_size", 5, "conv_group_size must divide 32, the hidden size"),
        ("conv_group_size", 0, "conv_group_size must be an integer of at least 1"),
        ("selector_rank", "8", "selector_rank must be an integer of at least 1"),
        ("selector_top_k", 97, "selector_top_k must be at most 96"),
    ],
)
@pytest.mark.parametrize("published", [True, False], ids=["published", "speculators"])
def test_an_unfit_configuration_is_refused_with_its_field(
    field: str, value: Any, says: str, published: bool, tmp_path: Path
) -> None:
    head = dflash2(CONFIG, target_layers=[1])
    if not published:
        head = as_speculators(head, "dflash2")
    fields = head.config["dflash_config"] if published else head.config
    fields[field] = value
    within = r"dflash_config\." if published else ""
    with pytest.raises(ValueError, match=rf"config\.json: {within}{says}"):
        check(head, tmp_path)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("input_embedding_scale", 0, "must be above 0"),
        ("output_multiplier", "1", "must be a number"),
        ("output_multiplier", float("inf"), "must be a number"),
        ("final_logit_softcapping", "no", "must be a number"),
    ],
)
def test_an_unfit_scale_is_refused_with_its_field(
    field: str, value: Any, says: str, tmp_path: Path
) -> None:
    """The format of `speculators` has no such fields."""
    head = dflash2(CONFIG, target_layers=[1])
    head.config["dflash_config"][field] = value
    with pytest.raises(ValueError, match=rf"config\.json: dflash_config\.{field} {says}"):
        check(head, tmp_path)


@pytest.mark.parametrize(
    "tensor",
    [
        *(f"{LAYER}base_kernel", f"{LAYER}kernel_projection.weight"),
        *(f"{SELECTOR}successor_codebook", f"{SELECTOR}hidden_projection.weight"),
    ],
)
def test_a_missing_tensor_is_refused_with_its_name(tensor: str, tmp_path: Path) -> None:
    head = dflash2(CONFIG, target_layers=[1])
    del head.tensors[tensor]
    with pytest.raises(ValueError, match=rf"tensor {tensor} .* is missing"):
        check(head, tmp_path)


def test_the_number_of_coefficients_is_that_of_the_configuration(tmp_path: Path) -> None:
    head = dflash2(CONFIG, target_layers=[1], taps=3, group=8)
    head.config["dflash_config"]["conv_group_size"] = 16
    with pytest.raises(ValueError, match=r"kernel_projection\.weight must have shape \[12, 32\]"):
        check(head, tmp_path)


def test_a_head_of_dflash_has_no_selector(tmp_path: Path) -> None:
    head = dflash2(CONFIG, target_layers=[1])
    head.config["architectures"] = ["DFlashDraftModel"]
    with pytest.raises(ValueError, match=r"tensor candidate_selector\.\S+ is not expected"):
        check(head, tmp_path)


def test_candidates_are_tokens_of_the_whole_vocabulary(tmp_path: Path) -> None:
    """vLLM takes their places for tokens, also where the head has fewer."""
    head = with_fewer_tokens(dflash2(CONFIG, target_layers=[1]), 40)
    with pytest.raises(ValueError, match="draft_vocab_size must be 96, which is the target's"):
        check(head, tmp_path)


def test_a_block_has_room_for_the_taps_of_a_convolution(tmp_path: Path) -> None:
    head = dflash2(CONFIG, target_layers=[1], taps=4)
    check(head, tmp_path / "fits", num_speculative_tokens=3)
    with pytest.raises(ValueError, match="conv_kernel_size must be at most 3, the tokens"):
        check(head, tmp_path / "small", num_speculative_tokens=2)


def test_the_layout_has_tensors_of_the_published_names() -> None:
    tensors = dflash2(CONFIG, target_layers=[1], layers=1, taps=3, group=8, rank=5).tensors
    assert tensors["layers.0.mlp_conv.base_kernel"].shape == torch.Size([2, 3, 32])
    assert tensors["layers.0.mlp_conv.kernel_projection.weight"].shape == torch.Size([24, 32])
    assert tensors["candidate_selector.predecessor_codebook"].shape == torch.Size([96, 5])
