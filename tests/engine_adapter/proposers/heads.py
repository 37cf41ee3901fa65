"""Checkpoints of heads with random weights in every published layout, and a target for them."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors.torch import save_file

from engine_adapter.proposers.batch import DraftBatch

HIDDEN, VOCABULARY = 16, 96

Tensors = dict[str, torch.Tensor]


@dataclass
class Heads:
    """A checkpoint in memory."""

    config: dict[str, Any]
    tensors: Tensors
    file: str = "model.safetensors"

    def write(self, folder: Path) -> str:
        """Writes the folder; returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config))
        if self.file.endswith(".safetensors"):
            save_file(self.tensors, folder / self.file)
        else:
            torch.save(self.tensors, folder / self.file)
        return str(folder)


def mlp_speculator(
    *,
    hidden: int = HIDDEN,
    vocabulary: int = VOCABULARY,
    n_predict: int = 3,
    inner_dim: int = 24,
    tied: bool = False,
    scale_input: bool = False,
    seed: int = 0,
) -> Heads:
    """Random weights in the layout of `ibm-fms/*-accelerator`; tied ones are stored once."""
    draw = _drawing(seed)
    inner = inner_dim or hidden
    tensors: Tensors = {}
    for i in range(n_predict):
        if i == 0 or not tied:
            tensors[f"speculator.emb.{i}.weight"] = draw(vocabulary, inner)
            tensors[f"speculator.head.{i}.weight"] = draw(vocabulary, inner)
            tensors[f"speculator.ln.{i}.weight"] = 1 + draw(inner)
            tensors[f"speculator.ln.{i}.bias"] = draw(inner)
        if i < 2 or not tied:
            tensors[f"speculator.proj.{i}.weight"] = draw(inner, inner if i else hidden)
    config = {
        "architectures": ["MLPSpeculatorPreTrainedModel"],
        "model_type": "mlp_speculator",
        "emb_dim": hidden,
        "inner_dim": inner_dim,
        "n_predict": n_predict,
        "n_candidates": 5,
        "top_k_tokens_per_head": [5, 4, 3][:n_predict],
        "scale_input": scale_input,
        "tie_weights": tied,
        "vocab_size": vocabulary,
    }
    return Heads(config, tensors)


def medusa(
    *,
    hidden: int = HIDDEN,
    vocabulary: int = VOCABULARY,
    num_heads: int = 4,
    num_layers: int = 2,
    bias: bool = False,
    output: str = "each",
    token_map: int | None = None,
    seed: int = 0,
) -> Heads:
    """Random weights in vLLM's layout.

    Args:
        output: `each` head has an output matrix, one is `shared`, or the `target`'s is used.
        token_map: number of tokens in the token map; `None` for no token map.
    """
    draw = _drawing(seed)
    tensors: Tensors = {}
    for head in range(num_heads):
        for layer in range(num_layers):
            tensors[f"blocks.{head}.layers.{layer}.weight"] = draw(hidden, hidden)
            if bias:
                tensors[f"blocks.{head}.layers.{layer}.bias"] = draw(hidden)
        if output == "each":
            tensors[f"lm_heads.{head}.weight"] = draw(token_map or vocabulary, hidden)
    if output == "shared":
        tensors["lm_head.weight"] = draw(token_map or vocabulary, hidden)
    if token_map:
        order = torch.randperm(vocabulary, generator=torch.Generator().manual_seed(seed))
        tensors["token_map"] = order[:token_map]
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "hidden_size": hidden,
        "vocab_size": vocabulary,
        "truncated_vocab_size": token_map or vocabulary,
        "num_heads": num_heads,
        "num_hidden_layers": num_layers,
        "original_lm_head": output != "each",
        "medusa_fc_bias": bias,
    }
    return Heads(config, tensors)


def fasterdecoding_medusa(
    *, num_heads: int = 4, num_layers: int = 1, output: str = "each", **how: Any
) -> Heads:
    """Random weights in FasterDecoding's layout, equal to those of `medusa` in vLLM's."""
    of_vllm = medusa(num_heads=num_heads, num_layers=num_layers, bias=True, output=output, **how)
    tensors: Tensors = {}
    for name, tensor in of_vllm.tensors.items():
        kind, head, *rest = name.split(".")
        if kind == "blocks":
            tensors[f"{head}.{rest[1]}.linear.{rest[2]}"] = tensor
        else:
            tensors[f"{head}.{num_layers}.weight"] = tensor
    config = {
        "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
        "medusa_num_heads": num_heads,
        "medusa_num_layers": num_layers,
    }
    if output == "target":
        config["version"] = "2"
    return Heads(config, tensors, "medusa_lm_head.safetensors")


def _drawing(seed: int) -> Callable[..., torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return lambda *shape: torch.randn(*shape, generator=generator) * shape[-1] ** -0.5


@dataclass
class RandomTarget:
    """A target with random weights for heads to draft from."""

    hidden_size: int = HIDDEN
    vocab_size: int = VOCABULARY
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def __post_init__(self) -> None:
        draw = _drawing(9)
        self.embedding = draw(self.vocab_size, self.hidden_size)
        self.output = draw(self.vocab_size, self.hidden_size).to(self.dtype)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[N, H] -> [N, V]."""
        return hidden @ self.output.T

    def hidden_of(self, batch: DraftBatch) -> torch.Tensor:
        """A state for each row, [R, H]: a function of all its tokens except the newest."""
        rows = [torch.from_numpy(batch.context(i)[:-1].copy()) for i in range(len(batch.rows))]
        return torch.stack([self._read(row) for row in rows]).to(self.dtype)

    def _read(self, tokens: torch.Tensor) -> torch.Tensor:
        fading = 0.7 ** torch.arange(len(tokens)).flip(0)
        return (fading @ self.embedding[tokens.long()]) * 3


class SecondBest:
    """A `DraftSampler` that always draws the second most likely token.

    Attributes:
        samples: whether it states distributions, as if it had sampled.
        ends: after so many draws no row drafts further; `None` if it does not say.
        calls: depth and rows of each call.
    """

    def __init__(self, samples: bool = True, ends: int | None = None) -> None:
        self.samples, self._ends = samples, ends
        self.calls: list[tuple[int, list[int]]] = []

    def draw(
        self, logits: torch.Tensor, rows: npt.NDArray[np.intp], depth: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        self.calls.append((depth, rows.tolist()))
        stated = logits.float().softmax(-1) if self.samples else None
        return logits.topk(2).indices[:, 1], stated

    def is_open(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_] | None:
        if self._ends is None:
            return None
        return np.full(len(rows), len(self.calls) < self._ends)

    def select(self, index: npt.NDArray[np.intp]) -> "SecondBest":
        return self


def with_tensors(heads: Heads, tensors: Mapping[str, torch.Tensor | None]) -> Heads:
    """The checkpoint with some tensors replaced, added, or (`None`) removed."""
    changed = {**heads.tensors, **tensors}
    remaining = {name: tensor for name, tensor in changed.items() if tensor is not None}
    return Heads(heads.config, remaining, heads.file)
