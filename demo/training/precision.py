"""The precision of matrix products in training."""

import torch


def mixed_precision() -> torch.autocast:
    """Matrix products in bfloat16, on a CPU that has instructions for them; else in float32.

    Without them torch computes a product in bfloat16 many times slower than in float32.
    """
    capabilities = torch.cpu.get_capabilities()
    has_bfloat16 = capabilities.get("avx512_bf16") or capabilities.get("amx_bf16")
    return torch.autocast("cpu", torch.bfloat16, enabled=bool(has_bfloat16))
