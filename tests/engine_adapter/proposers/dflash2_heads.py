"""Checkpoints of random DFlash2 heads, in the layout that is published."""

from collections.abc import Sequence
from typing import Any

import torch

from tests.engine_adapter.proposers.dflash_heads import dflash
from tests.engine_adapter.proposers.heads import Heads

SCALES: dict[str, float] = {
    "input_embedding_scale": 1.5,
    "output_multiplier": 0.5,
    "final_logit_softcapping": 3.0,
}
"""The fields of `dflash_config` that may be missing."""


def dflash2(
    config: dict[str, Any],
    *,
    target_layers: Sequence[int],
    layers: int = 2,
    block_size: int = 8,
    taps: int = 3,
    group: int = 8,
    rank: int = 8,
    candidates: int = 6,
    seed: int = 0,
) -> Heads:
    """A DFlash2 head for a target of the given `config.json`; both ends are the target's.

    Its convolutions and its selector decide about as many drafts as the rest of it.
    """
    head = dflash(
        config, target_layers=target_layers, layers=layers, block_size=block_size, seed=seed
    )
    generator = torch.Generator().manual_seed(4000 + seed)
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    selector = {
        "predecessor_codebook": normal(vocabulary, rank),
        "successor_codebook": normal(vocabulary, rank),
        "hidden_projection.weight": normal(rank, hidden) * hidden**-0.5,
    }
    head.tensors |= {f"candidate_selector.{name}": tensor for name, tensor in selector.items()}
    for i in range(layers):
        for part in ("attention_conv", "mlp_conv"):
            projection = normal(2 * taps * hidden // group, hidden) * 0.5 * hidden**-0.5
            head.tensors |= {
                f"layers.{i}.{part}.base_kernel": normal(2, taps, hidden) * taps**-0.5,
                f"layers.{i}.{part}.kernel_projection.weight": projection,
            }
    head.config["architectures"] = ["DFlash2DraftModel"]
    head.config["dflash_config"] |= {
        "conv_kernel_size": taps,
        "conv_group_size": group,
        "selector_rank": rank,
        "selector_top_k": candidates,
        **SCALES,
    }
    return head
