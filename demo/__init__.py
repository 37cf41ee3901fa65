"""Small models trained for this project, with the recipe that reproduces them.

`target` is the model to serve; `draft` and `draft-small` are distilled from it and draft for it.
All three share one tokenizer of 2,048 entries. The heads draft from the target's hidden states.
Importing this package does not load torch.
"""

from __future__ import annotations

from pathlib import Path

MODELS: tuple[str, ...] = ("target", "draft", "draft-small")
HEADS: tuple[str, ...] = ("medusa", "mlp-speculator", "eagle", "eagle3")

_FOLDER = Path(__file__).resolve().parent


def model_path(name: str = "target") -> Path:
    """The folder of a demo model in Hugging Face format, or of a head in its published layout.

    Args:
        name: one of `MODELS` or `HEADS`.

    Raises:
        ValueError: no such model.
        FileNotFoundError: the package was installed without its weights.
    """
    if name not in MODELS + HEADS:
        raise ValueError(f"no demo model {name!r}; the models are {', '.join(MODELS + HEADS)}")
    folder = _FOLDER / "models" / name
    if not (folder / "model.safetensors").is_file():
        raise FileNotFoundError(f"demo model {name!r} has no weights in {folder}")
    return folder


def prompts_path() -> Path:
    """The file with the measured prompts; `demo.prompts.load_prompts` reads it."""
    return _FOLDER / "prompts.json"


def more_prompts_path() -> Path:
    """The file with further prompts for long runs; see `demo.training.prompt_building`."""
    return _FOLDER / "more-prompts.json"


__all__ = ["HEADS", "MODELS", "model_path", "more_prompts_path", "prompts_path"]
