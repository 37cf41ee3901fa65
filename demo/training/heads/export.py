"""Writes a trained head in its published layout: config.json and bf16 safetensors."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file

from demo.training.heads.training import Head


def export_head(head: Head, folder: Path) -> None:
    """Write `head` into `folder`, floating-point tensors in bf16; the head is not modified.

    No tokenizer is written: a head only drafts for the target that it was trained on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: (tensor.bfloat16() if tensor.is_floating_point() else tensor).contiguous()
        for name, tensor in head.checkpoint().items()
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {**head.config(), "dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
