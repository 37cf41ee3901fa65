"""How a small random target with MTP layers is made from a published layout.

The target is a model of transformers, which leaves the MTP layers out: their blocks are layers of
the target, drawn again. The next token is mostly a function of the newest one: the layers change
the embeddings little. The MTP layer has learned the same, so a good part of its drafts is accepted.
Each draft still depends on the target's hidden states and on the layer's KV.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors.torch import load_file

from tests.engine_adapter.proposers.heads import Heads, Tensors

HIDDEN = 64

MIX = 0.1
"""How much each layer adds to the embeddings."""

FROM_STATE = 0.08
"""How much of an MTP layer's input comes from the target's state; the rest is the token."""

BASE: Mapping[str, Any] = {
    "hidden_size": HIDDEN,
    "intermediate_size": 96,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "num_hidden_layers": 2,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""The fields of every configuration."""

LATENT_SIZES: Mapping[str, Any] = {
    # vLLM's kernels for CPUs have no other sizes of these two.
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "q_lora_rank": 48,
    "qk_nope_head_dim": 32,
    "v_head_dim": 32,
    "head_dim": 64,
    "num_key_value_heads": 2,
}
"""Of latent attention."""

NUM_LAYERS = "num_nextn_predict_layers"

OUTPUTS = ("o_proj.weight", "down_proj.weight", "out_proj.weight")
"""The matrices whose output is added to a token's state."""

_LAST_NORMS = "model.norm.weight", "backbone.norm_f.weight", "model.language_model.norm.weight"


@dataclass(frozen=True)
class Layout:
    """A kind of target, and where its checkpoint has its MTP layers.

    In names of the MTP layers, `{i}` is the index of one among them, `{n}` among all layers.

    Attributes:
        model_type: of transformers.
        fields: of the configuration, besides `BASE`.
        block: the beginning of the names of the target's layer that each MTP layer is like.
        folder: the beginning of the names in an MTP layer.
        projection: the name of the matrix [H, 2H] over embedding and state.
        norms: the names of vectors [H].
        state_first: whether the state comes before the embedding.
        has_ends: whether each layer has copies of the embeddings and of the output layer.
        renames: parts of names in the target's layer -> what they are in an MTP layer.
        published: fields of the published configuration that transformers does not write.
        num_layers: the field with the number of MTP layers; `None` if there is none.
    """

    model_type: str
    fields: Mapping[str, Any]
    block: str
    folder: str
    projection: str
    norms: tuple[str, ...]
    state_first: bool = False
    has_ends: bool = False
    renames: Mapping[str, str] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    num_layers: str | None = NUM_LAYERS

    def __call__(self, *, vocabulary: int = 2048, layers: int = 1, seed: int = 0) -> Heads:
        """A random target with this number of MTP layers."""
        config, tensors = self.plain_target(vocabulary, seed)
        tensors |= self.layers(tensors, config["num_hidden_layers"], layers=layers, seed=seed)
        if self.num_layers is not None:
            config[self.num_layers] = layers
        else:
            config.pop(NUM_LAYERS, None)
        return Heads({**config, **self.published}, tensors)

    def layers(
        self, target: Tensors, num_target_layers: int, *, layers: int = 1, seed: int = 0
    ) -> Tensors:
        """The tensors of MTP layers for a target with these tensors."""
        generator = torch.Generator().manual_seed(seed + 1)
        tensors: Tensors = {}
        for i in range(layers):
            n = num_target_layers + i
            folder = self.folder.format(i=i, n=n)
            for name in sorted(name for name in target if name.startswith(self.block)):
                own_name = folder + name.removeprefix(self.block)
                for part, replacement in self.renames.items():
                    own_name = own_name.replace(part, replacement)
                tensors[own_name] = drawn(name, target[name], generator)
            last_norm = next(target[name] for name in _LAST_NORMS if name in target)
            for name in self.norms:
                tensors[name.format(i=i, n=n)] = drawn(name, last_norm, generator)
            projection = self.new_projection(len(last_norm), generator)
            tensors[self.projection.format(i=i, n=n)] = projection
            if self.has_ends:
                embeddings, output = target["model.embed_tokens.weight"], target["lm_head.weight"]
                tensors[f"{folder}embed_tokens.weight"] = embeddings.clone()
                tensors[f"{folder}shared_head.head.weight"] = output.clone()
        return tensors

    def plain_target(self, vocabulary: int, seed: int) -> tuple[dict[str, Any], Tensors]:
        """The configuration and the tensors of the target alone."""
        from transformers import AutoConfig, AutoModelForCausalLM

        fields = {**BASE, **self.fields, "vocab_size": vocabulary}
        config = AutoConfig.for_model(self.model_type, **fields)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        written, tensors = saved(model)
        written["num_hidden_layers"] = config.num_hidden_layers
        generator = torch.Generator().manual_seed(seed)
        return written, {name: drawn(name, tensors[name], generator) for name in sorted(tensors)}

    def new_projection(self, hidden: int, generator: torch.Generator) -> torch.Tensor:
        from_state = torch.randn(hidden, hidden, generator=generator) * FROM_STATE * hidden**-0.5
        parts = [torch.eye(hidden), from_state]
        return torch.cat(parts[::-1] if self.state_first else parts, dim=1)


def saved(model: Any) -> tuple[dict[str, Any], Tensors]:
    """The configuration and the tensors of a model of transformers, as it writes them."""
    with TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        config = json.loads((Path(folder) / "config.json").read_text())
        return config, load_file(Path(folder) / "model.safetensors")


def drawn(name: str, tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(tensor.shape, generator=generator)
    if tensor.dim() != 2:
        return tensor + 0.2 * noise
    if "embed" in name:
        return noise
    scale = MIX if name.endswith(OUTPUTS) else 4.0 if name == "lm_head.weight" else 2.0
    return noise * scale * tensor.shape[-1] ** -0.5


def layout(
    model_type: str,
    block: int,
    folder: str,
    projection: str,
    *norms: str,
    begin: str = "model.",
    common: str = "",
    **how: Any,
) -> Layout:
    """A layout whose projection and norms are named like modules.

    Args:
        folder: of the MTP layer's block.
        common: the folder of the projection and the norms, if it is another one.
    """
    beside = common or folder
    return Layout(
        model_type,
        how.pop("fields", {}),
        f"{begin}layers.{block}.",
        f"{folder}.",
        f"{beside}.{projection}.weight",
        tuple(f"{beside}.{norm}.weight" for norm in norms),
        **how,
    )
