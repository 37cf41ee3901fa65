"""`python -m demo.wide`: a wide twin of the target, with realistic costs on a CPU.

A step of the small target takes little more time than the engine itself, so no draft could save
time. The twin computes the same function at a bigger model's cost: its MLPs have additional neurons
whose output columns (`down_proj`) are zero, so they add exact zeros. KV cache and hidden states are
the target's, so drafts and heads for the target fit the twin. It is written to the user's disk and
not shipped.

Weights are saved in bf16, as the target's are, which halves the file; serve them in fp32.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from demo import model_path

INTERMEDIATE_SIZE = 33_472
SEED = 11
_COPIED = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
)


def default_folder() -> Path:
    """The default folder of the twin, in the user's cache."""
    return Path.home() / ".cache" / "specgate" / "wide"


def write_wide_twin(
    out: Path, intermediate_size: int = INTERMEDIATE_SIZE, source: Path | None = None
) -> Path:
    """Write the twin and return its folder.

    Args:
        out: folder to write; existing files are replaced.
        intermediate_size: neurons of each MLP, at least the source's.
        source: the model to widen, a Llama folder with one safetensors file; the demo target by
            default.

    Raises:
        ValueError: `intermediate_size` is smaller than the source's.
    """
    folder = source or model_path("target")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    extra = intermediate_size - int(config["intermediate_size"])
    if extra < 0:
        raise ValueError(
            f"intermediate_size {intermediate_size} is below the source's "
            f"{config['intermediate_size']}"
        )
    generator = torch.Generator().manual_seed(SEED)
    weights = {
        name: _widened(name, weight, extra, generator)
        for name, weight in sorted(load_file(folder / "model.safetensors").items())
    }
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config["intermediate_size"] = intermediate_size
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    for name in _COPIED:
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)
    return out


def _widened(
    name: str, weight: torch.Tensor, extra: int, generator: torch.Generator
) -> torch.Tensor:
    """Adds random rows to `gate_proj` and `up_proj`, and zero columns to `down_proj`.

    `weight` is [neurons, hidden], that of `down_proj` [hidden, neurons].
    """
    if name.endswith(("gate_proj.weight", "up_proj.weight")):
        rows = torch.randn(extra, weight.shape[1], generator=generator) * weight.float().std()
        return torch.cat([weight, rows.to(weight.dtype)]).contiguous()
    if name.endswith("down_proj.weight"):
        zeros = torch.zeros(weight.shape[0], extra, dtype=weight.dtype)
        return torch.cat([weight, zeros], dim=1).contiguous()
    return weight


def main(argv: list[str] | None = None) -> None:
    """Write the twin and print its folder and size."""
    parser = argparse.ArgumentParser(
        prog="python -m demo.wide",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=default_folder())
    parser.add_argument("--intermediate-size", type=int, default=INTERMEDIATE_SIZE)
    options = parser.parse_args(argv)
    out = write_wide_twin(options.out, options.intermediate_size)
    size = (out / "model.safetensors").stat().st_size
    print(f"{out}: {size / 2**20:.0f} MiB in bf16, {size // 2 / 1e6:.0f}M parameters")


if __name__ == "__main__":
    main()
