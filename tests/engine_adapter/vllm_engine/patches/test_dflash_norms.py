"""The context of a DFlash head on a CPU is normalized with each layer's own weights."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.dflash_norms import patch_context_norms


def test_each_layer_has_its_own_weights() -> None:
    weights = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    model: Any = SimpleNamespace(_k_norm_weights=weights, _rms_norm_eps=0.0)
    patch_context_norms(model)
    keys = torch.tensor([3.0, 4.0]).expand(2, 1, 1, 2)
    root = 12.5**-0.5
    expected = torch.tensor([[3.0, 8.0], [9.0, 20.0]]) * root
    assert torch.allclose(model._normalize_context_k(keys)[:, 0, 0], expected)


@pytest.mark.needs_vllm
def test_vllms_own_kernel_has_the_defect() -> None:
    """If it no longer has, the patch can go: see `DEFECTS`. It is in vLLM's compiled code."""
    compat.current_platform.import_kernels()
    heads = import_module("vllm.model_executor.models.qwen3_dflash")
    model = SimpleNamespace(_k_norm_weights=torch.tensor([[1.0] * 8, [3.0] * 8]), _rms_norm_eps=0.0)
    got = heads.DFlashQwen3Model._normalize_context_k(model, torch.ones(2, 1, 1, 8))
    has_own_weights = torch.allclose(got[1], torch.full((8,), 3.0))
    assert has_own_weights is not compat.has_defect("context_norms")


def test_the_dtype_stays() -> None:
    model: Any = SimpleNamespace(
        _k_norm_weights=torch.ones(2, 4, dtype=torch.bfloat16), _rms_norm_eps=1e-5
    )
    patch_context_norms(model)
    keys = torch.randn(2, 3, 1, 4).to(torch.bfloat16)
    assert model._normalize_context_k(keys).dtype == torch.bfloat16
