"""What a DFlash2 head has beside a DFlash head: convolutions in its layers, and a selector.

Source: DFlash2, github.com/z-lab/dflash and inco.ai/blog/dflash2. Before and after the attention
and the MLP of a layer, each token of a block is mixed with those before it there. A pass gives
the likeliest tokens of each place, the candidates; the selector adds to the logit of a candidate
what follows from the token before it. Checkpoints: those of z-lab, and those that the library
`speculators` writes.
"""

from engine_adapter.proposers.checkpoint import Checkpoint, Shape
from engine_adapter.proposers.contract import TargetSizes

ARCHITECTURE = "DFlash2DraftModel"

KIND = "dflash2"
"""The algorithm's name in the format of `speculators`."""

_TAPS, _GROUP, _RANK = "conv_kernel_size", "conv_group_size", "selector_rank"
_CANDIDATES = "selector_top_k"
_SCALES = ("input_embedding_scale", "output_multiplier")
_CAP = "final_logit_softcapping"
_SELECTOR = "candidate_selector."


def check(
    checkpoint: Checkpoint, own_fields: Checkpoint, target: TargetSizes, k: int
) -> dict[str, Shape]:
    """Checks the fields of the convolutions and of the selector.

    Args:
        own_fields: the part of the checkpoint that has them.
        k: the drafts of a block.

    Returns:
        The tensors that a DFlash head does not have, name -> shape.

    Raises:
        CheckpointError: a field is missing or out of range.
    """
    hidden = target.hidden_size
    taps, group = own_fields.integer(_TAPS), own_fields.integer(_GROUP)
    rank = own_fields.integer(_RANK)
    own_fields.integer(_CANDIDATES, at_most=target.vocab_size)
    if taps > k + 1:
        raise own_fields.field_error(_TAPS, f"must be at most {k + 1}, the tokens of a block")
    if hidden % group:
        raise own_fields.field_error(_GROUP, f"must divide {hidden}, the hidden size")
    for name in _SCALES:
        own_fields.number(name)
    own_fields.number(_CAP, positive=False)
    checkpoint.require("draft_vocab_size", target.vocab_size, "the target's vocabulary")
    tensors: dict[str, Shape] = {
        f"{_SELECTOR}predecessor_codebook": (target.vocab_size, rank),
        f"{_SELECTOR}successor_codebook": (target.vocab_size, rank),
        f"{_SELECTOR}hidden_projection.weight": (rank, hidden),
    }
    for i in range(checkpoint.integer("num_hidden_layers")):
        for conv in (f"layers.{i}.attention_conv", f"layers.{i}.mlp_conv"):
            tensors[f"{conv}.base_kernel"] = (2, taps, hidden)
            tensors[f"{conv}.kernel_projection.weight"] = (2 * taps * hidden // group, hidden)
    return tensors
