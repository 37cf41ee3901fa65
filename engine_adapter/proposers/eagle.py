"""`eagle` and `eagle3`: a decoder layer on top of the target's hidden states drafts k tokens.

Sources: EAGLE, arXiv 2401.15077; EAGLE-3, arXiv 2503.01840. From the hidden state of a position
and the embedding of the next token, the head predicts the hidden state of the next position; the
output layer turns this state into the draft. EAGLE reads the target's final hidden state, [H].
EAGLE-3 reads those of several layers, [layers * H], combined into one by its matrix `fc`, and may
have its own output layer over a smaller vocabulary. Here the drafts are a chain, not a tree.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine_adapter.proposers import draft_options
from engine_adapter.proposers.checkpoint import Checkpoint, Shape
from engine_adapter.proposers.contract import (
    Capabilities,
    DraftHost,
    Proposer,
    ProposerMethod,
    ProposerSpec,
    TargetSizes,
)

AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
"""The field with the target's layers that the head reads; also found in `eagle_config`."""

_EAGLE = ("LlamaForCausalLM", "EagleLlamaForCausalLM")
_EAGLE3 = ("LlamaForCausalLM", "Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3")


def aux_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The target's layers that a head reads, ascending; empty for an EAGLE-3 head's default.

    Layer i is the output of the target's first i layers. A DFlash head counts from 0.

    Args:
        config: the fields of the head's `config.json`.
    """
    named = config.get(AUX_LAYERS) or (config.get("eagle_config") or {}).get(AUX_LAYERS)
    counted = (config.get("dflash_config") or {}).get("target_layer_ids")
    return tuple(sorted(set(named or [i + 1 for i in counted or ()])))


def check_eagle(spec: ProposerSpec, target: TargetSizes) -> None:
    """`ProposerMethod.check` for the checkpoints that vLLM's EAGLE head with Llama layers loads."""
    checkpoint = _open(spec, _EAGLE)
    checkpoint.require("hidden_size", target.hidden_size, "the target's hidden size")
    checkpoint.require("vocab_size", target.vocab_size, "the target's vocabulary")
    hidden = target.hidden_size
    needed: dict[str, Shape] = {"fc.weight": (hidden, 2 * hidden)}
    for i in range(checkpoint.integer("num_hidden_layers")):
        needed |= _layer(checkpoint, f"layers.{i}.", hidden, first=i == 0)
    _check_tensors(checkpoint, needed, {"embed_tokens.weight": (target.vocab_size, hidden)})


def check_eagle3(spec: ProposerSpec, target: TargetSizes) -> None:
    """`ProposerMethod.check` for those that vLLM's EAGLE-3 head with Llama layers loads."""
    checkpoint = _open(spec, _EAGLE3)
    own = "target_hidden_size" in checkpoint.config
    size_field = "target_hidden_size" if own else "hidden_size"
    checkpoint.require(size_field, target.hidden_size, "the target's hidden size")
    checkpoint.require("vocab_size", target.vocab_size, "the target's vocabulary")
    layers = _checked_aux_layers(checkpoint, target)
    hidden, combined = checkpoint.integer("hidden_size"), len(layers) or 3
    first = "midlayer." if "midlayer.hidden_norm.weight" in checkpoint.shapes else "layers.0."
    needed = _layer(checkpoint, first, 2 * hidden) | {
        "norm.weight": (hidden,),
        f"{first}hidden_norm.weight": (hidden,),
        "fc.weight": (hidden, combined * target.hidden_size),
    }
    if checkpoint.flag("norm_before_fc"):
        needed["input_norm.weight"] = (combined * target.hidden_size,)
    if checkpoint.flag("fc_norm"):
        needed |= {f"fc_norm.{i}.weight": (target.hidden_size,) for i in range(combined)}
    for i in range(1, checkpoint.integer("num_hidden_layers")):
        needed |= _layer(checkpoint, f"layers.{i}.", hidden)
    drafted = checkpoint.integer("draft_vocab_size", default=target.vocab_size)
    if drafted != target.vocab_size:
        needed |= {"d2t": (drafted,), "lm_head.weight": (drafted, hidden)}
    optional = {
        "embed_tokens.weight": (target.vocab_size, hidden),
        "lm_head.weight": (drafted, hidden),
        "d2t": (drafted,),
        "t2d": (target.vocab_size,),
    }
    _check_tensors(checkpoint, needed, optional)


def _open(spec: ProposerSpec, architectures: Sequence[str]) -> Checkpoint:
    assert spec.model is not None
    checkpoint = Checkpoint(spec.model)
    if "speculators_config" in checkpoint.config:
        checkpoint.config = _from_speculators(checkpoint, spec.method)
    found = checkpoint.config.get("architectures")
    if not isinstance(found, list) or len(found) != 1 or found[0] not in architectures:
        raise checkpoint.field_error("architectures", f"must be one of {', '.join(architectures)}")
    return checkpoint


def _from_speculators(checkpoint: Checkpoint, method: str) -> Mapping[str, Any]:
    """Converts the configuration format of the library `speculators` to the usual one."""
    fields, layer = checkpoint.config, checkpoint.config.get("transformer_layer_config")
    if fields.get("speculators_model_type") != method:
        raise checkpoint.field_error("speculators_model_type", f"must be {method!r}")
    if not isinstance(layer, dict) or layer.get("model_type", "llama") != "llama":
        raise checkpoint.field_error("transformer_layer_config", "must describe a Llama layer")
    return {**layer, **fields, "architectures": [_EAGLE3[-1]]}


def _checked_aux_layers(checkpoint: Checkpoint, target: TargetSizes) -> tuple[int, ...]:
    try:
        layers = aux_layers(checkpoint.config)
        known = all(type(i) is int and 0 <= i <= (target.num_layers or i) for i in layers)
    except (TypeError, AttributeError):
        known = False
    if not known:
        raise checkpoint.field_error(
            AUX_LAYERS if AUX_LAYERS in checkpoint.config else "eagle_config",
            f"must name layers of the target in {AUX_LAYERS}, 0 to {target.num_layers}",
        )
    return layers


def _layer(
    checkpoint: Checkpoint, prefix: str, width: int, *, first: bool = False
) -> dict[str, Shape]:
    """The tensors of a Llama layer whose attention reads `width` elements, name -> shape.

    The `first` layer of EAGLE has no norm before its attention.
    """
    hidden, inner = checkpoint.integer("hidden_size"), checkpoint.integer("intermediate_size")
    heads = checkpoint.integer("num_attention_heads")
    kv_heads = checkpoint.integer("num_key_value_heads", default=heads)
    size = checkpoint.integer("head_dim", default=hidden // heads)
    shapes = {
        "self_attn.q_proj": (heads * size, width),
        "self_attn.k_proj": (kv_heads * size, width),
        "self_attn.v_proj": (kv_heads * size, width),
        "self_attn.o_proj": (hidden, heads * size),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "post_attention_layernorm": (hidden,),
    }
    if not first:
        shapes["input_layernorm"] = (hidden,)
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def _check_tensors(
    checkpoint: Checkpoint, needed: Mapping[str, Shape], optional: Mapping[str, Shape]
) -> None:
    present = {name: shape for name, shape in optional.items() if name in checkpoint.shapes}
    inverse = [name for name in checkpoint.shapes if name.endswith("rotary_emb.inv_freq")]
    checkpoint.check_tensors({**present, **needed}, inverse)


def _create(spec: ProposerSpec, host: DraftHost) -> Proposer:
    return host.draft_head(spec)


EAGLE = ProposerMethod(
    name="eagle",
    capabilities=Capabilities(model=True, draft_kv=True),
    default_k=4,
    options=draft_options.OPTIONS,
    validate=draft_options.validate,
    create=_create,
    check=check_eagle,
)
"""The entry in `METHODS` for EAGLE heads."""

EAGLE3 = ProposerMethod(
    name="eagle3",
    capabilities=Capabilities(model=True, draft_kv=True),
    default_k=4,
    options=draft_options.OPTIONS,
    validate=draft_options.validate,
    create=_create,
    check=check_eagle3,
)
"""The entry in `METHODS` for EAGLE-3 heads."""
