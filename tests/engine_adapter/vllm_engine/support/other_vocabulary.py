"""Copies of the demo's models with another tokenizer: other token ids, or fewer tokens.

With every token under another id, the copy computes what the original does.
"""

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import load_file, save_file

_BY_TOKEN = ("model.embed_tokens.weight", "lm_head.weight")
"""The weights with one row for each token."""

_ENDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def with_other_ids(
    source: str, folder: Path, *, without: Collection[int] = (), seed: int = 0
) -> str:
    """Writes a copy of a model whose tokens have other ids.

    Args:
        source: the model's folder.
        folder: is created.
        without: ids of tokens that the copy lacks. The others of the tokenizer stay.
        seed: of the order.
    """
    kept = [token for token in range(_config(source)["vocab_size"]) if token not in without]
    # The new id i is the old id order[i].
    order = np.random.default_rng(seed).permutation(kept)
    shutil.copytree(source, folder)
    weights = load_file(folder / "model.safetensors")
    for name in _BY_TOKEN:
        if name in weights:
            weights[name] = weights[name][order].contiguous()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    new_ids = {int(old): new for new, old in enumerate(order)}
    config = _config(source) | {"vocab_size": len(order)}
    config |= {name: new_ids.get(config[name]) for name in _ENDS}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").unlink()
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(_renumbered(tokenizer, new_ids)))
    return str(folder)


def _config(folder: str) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads((Path(folder) / "config.json").read_text())
    return fields


def _renumbered(tokenizer: dict[str, Any], new_ids: dict[int, int]) -> dict[str, Any]:
    """The file `tokenizer.json` with other ids; merges of missing tokens are left out."""
    model = tokenizer["model"]
    vocabulary = {
        piece: new_ids[token] for piece, token in model["vocab"].items() if token in new_ids
    }
    merges = [pair for pair in model["merges"] if {*pair, "".join(pair)} <= vocabulary.keys()]
    added = [
        {**token, "id": new_ids[token["id"]]}
        for token in tokenizer["added_tokens"]
        if token["id"] in new_ids
    ]
    processor = tokenizer["post_processor"]
    for token in processor["special_tokens"].values():
        token["ids"] = [new_ids[old] for old in token["ids"]]
    return {
        **tokenizer,
        "model": {**model, "vocab": vocabulary, "merges": merges},
        "added_tokens": sorted(added, key=lambda token: token["id"]),
    }
