"""The demo's target with sliding windows."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from demo import model_path

WINDOW = 48
"""Tokens; less than a prompt, more than a block of 32."""

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
