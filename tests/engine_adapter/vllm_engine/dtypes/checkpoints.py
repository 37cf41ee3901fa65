"""Writes a model again with quantized weights, in the layouts that are published.

Weights are rounded to the nearest step, without calibration.
"""

import json
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

GROUP = 32
"""Inputs that share a scale, where groups share one."""

_MATRIX = re.compile(r"\.(?:q|k|v|o|gate|up|down)_proj\.weight$")
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The columns in an int32 of AWQ, from the lowest bits to the highest."""

Tensors = dict[str, torch.Tensor]


@dataclass(frozen=True)
class Layout:
    """How a matrix is stored.

    Attributes:
        config: the field `quantization_config` of `config.json`.
        pack: weight, float32 [outputs, inputs] -> its tensors, by the end of their names.
    """

    config: Mapping[str, Any]
    pack: Callable[[torch.Tensor], Tensors]


def write_quantized(layout: Layout, source: Path, folder: Path) -> str:
    """Writes the model of `source` with its layers' matrices in a layout; returns the folder."""
    shutil.copytree(source, folder)
    config = json.loads((source / "config.json").read_text())
    config["quantization_config"] = layout.config
    (folder / "config.json").write_text(json.dumps(config))
    tensors: Tensors = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        if not _MATRIX.search(name):
            tensors[name] = tensor
            continue
        packed = layout.pack(tensor.float())
        tensors |= {name.removesuffix("weight") + end: part for end, part in packed.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return str(folder)


def _in_groups(weight: torch.Tensor) -> torch.Tensor:
    """[outputs, inputs] as [outputs, groups, GROUP]."""
    return weight.unflatten(1, (-1, GROUP))


def _packed(values: torch.Tensor) -> torch.Tensor:
    """4-bit values [..., 8] in int32 [...]; the first in the lowest bits."""
    shifts = torch.arange(0, 32, 4)
    whole = (values.long() << shifts).sum(-1)
    return torch.where(whole >= 1 << 31, whole - (1 << 32), whole).to(torch.int32)


def _symmetric(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values 0 to 15 of [outputs, inputs], where 8 is zero; scales [outputs, groups]."""
    groups = _in_groups(weight)
    scale = groups.abs().amax(2, keepdim=True) / 7
    values = (groups / scale).round().clamp(-8, 7) + 8
    return values.flatten(1), scale.squeeze(2)


def _awq(weight: torch.Tensor) -> Tensors:
    """AutoAWQ's `gemm`: packed along the outputs; with a zero point for each group."""
    groups = _in_groups(weight)
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    scale = (high - low) / 15
    zero = (-low / scale).round().clamp(0, 15)
    values = ((groups / scale).round() + zero).clamp(0, 15).flatten(1)

    def columns(rows: torch.Tensor) -> torch.Tensor:
        return _packed(rows.t().unflatten(1, (-1, 8))[..., _AWQ_ORDER]).contiguous()

    return {
        "qweight": columns(values),
        "qzeros": columns(zero.squeeze(2)),
        "scales": scale.squeeze(2).t().half().contiguous(),
    }


def _gptq(weight: torch.Tensor) -> Tensors:
    """AutoGPTQ's: packed along the inputs; a zero point of 8 is stored as 7."""
    values, scale = _symmetric(weight)
    outputs, groups = scale.shape
    return {
        "qweight": _packed(values.t().unflatten(0, (-1, 8)).transpose(1, 2)).contiguous(),
        "qzeros": _packed(torch.full((groups, outputs // 8, 8), 7)),
        "scales": scale.t().half().contiguous(),
        "g_idx": torch.arange(weight.shape[1], dtype=torch.int32) // GROUP,
    }


def _w4a16(weight: torch.Tensor) -> Tensors:
    """compressed-tensors' `pack-quantized`."""
    values, scale = _symmetric(weight)
    return {
        "weight_packed": _packed(values.unflatten(1, (-1, 8))),
        "weight_scale": scale.bfloat16(),
        "weight_shape": torch.tensor(weight.shape),
    }


def _w8a8(weight: torch.Tensor) -> Tensors:
    """compressed-tensors' `int-quantized`, with a scale for each output."""
    scale = weight.abs().amax(1, keepdim=True) / 127
    return {"weight": (weight / scale).round().to(torch.int8), "weight_scale": scale}


def _compressed(form: str, weights: dict[str, Any], inputs: dict[str, Any] | None) -> Any:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {
        "quant_method": "compressed-tensors",
        "format": form,
        "quantization_status": "compressed",
        "ignore": ["lm_head"],
        "kv_cache_scheme": None,
        "config_groups": {"group_0": group},
    }


_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}

LAYOUTS: Mapping[str, Layout] = {
    "AWQ": Layout(
        {
            "quant_method": "awq",
            "bits": 4,
            "group_size": GROUP,
            "zero_point": True,
            "version": "gemm",
        },
        _awq,
    ),
    "GPTQ": Layout(
        {"quant_method": "gptq", "bits": 4, "group_size": GROUP, "desc_act": False, "sym": True},
        _gptq,
    ),
    "W4A16": Layout(
        _compressed(
            "pack-quantized",
            {
                "num_bits": 4,
                "type": "int",
                "symmetric": True,
                "strategy": "group",
                "group_size": GROUP,
            },
            None,
        ),
        _w4a16,
    ),
    "W8A8": Layout(
        _compressed(
            "int-quantized",
            {**_INT8, "strategy": "channel", "dynamic": False},
            {**_INT8, "strategy": "token", "dynamic": True},
        ),
        _w8a8,
    ),
}
"""Each layout by its name in docs/lab/models.md."""
