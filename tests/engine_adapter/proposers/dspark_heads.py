"""Checkpoints of random DSpark heads, in the layout that is published."""

from collections.abc import Sequence
from typing import Any

import torch

from tests.engine_adapter.proposers.dflash_heads import MASK_TOKEN, dflash
from tests.engine_adapter.proposers.heads import Heads


def dspark(
    config: dict[str, Any],
    *,
    target_layers: Sequence[int],
    layers: int = 2,
    block_size: int = 7,
    rank: int = 8,
    from_newest: bool = True,
    seed: int = 0,
) -> Heads:
    """A DSpark head for a target of the given `config.json`; both ends are the target's.

    Its Markov head decides about as many drafts as the rest of it.
    """
    made = dflash(config, target_layers=target_layers, layers=layers, seed=seed)
    generator = torch.Generator().manual_seed(2000 + seed)
    vocabulary, hidden = config["vocab_size"], config["hidden_size"]

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=generator)

    made.tensors |= {
        "markov_head.markov_w1.weight": matrix(vocabulary, rank) * rank**-0.5,
        "markov_head.markov_w2.weight": matrix(vocabulary, rank) * 3,
        "confidence_head.proj.weight": matrix(1, hidden + rank),
        "confidence_head.proj.bias": torch.zeros(1),
    }
    del made.config["dflash_config"]
    made.config |= {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": block_size,
        "mask_token_id": MASK_TOKEN,
        "target_layer_ids": list(target_layers),
        "markov_rank": rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
    }
    if not from_newest:
        made.config["sample_from_anchor"] = False
    return made
