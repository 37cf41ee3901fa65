"""A head that drafts blocks, in plain PyTorch from published code: no KV cache, no batch.

Sources: arXiv 2602.06036 (DFlash), github.com/z-lab/dflash (DFlash, DFlash2),
github.com/deepseek-ai/DeepSpec (DSpark), arXiv 2608.02438 (XPress).
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
    """A DFlash, DFlash2, DSpark or XPress head on a Llama target; each block is computed alone.

    Args:
        target: the folder of the target.
        head: the folder of the head.
        k: drafts in a block.
        sequential: whether a draft depends on those before it: by the Markov head of a DSpark
            head, the selector of a DFlash2 head, or the refiner of an XPress head.
        causal: whether a token of a block sees those before it only, in all layers.
        windows: whether layers with a sliding window see that alone.
    """

    def __init__(
        self,
        target: Path,
        head: Path,
        k: int,
        *,
        sequential: bool = True,
        causal: bool = False,
        windows: bool = True,
    ) -> None:
        self._target = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
        self._config: dict[str, Any] = json.loads((head / "config.json").read_text())
        tensors = load_file(head / "model.safetensors")
        self._w = {name.removesuffix(".weight"): tensor for name, tensor in tensors.items()}
        self._names = {name.split(".")[0] for name in self._w}
        self._k = k
        within = self._config.get("dflash_config", {})
        has_window = [kind == "sliding_attention" for kind in self._config["layer_types"]]
        order = True if causal else within.get("causal")
        self._is_causal = has_window if order is None else [order] * len(has_window)
        window = within.get("swa_window_size") or self._config.get("sliding_window")
        all_have = within.get("use_swa")
        self._windows = [window if windows and (all_have or each) else None for each in has_window]
        is_dspark = self._config["architectures"] == ["Qwen3DSparkModel"]
        from_newest = is_dspark and self._config.get("sample_from_anchor", True)
        self._is_sequential = sequential
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
        x = x * fields.get("input_embedding_scale", 1)
        for i in range(self._config["num_hidden_layers"]):
            prefix = f"layers.{i}."
            normed, taps = self._mixed(
                self._norm(x, f"{prefix}input_layernorm"), f"{prefix}attention"
            )
            x = (
                x
                + self._mixed(self._attention(prefix, context, normed), f"{prefix}attention", taps)[
                    0
                ]
            )
            normed = self._norm(x, f"{prefix}post_attention_layernorm")
            normed, taps = self._mixed(normed, f"{prefix}mlp")
            gate, up = (self._linear(normed, f"{prefix}mlp.{part}_proj") for part in ("gate", "up"))
            down = self._linear(silu(gate) * up, f"{prefix}mlp.down_proj")
            x = x + self._mixed(down, f"{prefix}mlp", taps)[0]
        states = self._norm(x[-self._k :], "norm")
        own = "lm_head" in self._w
        logits = self._linear(states, "lm_head") if own else self._target.lm_head(states)
        logits = logits * fields.get("output_multiplier", 1)
        if cap := fields.get("final_logit_softcapping"):
            logits = cap * torch.tanh(logits / cap)
        drafts: list[int] = []
        for state, row in zip(states, logits, strict=True):
            if self._is_sequential and "xpress_head" in self._names:
                block = self._norm(x, "norm")
                row = row + self._refined([tokens[-1], tokens[-1], *drafts], block, row)
            elif self._is_sequential:
                row = row + self._bias([*tokens, *drafts][-1], state, row)
            best = int(row.argmax())
            drafts.append(best + int(self._w["d2t"][best]) if "d2t" in self._w else best)
        return tuple(drafts)

    def _bias(self, previous: int, state: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """What a token adds to the logits [V] of the next place, whose hidden state is [H]."""
        if "markov_head.markov_w1" in self._w:
            before = self._w["markov_head.markov_w1"][previous]
            return self._w["markov_head.markov_w2"] @ before
        if (selector := "candidate_selector") not in self._names:
            return torch.zeros_like(logits)
        before = self._w[f"{selector}.predecessor_codebook"][previous]
        weights = before * self._linear(state, f"{selector}.hidden_projection")
        bias = torch.full_like(logits, float("-inf"))
        candidates = logits.topk(self._config["dflash_config"]["selector_top_k"]).indices
        bias[candidates] = self._w[f"{selector}.successor_codebook"][candidates] @ weights
        return bias

    def _refined(
        self, previous: Sequence[int], block: torch.Tensor, logits: torch.Tensor
    ) -> torch.Tensor:
        """What the refiner of an XPress head adds to the logits [V] of a place.

        Args:
            previous: the token before each place up to this one.
            block: [B, H], the hidden states of the block.
        """
        count, head = len(previous), "xpress_head"
        tokens = self._w[f"{head}.w1"][list(previous)]
        means = block.mean(dim=0).expand(count, -1)
        states = self._linear(block[:count], f"{head}.down_h")
        joined = torch.cat([states, self._linear(means, f"{head}.down_g"), tokens], dim=-1)
        inputs = self._linear(joined, f"{head}.in_proj")
        mixed = inputs[-1] + sum(
            self._w[f"{head}.mix.L"][:, count - 1, j] * inputs[j] for j in range(count)
        )
        gate, up = (self._linear(mixed, f"{head}.mlp.{part}_proj") for part in ("gate", "up"))
        latent = mixed + self._linear(silu(gate) * up, f"{head}.mlp.down_proj")
        bias = self._linear(latent, f"{head}.w2")
        if not (num_candidates := self._config["xpress_topc"]):
            return bias
        only = torch.full_like(logits, float("-inf"))
        candidates = logits.topk(num_candidates).indices
        only[candidates] = bias[candidates]
        return only

    def _mixed(
        self, x: torch.Tensor, part: str, taps: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The block after a convolution of `part`, and the coefficients of the one that follows.

        Args:
            x: [B, H].
            part: the layer's attention or MLP.
            taps: [B, taps, groups], the coefficients; `None` if they come from `x`.
        """
        conv = f"{part}_conv"
        if f"{conv}.base_kernel" not in self._w:
            return x, None
        side, following = 1, None
        base = self._w[f"{conv}.base_kernel"]
        if taps is None:
            coefficients = self._linear(x, f"{conv}.kernel_projection")
            coefficients = coefficients.unflatten(-1, (2, base.shape[1], -1))
            side, taps, following = 0, coefficients[:, 0], coefficients[:, 1]
        group = x.shape[-1] // taps.shape[-1]
        kernel = base[side] + taps.repeat_interleave(group, dim=-1)  # [B, taps, H]
        mixed = torch.zeros_like(x)
        for place in range(len(x)):
            for distance in range(min(place + 1, kernel.shape[1])):
                mixed[place] += kernel[place, distance] * x[place - distance]
        return mixed, following

    def _attention(self, prefix: str, context: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        size, before = self._config["head_dim"], len(context)

        def heads(states: torch.Tensor, part: str) -> torch.Tensor:
            mapped = self._linear(states, f"{prefix}self_attn.{part}_proj")
            return mapped.unflatten(-1, (-1, size)).transpose(0, 1)

        both = torch.cat([context, x])
        q = self._rotated(self._norm(heads(x, "q"), f"{prefix}self_attn.q_norm"), before)
        k = self._rotated(self._norm(heads(both, "k"), f"{prefix}self_attn.k_norm"), 0)
        layer = int(prefix.split(".")[1])
        mask = torch.ones(len(x), len(both), dtype=torch.bool)
        mask = mask.tril(before) if self._is_causal[layer] else mask
        if (window := self._windows[layer]) is not None:
            mask = mask.triu(before - window + 1).tril(before + window - 1)
        v = heads(both, "v") * self._config.get("dflash_config", {}).get("attention_value_scale", 1)
        sinks = self._w.get(f"{prefix}self_attn.attention_sink_bias")
        if sinks is not None:  # A key of its own, with this score and no value.
            mask = torch.zeros(len(x), len(both)).masked_fill(~mask, float("-inf"))
            mask = torch.cat(
                [mask.expand(len(sinks), -1, -1), sinks.view(-1, 1, 1).expand(-1, len(x), 1)], -1
            )
            k, v = (torch.cat([each, torch.zeros_like(each[:, :1])], 1) for each in (k, v))
        seen = scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)
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
