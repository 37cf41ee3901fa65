"""What an XPress head has beside a DFlash head: a refiner, which adds a bias to a block's logits.

Source: xPress, arXiv 2608.02438. The refiner reads the hidden state of a place, the mean of the
block's, and the token before; a mixer that is causal lets a place see the inputs of those before
it. Published heads are trained to draft by passes over the whole block, whose drafts settle from
the first place on. Here a block is drafted place by place, which gives the settled drafts. vLLM has
these heads since 0.33.
"""

from engine_adapter.proposers.checkpoint import Checkpoint, Shape
from engine_adapter.proposers.contract import TargetSizes

ARCHITECTURE = "Qwen3XPressModel"

_CANDIDATES = "xpress_topc"
"""The field with the number of tokens of a place that get a bias; 0 for all tokens."""

_BLOCK, _RANK, _INNER = "xpress_block_size", "xpress_rank", "xpress_mlp_hidden"


def check(checkpoint: Checkpoint, target: TargetSizes, k: int) -> dict[str, Shape]:
    """Checks the fields of the refiner.

    Args:
        k: the drafts of a block.

    Returns:
        The tensors that a DFlash head does not have, name -> shape.

    Raises:
        CheckpointError: a field is out of range.
    """
    block = checkpoint.integer(_BLOCK, at_least=2, default=16)
    checkpoint.check_k(k, block - 1, f"{_BLOCK} without the token before the drafts")
    rank = checkpoint.integer(_RANK, default=256)
    inner = checkpoint.integer(_INNER, default=512)
    checkpoint.integer(_CANDIDATES, at_least=0, at_most=target.vocab_size, default=0)
    checkpoint.require("draft_vocab_size", target.vocab_size, "the target's vocabulary")
    hidden, vocabulary = target.hidden_size, target.vocab_size
    shapes: dict[str, Shape] = {
        "w1.weight": (vocabulary, rank),
        "w2.weight": (vocabulary, rank),
        "down_h.weight": (rank, hidden),
        "down_g.weight": (rank, hidden),
        "in_proj.weight": (rank, 3 * rank),
        "mix.L": (rank, block, block),
        "mlp.gate_proj.weight": (inner, rank),
        "mlp.up_proj.weight": (inner, rank),
        "mlp.down_proj.weight": (rank, inner),
    }
    return {f"xpress_head.{name}": shape for name, shape in shapes.items()}
