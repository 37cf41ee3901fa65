"""A DFlash or DSpark head in plain PyTorch, from published code: no KV cache, no batch.

Sources: arXiv 2602.06036, github.com/z-lab/dflash, github.com/deepseek-ai/DeepSpec.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import AutoModelForCausalLM


class PlainBlockHead:
    """A DFlash or DSpark head on a Llama target; every block is computed from the first token on.

    Args:
        target: the folder of the target.
        head: the folder of the head.
        k: drafts in a block.
        markov: whether the Markov head of a DSpark head is used.
        causal: whether a token of a block sees those before it only, which no published head does.
    """

    def __init__(
        self, target: Path, head: Path, k: int, *, markov: bool = True, causal: bool = False
    ) -> None:
        self._target = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        self._config: dict[str, Any] = json.loads((head / "config.json").read_text())
        tensors = load_file(head / "model.safetensors")
        self._w = {name.removesuffix(".weight"): tensor for name, tensor in tensors.items()}
        self._k, self._causal = k, causal
        is_dspark = self._config["architectures"] == ["Qwen3DSparkModel"]
        from_newest = is_dspark and self._config.get("sample_from_anchor", True)
        self._is_sequential = is_dspark and markov
        self._masks = k - 1 if from_newest else k

    @torch.inference_mode()
    def drafts(self, tokens: Sequence[int]) -> tuple[int, ...]:
        """The k tokens that follow `tokens`, greedily."""
        ids, fields = torch.tensor(tokens), self._config.get("dflash_config", self._config)
        outputs = self._target.model(ids[None, :-1], output_hidden_states=True)
        read = [outputs.hidden_states[i + 1][0] for i in sorted(fields["target_layer_ids"])]
        context = self._norm(torch.cat(read, dim=-1) @ self._w["fc"].T, "hidden_norm")
        masks = torch.full((self._masks,), fields["mask_token_id"])
        x = self._target.model.embed_tokens(torch.cat([ids[-1:], masks]))
        for i in range(self._config["num_hidden_layers"]):
            prefix = f"layers.{i}."
            x = x + self._attention(prefix, context, self._norm(x, f"{prefix}input_layernorm"))
            normed = self._norm(x, f"{prefix}post_attention_layernorm")
            gate, up = (self._linear(normed, f"{prefix}mlp.{part}_proj") for part in ("gate", "up"))
            x = x + self._linear(silu(gate) * up, f"{prefix}mlp.down_proj")
        states = self._norm(x[-self._k :], "norm")
        own = "lm_head" in self._w
        logits = self._linear(states, "lm_head") if own else self._target.lm_head(states)
        drafts: list[int] = []
        for row in logits:
            if self._is_sequential:
                before = self._w["markov_head.markov_w1"][[*tokens, *drafts][-1]]
                row = row + self._w["markov_head.markov_w2"] @ before
            best = int(row.argmax())
            drafts.append(best + int(self._w["d2t"][best]) if "d2t" in self._w else best)
        return tuple(drafts)

    def _attention(self, prefix: str, context: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        size, before = self._config["head_dim"], len(context)

        def heads(states: torch.Tensor, part: str) -> torch.Tensor:
            mapped = self._linear(states, f"{prefix}self_attn.{part}_proj")
            return mapped.unflatten(-1, (-1, size)).transpose(0, 1)

        both = torch.cat([context, x])
        q = self._rotated(self._norm(heads(x, "q"), f"{prefix}self_attn.q_norm"), before)
        k = self._rotated(self._norm(heads(both, "k"), f"{prefix}self_attn.k_norm"), 0)
        mask = torch.ones(len(x), len(both), dtype=torch.bool)
        mask = mask.tril(before) if self._causal else mask
        seen = scaled_dot_product_attention(q, k, heads(both, "v"), mask, enable_gqa=True)
        return self._linear(seen.transpose(0, 1).flatten(1), f"{prefix}self_attn.o_proj")

    def _rotated(self, x: torch.Tensor, first: int) -> torch.Tensor:
        positions = torch.arange(first, first + x.shape[1])
        cos, sin = self._target.model.rotary_emb(x, positions[None])
        left, right = x.chunk(2, dim=-1)
        return x * cos[0] + torch.cat([-right, left], dim=-1) * sin[0]

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self._w[name].T

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        eps = self._config["rms_norm_eps"]
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self._w[name]
