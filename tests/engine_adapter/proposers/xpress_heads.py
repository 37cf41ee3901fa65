"""Checkpoints of random XPress heads, in the layout that is published."""

from collections.abc import Sequence
from typing import Any

import torch

from tests.engine_adapter.proposers.dflash_heads import dflash
from tests.engine_adapter.proposers.heads import Heads


def xpress(
    config: dict[str, Any],
    *,
    target_layers: Sequence[int],
    layers: int = 2,
    block_size: int = 8,
    rank: int = 12,
    inner: int = 20,
    candidates: int = 6,
    seed: int = 0,
) -> Heads:
    """An XPress head for a target of the given `config.json`; both ends are the target's.

    Its refiner decides about as many drafts as the rest of it.

    Args:
        inner: the width of the refiner's MLP.
        candidates: the tokens of a place that get a bias; 0 for all tokens.
    """
    head = dflash(
        config, target_layers=target_layers, layers=layers, block_size=block_size, seed=seed
    )
    generator = torch.Generator().manual_seed(5000 + seed)
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator) * columns**-0.5

    refiner = {
        "w1.weight": matrix(vocabulary, rank) * rank**0.5,
        "w2.weight": matrix(vocabulary, rank) * 2,
        "down_h.weight": matrix(rank, hidden),
        "down_g.weight": matrix(rank, hidden),
        "in_proj.weight": matrix(rank, 3 * rank),
        # The loader drops what a place would see of later ones.
        "mix.L": torch.randn(rank, block_size, block_size, generator=generator) * 0.5,
        "mlp.gate_proj.weight": matrix(inner, rank),
        "mlp.up_proj.weight": matrix(inner, rank),
        "mlp.down_proj.weight": matrix(rank, inner),
    }
    head.tensors |= {f"xpress_head.{name}": tensor for name, tensor in refiner.items()}
    head.config |= {
        "architectures": ["Qwen3XPressModel"],
        "sample_from_anchor": False,
        "xpress_block_size": block_size,
        "xpress_rank": rank,
        "xpress_mlp_hidden": inner,
        "xpress_num_passes": 6,
        "xpress_topc": candidates,
    }
    return head
