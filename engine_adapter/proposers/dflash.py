"""`dflash`: a small model on the target's hidden states drafts all k tokens in one pass.

Source: DFlash, arXiv 2602.06036. The hidden states of several target layers, combined by the matrix
`fc`, are the context that the head's layers attend to. Its input is a block: the newest token, and
a mask token for each draft. Attention inside the block is not causal. Checkpoints: those of z-lab,
`z-lab/*-DFlash*`.
"""

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

ARCHITECTURE = "DFlashDraftModel"


def _check(spec: ProposerSpec, target: TargetSizes) -> None:
    assert spec.model is not None
    checkpoint = Checkpoint(spec.model)
    if checkpoint.config.get("architectures") != [ARCHITECTURE]:
        raise checkpoint.field_error("architectures", f"must be [{ARCHITECTURE!r}]")
    checkpoint.require("hidden_size", target.hidden_size, "the target's hidden size")
    checkpoint.require("vocab_size", target.vocab_size, "the target's vocabulary")
    combined = _checked_block(checkpoint, target)
    if block := checkpoint.config.get("block_size"):
        checkpoint.integer("block_size", at_least=2)
        limit = f"the block size of {block} without the token before the drafts"
        checkpoint.check_k(spec.num_speculative_tokens, block - 1, limit)
    hidden = target.hidden_size
    needed: dict[str, Shape] = {
        "fc.weight": (hidden, combined * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    for i in range(checkpoint.integer("num_hidden_layers")):
        needed |= _layer(checkpoint, f"layers.{i}.")
    ends = {"embed_tokens.weight", "lm_head.weight"} & checkpoint.shapes.keys()
    checkpoint.check_tensors(needed | dict.fromkeys(ends, (target.vocab_size, hidden)))


def _checked_block(checkpoint: Checkpoint, target: TargetSizes) -> int:
    """Checks `dflash_config`; returns how many layers of the target are combined."""
    fields = checkpoint.config.get("dflash_config")
    if not isinstance(fields, dict):
        raise checkpoint.field_error("dflash_config", "must be an object")
    mask, layers = fields.get("mask_token_id"), fields.get("target_layer_ids")
    if type(mask) is not int or not 0 <= mask < target.vocab_size:
        message = f"must have mask_token_id, a token in [0, {target.vocab_size})"
        raise checkpoint.field_error("dflash_config", message)
    count = target.num_layers
    if not (
        isinstance(layers, list)
        and layers
        and all(type(i) is int and 0 <= i < (i + 1 if count is None else count) for i in layers)
        and len(set(layers)) == len(layers)
    ):
        message = f"must have target_layer_ids, different layers in [0, {count})"
        raise checkpoint.field_error("dflash_config", message)
    sliding = set(checkpoint.config.get("layer_types") or ()) - {"full_attention"}
    if sliding or fields.get("use_swa"):
        field = "layer_types" if sliding else "dflash_config"
        raise checkpoint.field_error(field, "must have full attention in all layers")
    return len(layers)


def _layer(checkpoint: Checkpoint, prefix: str) -> dict[str, Shape]:
    """The tensors of a Qwen3 layer, name -> shape."""
    hidden, inner = checkpoint.integer("hidden_size"), checkpoint.integer("intermediate_size")
    heads = checkpoint.integer("num_attention_heads")
    kv_heads = checkpoint.integer("num_key_value_heads", default=heads)
    size = checkpoint.integer("head_dim", default=hidden // heads)
    shapes = {
        "self_attn.q_proj": (heads * size, hidden),
        "self_attn.k_proj": (kv_heads * size, hidden),
        "self_attn.v_proj": (kv_heads * size, hidden),
        "self_attn.o_proj": (hidden, heads * size),
        "self_attn.q_norm": (size,),
        "self_attn.k_norm": (size,),
        "mlp.gate_proj": (inner, hidden),
        "mlp.up_proj": (inner, hidden),
        "mlp.down_proj": (hidden, inner),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    return {f"{prefix}{name}.weight": shape for name, shape in shapes.items()}


def _create(spec: ProposerSpec, host: DraftHost) -> Proposer:
    return host.block_head(spec)


METHOD = ProposerMethod(
    name="dflash",
    capabilities=Capabilities(model=True, draft_kv=True),
    default_k=7,
    options=draft_options.HEAD_OPTIONS,
    validate=draft_options.validate,
    create=_create,
    check=_check,
)
"""The entry in `METHODS`."""
