"""Linear layers on a CPU, of an input that is a transposed matrix.

oneDNN's kernel refuses an input whose rows are not contiguous. Llama 4 transposes the patches of a
picture (`Llama4UnfoldConvolution` in `model_executor/models/mllama4.py`), so its first picture
ended the engine.
"""

from functools import wraps
from typing import Any

import torch

from engine_adapter.vllm_engine import compat


def patch_linear_input() -> None:
    """Gives the kernel contiguous rows."""
    multiply = compat.custom_ops.onednn_mm
    if getattr(multiply, "__module__", None) == __name__:
        return

    @wraps(multiply, assigned=())
    def onednn_mm(handler: Any, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        rows = x if x.stride(-1) == 1 else x.contiguous()
        product: torch.Tensor = multiply(handler, rows, bias)
        return product

    compat.custom_ops.onednn_mm = onednn_mm
