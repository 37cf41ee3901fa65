"""The wide twin computes the same function as the target."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from demo import model_path
from demo.wide import write_wide_twin

WIDTH = 1536


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A twin twice as wide as the target."""
    return write_wide_twin(tmp_path_factory.mktemp("wide"), WIDTH)


@torch.inference_mode()
def test_logits_equal_the_targets(twin: Path) -> None:
    narrow = LlamaForCausalLM.from_pretrained(model_path("target"), dtype=torch.float32)
    wide = LlamaForCausalLM.from_pretrained(twin, dtype=torch.float32)
    ids = torch.randint(6, 2048, (2, 64), generator=torch.Generator().manual_seed(1))
    expected, got = narrow(input_ids=ids).logits, wide(input_ids=ids).logits
    # The added terms are exact zeros, but a wider sum may be blocked in another order.
    torch.testing.assert_close(got, expected, rtol=0, atol=2e-4)
    assert torch.equal(got.argmax(-1), expected.argmax(-1))


def test_added_neurons_have_scaled_inputs_and_zero_outputs(twin: Path) -> None:
    narrow = load_file(model_path("target") / "model.safetensors")
    for name, weight in load_file(twin / "model.safetensors").items():
        if name.endswith("down_proj.weight"):
            assert weight.shape[1] == WIDTH
            assert torch.equal(weight[:, :768], narrow[name])
            assert not weight[:, 768:].any()
        elif name.endswith(("gate_proj.weight", "up_proj.weight")):
            assert torch.equal(weight[:768], narrow[name])
            ratio = weight[768:].float().std() / narrow[name].float().std()
            assert 0.8 < float(ratio) < 1.25
        else:
            assert torch.equal(weight, narrow[name])


def test_narrower_than_the_target_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="below the source's 768"):
        write_wide_twin(tmp_path, 100)


def test_same_weights_each_time(tmp_path: Path, twin: Path) -> None:
    again = write_wide_twin(tmp_path, WIDTH)
    first, second = (load_file(p / "model.safetensors") for p in (twin, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
