"""The demo's target with sliding windows, and small random models."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from demo import model_path

WINDOW = 48
"""Tokens; less than a prompt, more than a block of 32."""

CHUNK = 128
"""Tokens of a chunk of attention; a multiple of the blocks of every engine here."""

SLIDING, FULL = "sliding_attention", "full_attention"


def windowed_target(folder: Path, kinds: Sequence[str] | None = None) -> str:
    """The demo's target, trained without windows, in a model type that has them.

    Args:
        folder: is created.
        kinds: of its six layers; without, every layer has the window and the configuration does
            not name the kinds.
    """
    shutil.copytree(model_path("target"), folder)
    fields: dict[str, Any] = {"architectures": ["MistralForCausalLM"], "sliding_window": WINDOW}
    if kinds is None:
        fields |= {"model_type": "mistral"}
    else:
        fields |= {"model_type": "ministral", "layer_types": list(kinds)}
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | fields))
    return str(folder)


SMALL: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 192,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""The fields of every small model."""


def write_random_model(
    folder: Path,
    model_type: str,
    fields: Mapping[str, Any],
    seed: int = 0,
    scale: float = 2.0,
    embeddings: float = 0.05,
) -> str:
    """A random model of these fields with the demo's tokenizer.

    Its weights vary so much that its texts do not repeat one token; `scale` says how much, and
    `embeddings` is the standard deviation of the embeddings.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(model_type, **(SMALL | dict(fields)))
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    for name, weight in model.named_parameters():
        if weight.dim() > 1:
            torch.nn.init.normal_(
                weight, std=embeddings if "embed" in name else scale * weight.shape[-1] ** -0.5
            )
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(model_path("target") / name, folder)
    return str(folder)
