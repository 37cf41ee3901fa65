"""EAGLE and EAGLE-3 heads in plain PyTorch, from their papers and published code: no KV, no batch.

Sources: arXiv 2401.15077 and 2503.01840, github.com/SafeAILab/EAGLE.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import scaled_dot_product_attention, silu
from transformers import AutoModelForCausalLM


class PlainHead:
    """A head of one layer on a Llama target; every draft is computed from the first token on.

    Args:
        target: the folder of the target.
        head: the folder of the head.
    """

    def __init__(self, target: Path, head: Path) -> None:
        self._target = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        fields: dict[str, Any] = json.loads((head / "config.json").read_text())
        self._config = {**fields, **fields.get("transformer_layer_config", {})}
        tensors = load_file(head / "model.safetensors")
        self._w = {
            name.removesuffix(".weight").replace("midlayer.", "layers.0."): tensor
            for name, tensor in tensors.items()
        }
        named = {**fields, **fields.get("eagle_config", {})}
        self._layers: list[int] = named.get("eagle_aux_hidden_state_layer_ids", [])

    @torch.inference_mode()
    def drafts(self, tokens: Sequence[int], k: int) -> tuple[int, ...]:
        """The k tokens that follow `tokens`, greedily."""
        ids = torch.tensor(tokens)
        outputs = self._target.model(ids[None, :-1], output_hidden_states=True)
        if self._layers:
            # Entry i is the input of layer i, so the output of the first i layers.
            joined = torch.cat([outputs.hidden_states[i][0] for i in self._layers], dim=-1)
            states = joined @ self._w["fc"].T
        else:
            states = outputs.last_hidden_state[0]
        following, drafted = ids[1:], []
        for _ in range(k):
            embedded = self._target.model.embed_tokens(following)
            output, recurrent = self._layer(embedded, states)
            drafted.append(self._best(output[-1]))
            following = torch.cat([following, torch.tensor(drafted[-1:])])
            states = torch.cat([states, recurrent[-1:]])
        return tuple(drafted)

    def _best(self, output: torch.Tensor) -> int:
        if "lm_head" not in self._w:
            return int(self._target.lm_head(output).argmax())
        best = int((self._w["lm_head"] @ output).argmax())
        return best + int(self._w["d2t"][best]) if "d2t" in self._w else best

    def _layer(
        self, embedded: torch.Tensor, states: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The states that the logits come from, and the recurrent states."""
        if self._layers:
            normed = self._norm(states, "layers.0.hidden_norm")
            read = torch.cat([self._norm(embedded, "layers.0.input_layernorm"), normed], dim=-1)
            stays = normed if self._config.get("norm_before_residual") else states
        else:
            read = torch.cat([embedded, states], dim=-1) @ self._w["fc"].T
            read = read + self._w.get("fc.bias", 0)
            stays = read
        stays = stays + self._attention(read)
        normed = self._norm(stays, "layers.0.post_attention_layernorm")
        gate, up = self._linear(normed, "mlp.gate_proj"), self._linear(normed, "mlp.up_proj")
        out = stays + self._linear(silu(gate) * up, "mlp.down_proj")
        return (self._norm(out, "norm"), out) if self._layers else (out, out)

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        size = self._config["head_dim"]
        q, k, v = (
            self._linear(x, f"self_attn.{part}_proj").unflatten(-1, (-1, size)).transpose(0, 1)
            for part in "qkv"
        )
        seen = scaled_dot_product_attention(
            self._rotated(q), self._rotated(k), v, is_causal=True, enable_gqa=True
        )
        return self._linear(seen.transpose(0, 1).flatten(1), "self_attn.o_proj")

    def _rotated(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self._target.model.rotary_emb(x, torch.arange(x.shape[1])[None])
        left, right = x.chunk(2, dim=-1)
        return x * cos[0] + torch.cat([-right, left], dim=-1) * sin[0]

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self._w[f"layers.0.{name}"].T

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        eps = self._config["rms_norm_eps"]
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self._w[name]


class PlainLatentHead(PlainHead):
    """An EAGLE-3 head with latent attention on a target of DeepSeek's.

    Source: arXiv 2405.04434.
    """

    def _attention(self, x: torch.Tensor) -> torch.Tensor:
        fields, part = self._config, "self_attn."
        plain, rotated = fields["qk_nope_head_dim"], fields["qk_rope_head_dim"]
        normed = self._norm(self._linear(x, f"{part}q_a_proj"), f"layers.0.{part}q_a_layernorm")
        q = (
            self._linear(normed, f"{part}q_b_proj")
            .unflatten(-1, (-1, plain + rotated))
            .transpose(0, 1)
        )
        latent, rope_key = self._linear(x, f"{part}kv_a_proj_with_mqa").split(
            [fields["kv_lora_rank"], rotated], dim=-1
        )
        normed = self._norm(latent, f"layers.0.{part}kv_a_layernorm")
        of_heads = self._linear(normed, f"{part}kv_b_proj").unflatten(-1, (len(q), -1))
        key, value = of_heads.transpose(0, 1).split([plain, fields["v_head_dim"]], dim=-1)
        rope_keys = self._rotated_pairs(rope_key).expand(len(q), -1, -1)
        q = torch.cat([q[..., :plain], self._rotated_pairs(q[..., plain:])], dim=-1)
        seen = scaled_dot_product_attention(
            q, torch.cat([key, rope_keys], dim=-1), value, is_causal=True
        )
        return self._linear(seen.transpose(0, 1).flatten(1), f"{part}o_proj")

    def _rotated_pairs(self, x: torch.Tensor) -> torch.Tensor:
        """Each pair of neighbours in [..., T, rotated], turned by its angle."""
        theta = self._config["rope_parameters"]["rope_theta"]
        count, size = x.shape[-2:]
        frequencies = theta ** -(torch.arange(0, size, 2) / size)
        angles = torch.arange(count)[:, None] * frequencies
        turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(
            torch.ones_like(angles), angles
        )
        return torch.view_as_real(turned).flatten(-2)
