"""LoRA adapters for tests: random, in peft's format, with an effect that can be seen."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def write_adapter(
    folder: Path, model: str, *, seed: int, rank: int = 8, scale: float = 0.6, head: bool = False
) -> str:
    """Writes an adapter of the model's projections; returns its folder as text.

    Args:
        model: folder of the model, one file of safetensors.
        scale: how large the change is beside weights of order 1 / sqrt(width).
        head: it changes the output layer too, which is tied to the embedding.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    with safe_open(f"{model}/model.safetensors", "pt") as weights:
        for name in weights.keys():  # noqa: SIM118
            module = name.split(".")[-2]
            if module in PROJECTIONS or (head and module == "embed_tokens"):
                rows, columns = weights.get_slice(name).get_shape()
                path = "lm_head" if module == "embed_tokens" else name.removesuffix(".weight")
                stem = f"base_model.model.{path}"
                a = torch.randn(rank, columns, generator=generator) / columns**0.5
                b = torch.randn(rows, rank, generator=generator) * scale / rank**0.5
                tensors |= {f"{stem}.lora_A.weight": a, f"{stem}.lora_B.weight": b}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": rank,
        "lora_alpha": rank,
        "target_modules": [*PROJECTIONS, *(["lm_head"] if head else [])],
        "bias": "none",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return str(folder)


def cached_adapter(monkeypatch: pytest.MonkeyPatch, cache: Path, hub_id: str) -> Path:
    """Makes `cache` the hub's cache, with an empty adapter, and the hub unreachable.

    Returns the folder of the adapter's files.
    """
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    repository = cache / f"models--{hub_id.replace('/', '--')}"
    snapshot = repository / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0123abc")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (snapshot / name).write_text("{}")
    return snapshot
