"""Writes the small models of the catalog, with random weights that make texts of many tokens."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch

from demo import model_path
from tests.engine_adapter.vllm_engine.architectures.architecture import BASE, Architecture

LOUD = range(64, 128)
"""The tokens of prompts, and of nearly all of a model's text.

The rows of all other tokens in the output layer are a quarter as long. So texts have few tokens in
many orders, and a lookup proposer finds the newest token of every row in its prompt.
"""

QUIET = 0.25


def write_model(architecture: Architecture, folder: Path, noise: float = 0.0) -> str:
    """Writes a random model in float32, with the tokenizer of the demo; returns its folder.

    Its weights vary so much that its texts do not repeat one token.

    Args:
        noise: how much is added to each weight, as a share of its standard deviation. Without noise
            all models of an architecture are the same.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(architecture.model_type, **architecture.config)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                std = 0.05 if "embed" in name else 2 * weight.shape[-1] ** -0.5
                torch.nn.init.normal_(weight, std=std)
        if noise:
            for weight in model.parameters():
                if weight.numel() > 1:
                    weight += noise * weight.std() * torch.randn_like(weight)
        output = model.get_output_embeddings().weight
        quiet = torch.full((len(output), 1), QUIET)
        quiet[LOUD.start : LOUD.stop] = 1.0
        output *= quiet
    model.save_pretrained(folder)
    if names := architecture.fields.get("architectures"):
        # A published model has another name than the class of transformers.
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "architectures": names}))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(model_path("target") / name, folder)
    return str(folder)


def head_config(architecture: Architecture) -> dict[str, Any]:
    """The `config.json` of a Llama layer in the target's width, for a head."""
    sizes = {**BASE, **architecture.config}
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads")
    return {
        **{name: sizes[name] for name in same},
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_key_value_heads": sizes["num_key_value_heads"],
        "head_dim": sizes["head_dim"],
        "max_position_embeddings": sizes["max_position_embeddings"],
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": False,
    }
