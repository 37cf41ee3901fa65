"""XPress checkpoints: the published layout passes, others are refused with the field."""

from pathlib import Path
from typing import Any

import pytest
import torch

from engine_adapter.proposers.contract import TargetSizes
from engine_adapter.proposers.detection import method_of
from engine_adapter.proposers.methods import get_method, parse_spec
from tests.engine_adapter.proposers.block_layouts import with_fewer_tokens
from tests.engine_adapter.proposers.heads import Heads
from tests.engine_adapter.proposers.test_dflash import CONFIG
from tests.engine_adapter.proposers.xpress_heads import xpress

TARGET = TargetSizes(hidden_size=32, vocab_size=96, num_layers=6)


def check(head: Heads, folder: Path, **fields: Any) -> None:
    spec = parse_spec({"name": "dflash", "model": head.write(folder), **fields})
    get_method("dflash").check(spec, TARGET)


def test_the_published_layout_passes(tmp_path: Path) -> None:
    check(xpress(CONFIG, target_layers=[1, 3, 5]), tmp_path)
    assert method_of(str(tmp_path)) == "dflash"


def test_sizes_that_are_missing_are_those_of_vllm(tmp_path: Path) -> None:
    head = xpress(CONFIG, target_layers=[1], block_size=16, rank=256, inner=512)
    for name in ("block_size", "rank", "mlp_hidden", "topc"):
        del head.config[f"xpress_{name}"]
    check(head, tmp_path, num_speculative_tokens=15)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("xpress_block_size", 1, "xpress_block_size must be an integer of at least 2"),
        ("xpress_rank", 0, "xpress_rank must be an integer of at least 1"),
        ("xpress_mlp_hidden", "20", "xpress_mlp_hidden must be an integer of at least 1"),
        ("xpress_topc", -1, "xpress_topc must be an integer of at least 0"),
        ("xpress_topc", 97, "xpress_topc must be at most 96"),
        ("sample_from_anchor", True, "sample_from_anchor must be false"),
    ],
)
def test_an_unfit_configuration_is_refused_with_its_field(
    field: str, value: Any, says: str, tmp_path: Path
) -> None:
    head = xpress(CONFIG, target_layers=[1])
    head.config[field] = value
    with pytest.raises(ValueError, match=rf"config\.json: {says}"):
        check(head, tmp_path)


def test_more_drafts_than_the_refiner_mixes_are_refused(tmp_path: Path) -> None:
    head = xpress(CONFIG, target_layers=[1], block_size=6)
    head.config["block_size"] = 16
    with pytest.raises(ValueError, match="must be at most 5, xpress_block_size without the token"):
        check(head, tmp_path, num_speculative_tokens=6)


def test_a_head_that_drafts_fewer_tokens_is_refused(tmp_path: Path) -> None:
    head = with_fewer_tokens(xpress(CONFIG, target_layers=[1]), 40)
    with pytest.raises(ValueError, match="draft_vocab_size must be 96, which is the target's"):
        check(head, tmp_path)


@pytest.mark.parametrize(
    "name", ["w1.weight", "w2.weight", "down_g.weight", "mix.L", "mlp.down_proj.weight"]
)
def test_each_tensor_of_the_refiner_is_needed_in_its_shape(name: str, tmp_path: Path) -> None:
    head = xpress(CONFIG, target_layers=[1])
    tensor = head.tensors.pop(f"xpress_head.{name}")
    with pytest.raises(ValueError, match=f"xpress_head.{name}"):
        check(head, tmp_path / "missing")
    head.tensors[f"xpress_head.{name}"] = torch.cat([tensor, tensor])
    with pytest.raises(ValueError, match=f"xpress_head.{name}"):
        check(head, tmp_path / "other")
