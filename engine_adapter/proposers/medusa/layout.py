"""The tensors of a Medusa checkpoint, in FasterDecoding's layout and in vLLM's."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from engine_adapter.proposers.checkpoint import MAX_PARTS, Checkpoint, Shape
from engine_adapter.proposers.contract import TargetSizes

FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
"""FasterDecoding's file names of weights, tried before the usual ones."""

SHARED_OUTPUT, TOKEN_MAP = "lm_head.weight", "token_map"


@dataclass(frozen=True, slots=True)
class Layout:
    """A checkpoint's sizes, and the names of its tensors.

    Attributes:
        num_heads: the number of heads, and so the largest k.
        weights: the matrix of each layer and head, [H, H].
        biases: the bias of each layer and head, [H]; empty if there are none.
        outputs: the output matrix of each head, [V', H]; one name if all heads share it; empty if
            they use the target's output layer.
        token_map: the token id of each row of an output matrix, [V']; `None` if the rows are the
            whole vocabulary, V' = V.
        needed: the shape of each of these tensors.
    """

    num_heads: int
    weights: Sequence[Sequence[str]]
    biases: Sequence[Sequence[str]]
    outputs: Sequence[str]
    token_map: str | None
    needed: Mapping[str, Shape]


@dataclass(frozen=True, slots=True)
class _Names:
    """The patterns of the tensor names in a layout."""

    block: str
    output: str


_VLLM = _Names("blocks.{head}.layers.{layer}.{part}", "lm_heads.{head}.weight")
_FASTERDECODING = _Names("{head}.{layer}.linear.{part}", "{head}.{num_layers}.weight")


def read_layout(checkpoint: Checkpoint, target: TargetSizes) -> Layout:
    """The checkpoint's layout. Raises `CheckpointError` if it does not fit the target."""
    if "medusa_num_heads" not in checkpoint.config:  # FasterDecoding's have no architecture
        checkpoint.require_architecture("MedusaModel", "medusa")
    checkpoint.require("hidden_size", target.hidden_size, "the target's hidden size")
    checkpoint.require("vocab_size", target.vocab_size, "the target's vocabulary")
    hidden, shapes = target.hidden_size, checkpoint.shapes
    names = _FASTERDECODING if "0.0.linear.weight" in shapes else _VLLM
    num_layers = checkpoint.integer("medusa_num_layers", "num_hidden_layers", at_most=MAX_PARTS)

    def block(layer: int, head: int, part: str) -> str:
        return names.block.format(layer=layer, head=head, part=part)

    # Some published configurations state fewer heads than the file has.
    num_present = next(head for head in count() if block(0, head, "weight") not in shapes)
    stated = checkpoint.integer("medusa_num_heads", "num_heads", at_most=MAX_PARTS)
    heads = range(max(num_present, stated))
    has_bias = checkpoint.flag("medusa_fc_bias") or block(0, 0, "bias") in shapes
    weights = [[block(layer, head, "weight") for head in heads] for layer in range(num_layers)]
    biases = [[block(layer, head, "bias") for head in heads] for layer in range(num_layers)]
    per_head = [names.output.format(head=head, num_layers=num_layers) for head in heads]
    outputs = _outputs(checkpoint, per_head)
    rows, token_map = _rows(checkpoint, target, outputs)
    needed: dict[str, Shape] = {name: (hidden, hidden) for names in weights for name in names}
    if has_bias:
        needed |= {name: (hidden,) for names in biases for name in names}
    needed |= dict.fromkeys(outputs, (rows, hidden))
    if token_map:
        needed[token_map] = (checkpoint.integer("truncated_vocab_size"),)
    checkpoint.check_tensors(needed, [*per_head, TOKEN_MAP])
    return Layout(
        num_heads=len(heads),
        weights=weights,
        biases=biases if has_bias else (),
        outputs=outputs,
        token_map=token_map,
        needed=needed,
    )


def _outputs(checkpoint: Checkpoint, per_head: Sequence[str]) -> Sequence[str]:
    """`Layout.outputs`; `per_head` are the names of one output matrix per head."""
    if SHARED_OUTPUT in checkpoint.shapes:
        return [SHARED_OUTPUT]
    # FasterDecoding marks heads without output matrices by version 2.
    if checkpoint.flag("original_lm_head") or checkpoint.config.get("version") == "2":
        return per_head[:1] if per_head[0] in checkpoint.shapes else []
    return per_head


def _rows(
    checkpoint: Checkpoint, target: TargetSizes, outputs: Sequence[str]
) -> tuple[int, str | None]:
    """The number of rows of an output matrix in the file, and `Layout.token_map`."""
    truncated = checkpoint.integer("truncated_vocab_size", default=target.vocab_size)
    if truncated > target.vocab_size:
        raise checkpoint.field_error("truncated_vocab_size", f"must be at most {target.vocab_size}")
    if truncated == target.vocab_size or not outputs:
        return target.vocab_size, None
    is_untruncated = checkpoint.shapes.get(outputs[0], ())[:1] == (target.vocab_size,)
    return target.vocab_size if is_untruncated else truncated, TOKEN_MAP
