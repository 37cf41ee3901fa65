"""The demo's target with quantised linear layers, in layouts that are published.

The weights are rounded to the nearest value; nothing is calibrated.

Sources of the layouts: `gptq` github.com/AutoGPTQ/AutoGPTQ, `awq` github.com/casper-hansen/AutoAWQ,
`int8` github.com/vllm-project/compressed-tensors.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from demo import model_path

GROUP = 32
"""Inputs that share a scale, in the layouts of 4 bits."""

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""Which of eight outputs lies in which four bits of a word."""

Tensors = dict[str, torch.Tensor]


def write_quantized(layout: str, folder: Path) -> str:
    """Writes the demo's target in one of `LAYOUTS`; returns its folder."""
    quantize, config = LAYOUTS[layout]
    shutil.copytree(model_path("target"), folder)
    tensors: Tensors = {}
    for name, weight in load_file(folder / "model.safetensors").items():
        if name.endswith("_proj.weight"):
            stem = name.removesuffix("weight")
            tensors |= {f"{stem}{part}": made for part, made in quantize(weight.float()).items()}
        else:
            tensors[name] = weight
    save_file(
        {name: one.contiguous() for name, one in tensors.items()}, folder / "model.safetensors"
    )
    fields = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**fields, "quantization_config": config}))
    return str(folder)


def gptq(weight: torch.Tensor) -> Tensors:
    """[out, in] -> symmetric values of 4 bits around 8, packed along the inputs."""
    grouped = _grouped(weight)
    scales = (grouped.abs().amax(dim=1) / 7).clamp(min=1e-8).bfloat16()
    values = (grouped / scales.float()[:, None]).round().clamp(-8, 7) + 8
    values = values.reshape(weight.shape[1], weight.shape[0])
    zeros = torch.full_like(scales, 7, dtype=torch.int32)  # 8 - 1, as the layout has it
    return {
        "qweight": _packed(values.T).T,
        "scales": scales,
        "qzeros": _packed(zeros),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
    }


def awq(weight: torch.Tensor) -> Tensors:
    """[out, in] -> values of 4 bits with a zero point for each group, packed along the outputs."""
    grouped = _grouped(weight)
    least, most = grouped.amin(dim=1).clamp(max=0), grouped.amax(dim=1).clamp(min=0)
    scales = ((most - least) / 15).clamp(min=1e-8).bfloat16()
    zeros = (-least / scales.float()).round().clamp(0, 15)
    values = (grouped / scales.float()[:, None]).round() + zeros[:, None]
    values = values.clamp(0, 15).reshape(weight.shape[1], weight.shape[0])
    return {
        "qweight": _packed(_in_awq_order(values)),
        "scales": scales,
        "qzeros": _packed(_in_awq_order(zeros)),
    }


def int8(weight: torch.Tensor) -> Tensors:
    """[out, in] -> values of 8 bits with a scale for each output."""
    scales = (weight.abs().amax(dim=1, keepdim=True) / 127).clamp(min=1e-8)
    return {"weight": (weight / scales).round().to(torch.int8), "weight_scale": scales}


def _grouped(weight: torch.Tensor) -> torch.Tensor:
    """[out, in] -> [in / GROUP, GROUP, out]."""
    return weight.T.reshape(-1, GROUP, weight.shape[0])


def _packed(values: torch.Tensor) -> torch.Tensor:
    """Values of 4 bits [N, M] -> int32 [N, M / 8], the first in the lowest bits."""
    words = values.reshape(len(values), -1, 8).long() << torch.arange(0, 32, 4)
    return words.sum(dim=-1).to(torch.int32)


def _in_awq_order(values: torch.Tensor) -> torch.Tensor:
    words = values.reshape(len(values), -1, 8)[..., list(AWQ_ORDER)]
    return words.reshape(values.shape)


_INT8_ARGS: Mapping[str, Any] = {"num_bits": 8, "type": "int", "symmetric": True}

LAYOUTS: Mapping[str, tuple[Callable[[torch.Tensor], Tensors], dict[str, Any]]] = {
    "gptq": (
        gptq,
        {
            "quant_method": "gptq",
            "bits": 4,
            "group_size": GROUP,
            "desc_act": False,
            "sym": True,
            "checkpoint_format": "gptq",
        },
    ),
    "awq": (
        awq,
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
            "version": "gemm",
        },
    ),
    "int8": (
        int8,
        {
            "quant_method": "compressed-tensors",
            "format": "int-quantized",
            "quantization_status": "compressed",
            "ignore": ["lm_head"],
            "config_groups": {
                "group_0": {
                    "targets": ["Linear"],
                    "weights": {**_INT8_ARGS, "strategy": "channel", "dynamic": False},
                    "input_activations": {**_INT8_ARGS, "strategy": "token", "dynamic": True},
                }
            },
        },
    ),
}
"""Layout -> how a weight becomes its tensors, and `quantization_config`."""
