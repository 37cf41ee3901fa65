"""vLLM's linear layers on a CPU, of a transposed input."""

import inspect

import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.linear_input import patch_linear_input

pytestmark = pytest.mark.needs_vllm


@pytest.mark.parametrize("is_transposed", [False, True])
def test_a_product_is_that_of_pytorch(monkeypatch: pytest.MonkeyPatch, is_transposed: bool) -> None:
    monkeypatch.setattr(compat.custom_ops, "onednn_mm", compat.custom_ops.onednn_mm)  # restored
    patch_linear_input()
    patch_linear_input()
    weight, bias, x = torch.randn(48, 32), torch.randn(48), _input(is_transposed)
    handler = compat.custom_ops.create_onednn_mm(weight.t(), 32)
    product = compat.custom_ops.onednn_mm(handler, x, bias)
    torch.testing.assert_close(product, torch.nn.functional.linear(x, weight, bias))


def test_vllms_own_product_has_the_defect() -> None:
    """If it no longer has, the patch can go: see `DEFECTS`."""
    handler = compat.custom_ops.create_onednn_mm(torch.randn(48, 32).t(), 32)
    multiply = inspect.unwrap(compat.custom_ops.onednn_mm)
    assert compat.has_defect("transposed_input")
    with pytest.raises(RuntimeError, match="stride"):
        multiply(handler, _input(True), None)


def _input(is_transposed: bool) -> torch.Tensor:
    """Float [1, 20, 32]."""
    return torch.randn(1, 32, 20).transpose(1, 2) if is_transposed else torch.randn(1, 20, 32)
