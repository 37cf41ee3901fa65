"""EAGLE and EAGLE-3: one more decoder layer of the target's shape, run on its own outputs.

EAGLE (arXiv:2401.15077) takes the token's embedding and the target's last hidden state and outputs
the next hidden state. EAGLE-3 (arXiv:2503.01840) takes states of three layers and has its own
output matrix, over the more frequent tokens only. Both are trained as they run, each step on the
output of the step before. The layouts are those that vLLM 0.32 loads. The embedding is the
target's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from demo.training.architecture import SHAPES, Shape, llama_config
from demo.training.heads.teacher import AUX_LAYERS, TeacherBatch

STEPS = 4
DRAFT_VOCABULARY = 1536


class Attention(nn.Module):
    """Causal attention of chains: each sees the text up to its start, then its own steps."""

    def __init__(self, shape: Shape, inputs: int) -> None:
        super().__init__()
        self._size, self._groups = shape.head_dim, shape.heads // shape.kv_heads
        kv = shape.kv_heads * shape.head_dim
        self.q_proj = nn.Linear(inputs, shape.heads * shape.head_dim, bias=False)
        self.k_proj = nn.Linear(inputs, kv, bias=False)
        self.v_proj = nn.Linear(inputs, kv, bias=False)
        self.o_proj = nn.Linear(shape.heads * shape.head_dim, shape.hidden, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        rotation: tuple[torch.Tensor, torch.Tensor],
        memory: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        """Output [rows, length, hidden] of step `len(memory)` of every chain.

        Args:
            x: inputs [rows, length, inputs], one chain per position.
            rotation: cosines and sines of the step's positions.
            memory: keys and values of the steps before, [rows, heads, length, size]; this step's
                are appended.
        """
        q, k, v = (self._split(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
        q, k = apply_rotary_pos_emb(q, k, *rotation)
        memory.append((k.repeat_interleave(self._groups, 1), v.repeat_interleave(self._groups, 1)))
        (text_k, text_v), chain_memory = memory[0], memory[1:]
        length = x.shape[1]
        future = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = (q @ text_k.transpose(-1, -2)).masked_fill(future, float("-inf"))
        scores = torch.cat([scores, *((q * k).sum(-1, keepdim=True) for k, _ in chain_memory)], -1)
        weights = (scores.float() * self._size**-0.5).softmax(-1).to(v.dtype)
        out = weights[..., :length] @ text_v
        for index, (_, value) in enumerate(chain_memory):
            out = out + weights[..., length + index, None] * value
        return torch.as_tensor(self.o_proj(out.transpose(1, 2).flatten(2)))

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(*x.shape[:2], -1, self._size).transpose(1, 2)


class Layer(nn.Module):
    """A Llama decoder layer without the norm before its attention."""

    def __init__(self, config: LlamaConfig, inputs: int) -> None:
        super().__init__()
        self.self_attn = Attention(SHAPES["target"], inputs)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = LlamaMLP(config)  # type: ignore[no-untyped-call]

    def feed(self, x: torch.Tensor) -> torch.Tensor:
        """The layer's second half: `x` [..., hidden] plus the MLP's output."""
        return torch.as_tensor(x + self.mlp(self.post_attention_layernorm(x)))


class WideLayer(Layer):
    """EAGLE-3's layer: its input is the normalised token and state, concatenated."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config, 2 * config.hidden_size)
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.rms_norm_eps)


class Eagle(nn.Module):
    """EAGLE for a Llama; it predicts hidden states after the target's norm, so it has no norm."""

    steps = STEPS

    def __init__(self, embedding: torch.Tensor) -> None:
        """Use the target's tied `embedding` [vocabulary, hidden], which is not trained."""
        super().__init__()
        self._embedding, self._config = embedding, llama_config("target")
        self._rotary = LlamaRotaryEmbedding(self._config)
        hidden = self._config.hidden_size
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.layer = Layer(self._config, hidden)
        with torch.no_grad():
            self.fc.weight.copy_(torch.cat([torch.zeros(hidden, hidden), torch.eye(hidden)], 1))

    def forward(self, batch: TeacherBatch) -> Iterator[torch.Tensor]:
        """Yields the logits [chains, tokens] of each step; the input tokens are the text's."""
        state, length = batch.hidden, batch.hidden.shape[1]
        memory: list[tuple[torch.Tensor, torch.Tensor]] = []
        for step in range(STEPS):
            token = self._embedding[batch.ids[:, step + 1 : step + 1 + length]]
            seen = self._attend(token, state, torch.arange(length)[None] + step, memory)
            output = self.layer.feed(batch.states(seen, step))
            yield batch.logits(output, self._embedding)
            state = batch.spread(output, step)

    def _attend(
        self,
        token: torch.Tensor,
        state: torch.Tensor,
        positions: torch.Tensor,
        memory: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        layer = self.layer
        x = self.fc(torch.cat([token, state], -1))
        return torch.as_tensor(x + layer.self_attn(x, self._rotary(x, positions), memory))

    def config(self) -> dict[str, Any]:
        """The contents of `config.json`: the target's, with one layer."""
        return _config(self._config, "EagleLlamaForCausalLM")

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Tensors by their names in the published layout."""
        return {name.replace("layer.", "layers.0.", 1): t for name, t in self.state_dict().items()}


class Eagle3(nn.Module):
    """EAGLE-3 for a Llama."""

    steps = STEPS

    def __init__(self, embedding: torch.Tensor, frequent: torch.Tensor) -> None:
        """Use the target's tied `embedding`, which is not trained.

        Args:
            embedding: fp32 [vocabulary, hidden].
            frequent: int64 [DRAFT_VOCABULARY], ascending ids of the tokens that it can draft.
        """
        super().__init__()
        self._embedding, self._config = embedding, llama_config("target")
        self._frequent = frequent
        self._rotary = LlamaRotaryEmbedding(self._config)
        hidden = self._config.hidden_size
        self.fc = nn.Linear(len(AUX_LAYERS) * hidden, hidden, bias=False)
        self.midlayer = WideLayer(self._config)
        self.norm = LlamaRMSNorm(hidden, self._config.rms_norm_eps)
        self.lm_head = nn.Linear(hidden, len(frequent), bias=False)
        with torch.no_grad():
            self.lm_head.weight.copy_(embedding[frequent])

    def forward(self, batch: TeacherBatch) -> Iterator[torch.Tensor]:
        """Yields the logits [chains, tokens] of each step; the input tokens are the text's."""
        state, length = self.fc(batch.aux), batch.aux.shape[1]
        memory: list[tuple[torch.Tensor, torch.Tensor]] = []
        for step in range(STEPS):
            token = self._embedding[batch.ids[:, step + 1 : step + 1 + length]]
            seen = self._attend(token, state, torch.arange(length)[None] + step, memory)
            output = self.midlayer.feed(batch.states(seen, step))
            yield self._logits(batch, self.norm(output))
            state = batch.spread(output, step)

    def _attend(
        self,
        token: torch.Tensor,
        state: torch.Tensor,
        positions: torch.Tensor,
        memory: list[tuple[torch.Tensor, torch.Tensor]],
    ) -> torch.Tensor:
        layer = self.midlayer
        x = torch.cat([layer.input_layernorm(token), layer.hidden_norm(state)], -1)
        return torch.as_tensor(state + layer.self_attn(x, self._rotary(x, positions), memory))

    def _logits(self, batch: TeacherBatch, states: torch.Tensor) -> torch.Tensor:
        matrix = torch.zeros_like(self._embedding).index_copy(
            0, self._frequent, self.lm_head.weight
        )
        cannot = ~torch.isin(batch.token_subset, self._frequent)
        return batch.logits(states, matrix).masked_fill(cannot, float("-inf"))

    def config(self) -> dict[str, Any]:
        """The contents of `config.json`: the target's, with one layer and a smaller vocabulary."""
        return _config(self._config, "LlamaForCausalLMEagle3") | {
            "draft_vocab_size": len(self._frequent),
            "tie_word_embeddings": False,
            "eagle_aux_hidden_state_layer_ids": list(AUX_LAYERS),
        }

    def checkpoint(self) -> dict[str, torch.Tensor]:
        """Tensors by their names in the published layout; `d2t` is the offset of a drafted id."""
        allowed = torch.zeros(len(self._embedding), dtype=torch.bool)
        allowed[self._frequent] = True
        return dict(self.state_dict()) | {
            "d2t": self._frequent - torch.arange(len(self._frequent)),
            "t2d": allowed,
        }


def _config(target: LlamaConfig, architecture: str) -> dict[str, Any]:
    values = {**target.to_diff_dict(), "architectures": [architecture], "num_hidden_layers": 1}
    return {name: value for name, value in values.items() if name != "transformers_version"}
