"""An MLP speculator: a recurrent state of the hidden state and each token (arXiv:2404.19124).

The layout is that of the `ibm-fms/*-accelerator` checkpoints, with tied weights: embedding,
output matrix, norm and all projections except the first are shared by all steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from demo.training.heads.teacher import TeacherBatch

N_PREDICT, INNER_DIM = 4, 384
EPS = 1e-6


class Norm(nn.Module):
    """Root mean square norm with scale and shift, as in the published checkpoints."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.bias = nn.Parameter(torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Float [..., size] to the same shape."""
        return rms(x) * self.weight + self.bias


def rms(x: torch.Tensor) -> torch.Tensor:
    """`x` divided by its root mean square along the last axis."""
    return x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + EPS)


class MlpSpeculator(nn.Module):
    """`N_PREDICT` steps from the target's last hidden state and the token after it."""

    steps = N_PREDICT

    def __init__(self, embedding: torch.Tensor) -> None:
        """Initialise from the target's `embedding` [vocabulary, hidden], which gives the sizes."""
        super().__init__()
        vocabulary, hidden = embedding.shape
        self.emb = nn.Embedding(vocabulary, INNER_DIM)
        self.first = nn.Linear(hidden, INNER_DIM, bias=False)
        self.later = nn.Linear(INNER_DIM, INNER_DIM, bias=False)
        self.head = nn.Linear(INNER_DIM, vocabulary, bias=False)
        self.ln = Norm(INNER_DIM)
        # Tokens with similar embeddings in the target begin with similar ones here.
        for matrix in (self.emb.weight, self.head.weight):
            nn.init.normal_(matrix, std=0.02)
            with torch.no_grad():
                matrix[:, :hidden] += embedding
        self._state_weight = 0.5 ** (0.5 / N_PREDICT)
        self._emb_weight = math.sqrt((1 - self._state_weight**2) * INNER_DIM / 2)

    def forward(self, batch: TeacherBatch) -> Iterator[torch.Tensor]:
        """Yields the logits [chains, tokens] of each step; the input tokens are the text's."""
        state = rms(batch.states(batch.hidden, 0)) / math.sqrt(2)
        for step in range(N_PREDICT):
            state = self.later(state[batch.continued[step]]) if step else self.first(state)
            token = self.emb(batch.tokens(step))
            state = state + token * (self._emb_weight / self._state_weight)
            state = F.gelu(self.ln(state))
            yield batch.logits(state, self.head.weight)

    def config(self) -> dict[str, Any]:
        """The contents of `config.json`."""
        return {
            "architectures": ["MLPSpeculatorPreTrainedModel"],
            "model_type": "mlp_speculator",
            "vocab_size": self.head.weight.shape[0],
            "emb_dim": self.first.weight.shape[1],
            "inner_dim": INNER_DIM,
            "n_predict": N_PREDICT,
            "n_candidates": 1,
            "top_k_tokens_per_head": [1] * N_PREDICT,
            "scale_input": True,
            "tie_weights": True,
        }

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Tensors by their names in the published layout."""
        return {
            "speculator.emb.0.weight": self.emb.weight.detach(),
            "speculator.proj.0.weight": self.first.weight.detach(),
            "speculator.proj.1.weight": self.later.weight.detach(),
            "speculator.head.0.weight": self.head.weight.detach(),
            "speculator.ln.0.weight": self.ln.weight.detach(),
            "speculator.ln.0.bias": self.ln.bias.detach(),
        }
