"""The demo's heads, written again as the projects that publish such heads write them.

The numbers stay the same, so a proposer that reads such a folder must draft what the demo's does.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from demo import model_path
from tests.engine_adapter.proposers.heads import Heads, Tensors


def of_demo(name: str) -> Heads:
    """A checkpoint of the demo."""
    folder = model_path(name)
    config = json.loads((folder / "config.json").read_text())
    return Heads(config, load_file(folder / "model.safetensors"))


def safeailab_eagle() -> Heads:
    """As SafeAILab's EAGLE heads for Vicuna: a pickle, `fc` with a bias, the target's embedding."""
    heads = of_demo("eagle")
    width = heads.config["hidden_size"]
    heads.tensors["fc.bias"] = torch.zeros(width, dtype=heads.tensors["fc.weight"].dtype)
    heads.tensors["embed_tokens.weight"] = _embedding()
    config = heads.config | {"architectures": ["LlamaForCausalLM"], "bias": True}
    return Heads(config, heads.tensors, "pytorch_model.bin")


def safeailab_eagle3() -> Heads:
    """As SafeAILab's EAGLE-3 heads: a pickle. Its layers are named, since the demo has only six."""
    heads = of_demo("eagle3")
    return Heads(heads.config, heads.tensors, "pytorch_model.bin")


def specforge_eagle3() -> Heads:
    """As SpecForge's EAGLE-3 heads: the layers in `eagle_config`, and an embedding of its own."""
    heads = of_demo("eagle3")
    layers = heads.config.pop("eagle_aux_hidden_state_layer_ids")
    inner = {"use_aux_hidden_state": True, "eagle_aux_hidden_state_layer_ids": layers}
    heads.tensors["embed_tokens.weight"] = _embedding()
    return Heads(heads.config | {"eagle_config": inner}, heads.tensors)


def speculators_eagle3(target: str) -> Heads:
    """As the library `speculators` writes EAGLE-3 heads; `target` is what it names as verifier."""
    heads = of_demo("eagle3")
    layers = heads.config.pop("eagle_aux_hidden_state_layer_ids")
    heads.config.pop("architectures")
    tensors = {
        name.replace("midlayer.", "layers.0."): tensor for name, tensor in heads.tensors.items()
    }
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": target},
        },
        "draft_vocab_size": heads.config.pop("draft_vocab_size"),
        "eagle_aux_hidden_state_layer_ids": layers,
        "norm_before_residual": False,
        "target_hidden_size": None,
        "transformer_layer_config": heads.config,
    }
    return Heads(config, tensors | {"embed_tokens.weight": _embedding()})


def fasterdecoding_medusa() -> Heads:
    """As FasterDecoding's Medusa heads: a pickle, biases, and an output matrix for each head."""
    demo = of_demo("medusa")
    heads, layers = demo.config["num_heads"], demo.config["num_hidden_layers"]
    width = demo.config["hidden_size"]
    tensors: Tensors = {}
    for head in range(heads):
        for layer in range(layers):
            weight = demo.tensors[f"blocks.{head}.layers.{layer}.weight"]
            tensors[f"{head}.{layer}.linear.weight"] = weight
            tensors[f"{head}.{layer}.linear.bias"] = torch.zeros(width, dtype=weight.dtype)
        tensors[f"{head}.{layers}.weight"] = demo.tensors["lm_heads.0.weight"]
    config = {"medusa_num_heads": heads, "medusa_num_layers": layers}
    return Heads(config, tensors, "medusa_lm_head.pt")


def untied_mlp_speculator() -> Heads:
    """As an accelerator without tied weights, whose steps each have their own tensors: a pickle."""
    demo = of_demo("mlp-speculator")
    tensors: Tensors = {}
    for step in range(demo.config["n_predict"]):
        for part in ("emb.{}.weight", "head.{}.weight", "ln.{}.weight", "ln.{}.bias"):
            tensors[f"speculator.{part.format(step)}"] = demo.tensors[
                f"speculator.{part.format(0)}"
            ]
        of_step = demo.tensors[f"speculator.proj.{min(step, 1)}.weight"]
        tensors[f"speculator.proj.{step}.weight"] = of_step
    return Heads(demo.config | {"tie_weights": False}, tensors, "pytorch_model.bin")


def write_shards(heads: Heads, folder: Path) -> str:
    """Writes a checkpoint in two shards with an index, in the format of its file name."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(heads.config))
    suffix = Path(heads.file).suffix
    names = sorted(heads.tensors)
    shards = {f"part-{i}{suffix}": names[i::2] for i in range(2)}
    for file, part in shards.items():
        tensors = {name: heads.tensors[name].clone() for name in part}
        if suffix == ".safetensors":
            save_file(tensors, folder / file)
        else:
            torch.save(tensors, folder / file)
    index = {name: file for file, part in shards.items() for name in part}
    (folder / f"{heads.file}.index.json").write_text(json.dumps({"weight_map": index}))
    return str(folder)


LAYOUTS: Mapping[str, tuple[str, str, Callable[[], Heads]]] = {
    "safeailab-eagle": ("eagle", "eagle", safeailab_eagle),
    "safeailab-eagle3": ("eagle3", "eagle3", safeailab_eagle3),
    "specforge-eagle3": ("eagle3", "eagle3", specforge_eagle3),
    "speculators-eagle3": ("eagle3", "eagle3", lambda: speculators_eagle3("the/target")),
    "fasterdecoding-medusa": ("medusa", "medusa", fasterdecoding_medusa),
    "untied-mlp": ("mlp-speculator", "mlp_speculator", untied_mlp_speculator),
}
"""Layout -> the demo's model that it is made of, the method, and the checkpoint."""


def _embedding() -> torch.Tensor:
    """A copy of the target's embedding, which published heads often contain."""
    tensors: dict[str, Any] = load_file(model_path("target") / "model.safetensors")
    embedding: torch.Tensor = tensors["model.embed_tokens.weight"].clone()
    return embedding
