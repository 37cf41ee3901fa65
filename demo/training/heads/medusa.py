"""Medusa heads: residual blocks on the target's last hidden state (arXiv:2401.10774).

The layout is vLLM's, with one output matrix for all heads (`original_lm_head`). Here
this matrix has half of the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from demo.training.heads.teacher import TeacherBatch

NUM_HEADS, NUM_LAYERS = 4, 2


class ResidualBlock(nn.Module):
    """`NUM_LAYERS` times x + SiLU(W x); W is zero at first, so that it begins as the identity."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        layers = [nn.Linear(hidden, hidden, bias=False) for _ in range(NUM_LAYERS)]
        for layer in layers:
            nn.init.zeros_(layer.weight)
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float [..., hidden] to the same shape."""
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class Medusa(nn.Module):
    """`NUM_HEADS` heads; head i predicts the token i + 2 positions after the hidden state's."""

    steps = NUM_HEADS

    def __init__(self, embedding: torch.Tensor) -> None:
        """Initialise the output matrix with the target's tied `embedding` [vocabulary, hidden]."""
        super().__init__()
        vocabulary, hidden = embedding.shape
        self.blocks = nn.ModuleList(ResidualBlock(hidden) for _ in range(NUM_HEADS))
        self.lm_head = nn.Linear(hidden, vocabulary, bias=False)
        with torch.no_grad():
            self.lm_head.weight.copy_(embedding)

    def forward(self, batch: TeacherBatch) -> Iterator[torch.Tensor]:
        """Yields the logits [chains, tokens] of each head."""
        for step, block in enumerate(self.blocks):
            state = block(batch.states(batch.hidden, step))
            yield batch.logits(state, self.lm_head.weight)

    def config(self) -> dict[str, Any]:
        """The contents of `config.json`."""
        vocabulary, hidden = self.lm_head.weight.shape
        return {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": hidden,
            "vocab_size": vocabulary,
            "truncated_vocab_size": vocabulary,
            "num_heads": NUM_HEADS,
            "num_hidden_layers": NUM_LAYERS,
            "medusa_fc_bias": False,
            "original_lm_head": True,
        }

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Tensors by their names in the published layout."""
        blocks = {f"blocks.{name}": tensor for name, tensor in self.blocks.state_dict().items()}
        return {**blocks, "lm_heads.0.weight": self.lm_head.weight.detach()}
