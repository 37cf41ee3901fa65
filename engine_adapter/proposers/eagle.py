"""`eagle` and `eagle3`: a decoder layer on top of the target's hidden states drafts k tokens.

Sources: EAGLE, arXiv 2401.15077; EAGLE-3, arXiv 2503.01840. From the hidden state of a position
and the embedding of the next token, the head predicts the hidden state of the next position; the
output layer turns this state into the draft. EAGLE reads the target's final hidden state, [H].
EAGLE-3 reads those of several layers, [layers * H], combined into one by its matrix `fc`, and may
have its own output layer over a smaller vocabulary. Here the drafts are a sequence, not a tree.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from engine_adapter.proposers import draft_options
from engine_adapter.proposers.checkpoint import Checkpoint, Shape
from engine_adapter.proposers.contract import (
    Capabilities,
    ProposerMethod,
    ProposerSpec,
    TargetSizes,
)
from engine_adapter.proposers.speculators import CONFIG, LAYER, usual_fields

AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
"""The field with the target's layers that the head reads; also found in `eagle_config`."""

_EAGLE = ("LlamaForCausalLM", "EagleLlamaForCausalLM")
_LLAMA, _QWEN3 = "Eagle3LlamaForCausalLM", "Eagle3Qwen3ForCausalLM"
_LATENT = ("Eagle3DeepseekV2ForCausalLM", "Eagle3DeepseekV3ForCausalLM")
"""Those whose layers have latent attention, as DeepSeek's and Kimi's."""

_EAGLE3 = (
    "LlamaForCausalLM",
    _LLAMA,
    "LlamaForCausalLMEagle3",
    *(f"Eagle3{target}ForCausalLM" for target in ("Qwen2_5vl", "Qwen3vl", "MiniMaxM2")),
    _QWEN3,
    *_LATENT,
)
_SPECULATORS = {"llama": _LLAMA, "qwen3": _QWEN3}
"""The kind of layer in the format of `speculators` -> the architecture of such a head."""

FC_BIAS = "fc.bias"
"""The bias that the first published EAGLE heads have."""


def aux_layers(config: Mapping[str, Any]) -> tuple[int, ...]:
    """The target's layers that a head reads, ascending; empty for an EAGLE-3 head's default.

    Layer i is the output of the target's first i layers. DFlash and DSpark heads count from 0.

    Args:
        config: the fields of the head's `config.json`.
    """
    layers = config.get(AUX_LAYERS) or (config.get("eagle_config") or {}).get(AUX_LAYERS)
    counted = (config.get("dflash_config") or config).get("target_layer_ids")
    return tuple(sorted(set(layers or [i + 1 for i in counted or ()])))


def default_aux_layers(num_layers: int) -> tuple[int, int, int]:
    """The layers that a head reads if its configuration names none, as the original head does."""
    return 2, num_layers // 2, num_layers - 3


def check_eagle(spec: ProposerSpec, target: TargetSizes) -> None:
    """`ProposerMethod.check` for the checkpoints that vLLM's EAGLE head with Llama layers loads."""
    checkpoint = _open(spec, _EAGLE)
    checkpoint.require("hidden_size", target.hidden_size, "the target's hidden size")
    checkpoint.require("vocab_size", target.vocab_size, "the target's vocabulary")
    hidden = target.hidden_size
    needed: dict[str, Shape] = {"fc.weight": (hidden, 2 * hidden)}
    for i in range(checkpoint.integer("num_hidden_layers")):
        needed |= _layer(checkpoint, f"layers.{i}.", hidden, is_first=i == 0)
    optional = {"embed_tokens.weight": (target.vocab_size, hidden), FC_BIAS: (hidden,)}
    _check_tensors(checkpoint, needed, optional)


def check_eagle3(spec: ProposerSpec, target: TargetSizes) -> None:
    """`ProposerMethod.check` for the checkpoints that vLLM's EAGLE-3 heads load."""
    checkpoint = _open(spec, _EAGLE3)
    if checkpoint.config.get("model_type") == "deepseek_v3":
        message = "must be deepseek_v2 or kimi_k2: vLLM takes another one for a target's MTP layers"
        raise checkpoint.field_error("model_type", message)
    hidden, vocabulary = checkpoint.integer("hidden_size"), target.vocab_size
    has_target_size = checkpoint.config.get("target_hidden_size") is not None
    size_field = "target_hidden_size" if has_target_size else "hidden_size"
    checkpoint.require(size_field, target.hidden_size, "the target's hidden size")
    checkpoint.require("vocab_size", vocabulary, "the target's vocabulary")
    prefix = "midlayer." if "midlayer.hidden_norm.weight" in checkpoint.shapes else "layers.0."
    needed = _layer(checkpoint, prefix, 2 * hidden) | {
        "norm.weight": (hidden,),
        f"{prefix}hidden_norm.weight": (hidden,),
        **_combination(checkpoint, target),
    }
    for i in range(1, checkpoint.integer("num_hidden_layers")):
        needed |= _layer(checkpoint, f"layers.{i}.", hidden)
    drafted = checkpoint.integer("draft_vocab_size", default=vocabulary)
    embedding = {"embed_tokens.weight": (vocabulary, hidden)}
    output = {"lm_head.weight": (drafted, hidden)}
    if hidden != target.hidden_size:  # the target's would not fit
        needed |= {**embedding, **output}
    if drafted != vocabulary:
        needed |= {"d2t": (drafted,), **output}
    vocabulary_maps = {"d2t": (drafted,), "t2d": (vocabulary,)}
    _check_tensors(checkpoint, needed, {**embedding, **output, **vocabulary_maps})


def _combination(checkpoint: Checkpoint, target: TargetSizes) -> dict[str, Shape]:
    """The tensors that combine the target's layers into one state; none for a head that reads one.

    Raises `CheckpointError` if the layers are not the target's.
    """
    layers = _checked_aux_layers(checkpoint, target)
    inner = checkpoint.config.get("eagle_config") or {}
    if inner.get("use_aux_hidden_state") is False:
        checkpoint.require("hidden_size", target.hidden_size, "the target's hidden size")
        return {}
    count = len(layers) or 3
    checkpoint.require("num_aux_hidden_states", count, "the number of layers that it reads")
    needed: dict[str, Shape] = {
        "fc.weight": (checkpoint.integer("hidden_size"), count * target.hidden_size)
    }
    if checkpoint.flag("norm_before_fc") or inner.get("norm_before_fc"):
        needed["input_norm.weight"] = (count * target.hidden_size,)
    if checkpoint.flag("fc_norm"):
        needed |= {f"fc_norm.{i}.weight": (target.hidden_size,) for i in range(count)}
    return needed


def _open(spec: ProposerSpec, architectures: Sequence[str]) -> Checkpoint:
    assert spec.model is not None
    checkpoint = Checkpoint(spec.model)
    if CONFIG in checkpoint.config:
        checkpoint.config = _from_speculators(checkpoint, spec.method)
    names = checkpoint.config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or names[0] not in architectures:
        raise checkpoint.field_error("architectures", f"must be one of {', '.join(architectures)}")
    return checkpoint


def _from_speculators(checkpoint: Checkpoint, method: str) -> Mapping[str, Any]:
    """Converts the configuration format of the library `speculators` to the usual one."""
    fields = usual_fields(checkpoint, method)
    kind = fields[LAYER].get("model_type", "llama")
    if kind not in _SPECULATORS:
        kinds = " or ".join(_SPECULATORS)
        message = f"must describe a layer of the model_type {kinds}"
        raise checkpoint.field_error(LAYER, message)
    return {**fields, "architectures": [_SPECULATORS[kind]]}


def _checked_aux_layers(checkpoint: Checkpoint, target: TargetSizes) -> tuple[int, ...]:
    """`aux_layers` of the checkpoint. Raises `CheckpointError` if they are not the target's."""
    num_layers = target.num_layers
    inner = checkpoint.config.get("eagle_config") or {}
    try:
        layers = aux_layers(checkpoint.config)
        is_valid = all(type(i) is int and 0 <= i <= (num_layers or i) for i in layers)
    except (TypeError, AttributeError):
        is_valid = False
    if not is_valid:
        raise checkpoint.field_error(
            AUX_LAYERS if AUX_LAYERS in checkpoint.config else "eagle_config",
            f"must name layers of the target in {AUX_LAYERS}, 0 to {num_layers}",
        )
    reads_layers = inner.get("use_aux_hidden_state", True)
    if (
        reads_layers
        and not layers
        and num_layers
        and len(set(default := default_aux_layers(num_layers))) < 3
    ):
        raise checkpoint.field_error(
            AUX_LAYERS,
            "must name the target's layers that the head reads: without it they are "
            f"{', '.join(map(str, default))}, and a target of {num_layers} layers has no such "
            "three",
        )
    return layers


def _layer(
    checkpoint: Checkpoint, prefix: str, width: int, *, is_first: bool = False
) -> dict[str, Shape]:
    """The tensors of a layer whose attention reads `width` elements, name -> shape.

    The first layer of EAGLE (`is_first`) has no norm before its attention.
    """
    hidden, inner = checkpoint.integer("hidden_size"), checkpoint.integer("intermediate_size")
    mlp = {"gate_proj": (inner, hidden), "up_proj": (inner, hidden), "down_proj": (hidden, inner)}
    shapes: dict[str, Shape] = {"post_attention_layernorm.weight": (hidden,)}
    if not is_first:
        shapes["input_layernorm.weight"] = (hidden,)
    shapes |= _linear("mlp", mlp, checkpoint.flag("mlp_bias"))
    is_latent = not set(_LATENT).isdisjoint(checkpoint.config["architectures"])
    shapes |= (_latent_attention if is_latent else _attention)(checkpoint, width)
    return {f"{prefix}{name}": shape for name, shape in shapes.items()}


def _linear(part: str, matrices: Mapping[str, Shape], has_bias: bool) -> dict[str, Shape]:
    """The tensors of linear layers, name -> shape."""
    shapes = {f"{part}.{name}.weight": shape for name, shape in matrices.items()}
    if has_bias:
        shapes |= {f"{part}.{name}.bias": shape[:1] for name, shape in matrices.items()}
    return shapes


def _attention(checkpoint: Checkpoint, width: int) -> dict[str, Shape]:
    """The tensors of the attention of a Llama or Qwen3 layer, name -> shape."""
    hidden = checkpoint.integer("hidden_size")
    heads = checkpoint.integer("num_attention_heads")
    kv_heads = checkpoint.integer("num_key_value_heads", default=heads)
    size = checkpoint.integer("head_dim", default=hidden // heads)
    matrices = {
        "q_proj": (heads * size, width),
        "k_proj": (kv_heads * size, width),
        "v_proj": (kv_heads * size, width),
        "o_proj": (hidden, heads * size),
    }
    shapes = _linear("self_attn", matrices, checkpoint.flag("attention_bias"))
    if _QWEN3 in checkpoint.config["architectures"]:
        shapes |= {"self_attn.q_norm.weight": (size,), "self_attn.k_norm.weight": (size,)}
    return shapes


def _latent_attention(checkpoint: Checkpoint, width: int) -> dict[str, Shape]:
    """The tensors of DeepSeek's latent attention (MLA), name -> shape.

    Source: DeepSeek-V2, arXiv 2405.04434, section 2.1. vLLM loads heads whose queries have a latent
    state, too.
    """
    heads = checkpoint.integer("num_attention_heads")
    rotated, plain = (checkpoint.integer(f"qk_{part}_head_dim") for part in ("rope", "nope"))
    latent, values = checkpoint.integer("kv_lora_rank"), checkpoint.integer("v_head_dim")
    rank = checkpoint.integer("q_lora_rank")
    tensors: dict[str, Shape] = {
        "q_a_proj": (rank, width),
        "q_a_layernorm": (rank,),
        "q_b_proj": (heads * (plain + rotated), rank),
        "kv_a_proj_with_mqa": (latent + rotated, width),
        "kv_a_layernorm": (latent,),
        "kv_b_proj": (heads * (plain + values), latent),
        "o_proj": (checkpoint.integer("hidden_size"), heads * values),
    }
    return _linear("self_attn", tensors, has_bias=False)


def _check_tensors(
    checkpoint: Checkpoint, needed: Mapping[str, Shape], optional: Mapping[str, Shape]
) -> None:
    present = {name: shape for name, shape in optional.items() if name in checkpoint.shapes}
    inverse = [name for name in checkpoint.shapes if name.endswith("rotary_emb.inv_freq")]
    checkpoint.check_tensors({**present, **needed}, inverse)


EAGLE = ProposerMethod(
    name="eagle",
    capabilities=Capabilities(model=True, draft_kv=True),
    default_k=4,
    options=draft_options.HEAD_OPTIONS,
    validate=draft_options.validate,
    create=lambda spec, host: host.draft_head(spec),
    check=check_eagle,
)
"""The entry in `METHODS` for EAGLE heads."""

EAGLE3 = ProposerMethod(
    name="eagle3",
    capabilities=Capabilities(model=True, draft_kv=True),
    default_k=4,
    options=draft_options.HEAD_OPTIONS,
    validate=draft_options.validate,
    create=lambda spec, host: host.draft_head(spec),
    check=check_eagle3,
)
"""The entry in `METHODS` for EAGLE-3 heads."""
