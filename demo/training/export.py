"""Writes a trained model as a Hugging Face folder: bf16 safetensors, tokenizer, defaults."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from transformers import GenerationConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from demo.tokenizer import MAX_LENGTH


def export_model(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write `model` into `folder`, weights in bf16; the model in memory is not modified.

    The configuration names bf16 too, so serving in fp32 needs `dtype=float32`. Generation
    defaults: stop at eos, temperature 0.7.
    """
    folder.mkdir(parents=True, exist_ok=True)
    copy = LlamaForCausalLM(model.config)  # type: ignore[no-untyped-call]
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16)  # type: ignore[arg-type]
    copy.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        bos_token_id=1, eos_token_id=2, pad_token_id=0, do_sample=True, temperature=0.7
    )
    copy.save_pretrained(folder)
    tokenizer.model_max_length = MAX_LENGTH
    save_tokenizer(tokenizer, folder)


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer files, with a class name that transformers 4 and 5 both have."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
