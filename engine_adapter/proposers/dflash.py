"""`dflash`: a small model on the target's hidden states drafts all k tokens in one pass.

Source: DFlash, arXiv 2602.06036. The hidden states of several target layers, combined by the matrix
`fc`, are the context that the head's layers attend to. Its input is a block: the newest token, and
a mask token for each draft. Attention inside the block is not causal; in layers with a window it
usually is. Checkpoints: those of z-lab, `z-lab/*-DFlash*`, and those that the library `speculators`
writes. Heads of DFlash2 and XPress are of this method, as in vLLM: see `dflash2` and `xpress`.
"""

from collections.abc import Sequence

from engine_adapter.proposers import dflash2, draft_options, xpress
from engine_adapter.proposers.checkpoint import Checkpoint, Shape
from engine_adapter.proposers.contract import (
    Capabilities,
    ProposerMethod,
    ProposerSpec,
    TargetSizes,
)
from engine_adapter.proposers.speculators import CONFIG, KIND, usual_fields

ARCHITECTURE = "DFlashDraftModel"

FROM_NEWEST = "sample_from_anchor"
"""The field that says whether the place of the newest token gives a draft."""

NON_CAUSAL_WINDOWS = "sliding_window_non_causal"
"""The field in the format of `speculators` that says whether layers with a window see a whole
block. Those without one always do."""

_FULL, _WINDOW, _USES = "full_attention", "sliding_attention", "use_sliding_window"
_FEWER, _SINKS = "draft_vocab_size", "attention_sink_bias"


def _check(spec: ProposerSpec, target: TargetSizes) -> None:
    architectures = (ARCHITECTURE, dflash2.ARCHITECTURE, xpress.ARCHITECTURE)
    checkpoint = open_block_head(spec, architectures, target)
    # In the format of `speculators` each is a field of its own.
    own_fields = checkpoint if CONFIG in checkpoint.config else checkpoint.part("dflash_config")
    num_combined = check_inputs(checkpoint, own_fields, target)
    for fields in (own_fields, checkpoint):
        # vLLM has no heads whose newest token gives a draft, but DSpark heads.
        if fields.flag(FROM_NEWEST):
            raise fields.field_error(FROM_NEWEST, "must be false: a mask gives the first draft")
    k = spec.num_speculative_tokens
    if block := checkpoint.config.get("block_size"):
        checkpoint.integer("block_size", at_least=2)
        limit = f"the block size of {block} without the token before the drafts"
        checkpoint.check_k(k, block - 1, limit)
    needed = tensors(checkpoint, own_fields, target, num_combined)
    if checkpoint.config["architectures"] == [dflash2.ARCHITECTURE]:
        needed |= dflash2.check(checkpoint, own_fields, target, k)
    if checkpoint.config["architectures"] == [xpress.ARCHITECTURE]:
        needed |= xpress.check(checkpoint, target, k)
    checkpoint.check_tensors(needed)


def open_block_head(
    spec: ProposerSpec, architectures: Sequence[str], target: TargetSizes
) -> Checkpoint:
    """The checkpoint of a head that drafts blocks, with the sizes of the target.

    If the checkpoint is in the format of `speculators`, its `config` gets the fields of its layers,
    and the architecture under which vLLM serves it.

    Args:
        architectures: those that the head may have.

    Raises:
        CheckpointError: it is of another architecture, or of another size.
    """
    assert spec.model is not None
    checkpoint = Checkpoint(spec.model)
    if CONFIG in checkpoint.config:
        fields = usual_fields(checkpoint, spec.method)
        is_second = fields[KIND] == dflash2.KIND
        architecture = dflash2.ARCHITECTURE if is_second else architectures[0]
        checkpoint.config = {FROM_NEWEST: False, **fields, "architectures": [architecture]}
    if checkpoint.config.get("architectures") not in [[name] for name in architectures]:
        expected = " or ".join(f"[{name!r}]" for name in architectures)
        raise checkpoint.field_error("architectures", f"must be {expected}")
    for name in ("hidden_size", "target_hidden_size"):
        checkpoint.require(name, target.hidden_size, "the target's hidden size")
    checkpoint.integer("vocab_size")  # vLLM would read a default of its own, or fail
    checkpoint.require("vocab_size", target.vocab_size, "the target's vocabulary")
    return checkpoint


def check_inputs(checkpoint: Checkpoint, own_fields: Checkpoint, target: TargetSizes) -> int:
    """Checks what a block reads: the token of a mask, and layers of the target.

    Args:
        own_fields: the part of the checkpoint that has both.

    Returns:
        How many layers of the target are combined.

    Raises:
        CheckpointError: a field is missing or out of range.
    """
    numbers, first_layer = "target_layer_ids", 0
    if CONFIG in checkpoint.config:
        numbers, first_layer = "aux_hidden_state_layer_ids", 1
    mask, layers = own_fields.config.get("mask_token_id"), own_fields.config.get(numbers)
    if type(mask) is not int or not 0 <= mask < target.vocab_size:
        limits = f"must be a token in [0, {target.vocab_size})"
        raise own_fields.field_error("mask_token_id", limits)
    count = target.num_layers
    stop = None if count is None else first_layer + count
    if not (
        isinstance(layers, list)
        and layers
        and all(type(i) is int and first_layer <= i < (stop or i + 1) for i in layers)
        and len(set(layers)) == len(layers)
    ):
        limits = f"must be different layers in [{first_layer}, {stop})"
        raise own_fields.field_error(numbers, limits)
    _check_windows(checkpoint, own_fields)
    return len(layers)


def _check_windows(checkpoint: Checkpoint, own_fields: Checkpoint) -> None:
    """Checks which layers have a sliding window, and its size.

    Raises `CheckpointError` for a field without which vLLM cannot tell, or would read others.
    """
    config = checkpoint.config
    # vLLM reads these fields there only.
    within = own_fields if own_fields is not checkpoint else None
    all_have = within is not None and within.flag("use_swa")
    if within is not None:
        within.flag("causal")
        within.number("attention_value_scale", positive=False)
    kinds = config.get("layer_types")
    if kinds:
        if not isinstance(kinds, list) or not set(map(str, kinds)) <= {_FULL, _WINDOW}:
            raise checkpoint.field_error("layer_types", f"must list {_FULL} and {_WINDOW}")
        if len(kinds) != checkpoint.integer("num_hidden_layers"):
            raise checkpoint.field_error("layer_types", "must name the kind of each layer")
    elif config.get(_USES) or (config.get(_USES) is None and config.get("sliding_window")):
        raise checkpoint.field_error(
            _USES, "must be false without layer_types, which say where a window is"
        )
    if not all_have and _WINDOW not in (kinds or ()):
        return
    if within is not None and within.config.get("swa_window_size") is not None:
        within.integer("swa_window_size")
        return
    if config.get(_USES) is not True:  # vLLM drops `sliding_window` then
        raise checkpoint.field_error(_USES, "must be true: layers have a window")
    checkpoint.integer("sliding_window")


def tensors(
    checkpoint: Checkpoint, own_fields: Checkpoint, target: TargetSizes, num_combined: int
) -> dict[str, Shape]:
    """The tensors of a head whose layers are Qwen3's, name -> shape.

    Args:
        own_fields: the part of the checkpoint that `check_inputs` read.
        num_combined: how many layers of the target it combines.
    """
    hidden, vocabulary = target.hidden_size, target.vocab_size
    needed: dict[str, Shape] = {
        "fc.weight": (hidden, num_combined * hidden),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    has_sinks = own_fields.flag(_SINKS, default=checkpoint.flag(f"add_swa_{_SINKS}"))
    for i in range(checkpoint.integer("num_hidden_layers")):
        needed |= _layer(checkpoint, f"layers.{i}.")
        if has_sinks:
            heads = checkpoint.integer("num_attention_heads")
            needed[f"layers.{i}.self_attn.{_SINKS}"] = (heads,)
    drafted = num_drafted(checkpoint, target)
    output: dict[str, Shape] = {"lm_head.weight": (drafted, hidden)}
    optional: dict[str, Shape] = {"embed_tokens.weight": (vocabulary, hidden), **output}
    if drafted != vocabulary:
        needed |= {"d2t": (drafted,), **output}
        optional["t2d"] = (vocabulary,)
    return needed | {name: optional[name] for name in optional if name in checkpoint.shapes}


def num_drafted(checkpoint: Checkpoint, target: TargetSizes) -> int:
    """How many tokens of the vocabulary a head drafts; raises `CheckpointError` for too many."""
    return checkpoint.integer(_FEWER, at_most=target.vocab_size, default=target.vocab_size)


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


METHOD = ProposerMethod(
    name="dflash",
    capabilities=Capabilities(model=True, draft_kv=True),
    default_k=7,
    options=draft_options.HEAD_OPTIONS,
    validate=draft_options.validate,
    create=lambda spec, host: host.block_head(spec),
    check=_check,
)
"""The entry in `METHODS`."""
