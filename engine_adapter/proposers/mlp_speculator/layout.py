"""What an MLP speculator's checkpoint must hold, in the format of `ibm-fms/*-accelerator`."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine_adapter.proposers.checkpoint import Checkpoint, Shape
from engine_adapter.proposers.contract import TargetSizes


@dataclass(frozen=True, slots=True)
class Layout:
    """A checkpoint's sizes, and the tensor that each of its steps uses.

    With tied weights all steps name the same tensors, but for the first step's `proj`, whose
    input is the target's hidden state.

    Attributes:
        n_predict: how many steps, so the largest k.
        inner_dim: D, the width of the state.
        scale_input: the hidden state is normalized first.
        emb: for each step the name of its token embedding, [V, D].
        proj: for each step the name of its projection, [D, H] in the first, [D, D] after it.
        ln_weight, ln_bias: for each step the names of its norm's, [D].
        head: for each step the name of its output matrix, [V, D].
        needed: the shape of each of these tensors.
    """

    n_predict: int
    inner_dim: int
    scale_input: bool
    emb: tuple[str, ...]
    proj: tuple[str, ...]
    ln_weight: tuple[str, ...]
    ln_bias: tuple[str, ...]
    head: tuple[str, ...]
    needed: Mapping[str, Shape]


def read_layout(checkpoint: Checkpoint, target: TargetSizes) -> Layout:
    """The checkpoint's layout. Raises `CheckpointError` if it does not fit the target."""
    checkpoint.require_architecture("MLPSpeculatorPreTrainedModel", "mlp_speculator")
    checkpoint.agree("emb_dim", target.hidden_size, "the target's hidden size")
    checkpoint.agree("vocab_size", target.vocab_size, "the target's vocabulary")
    n_predict = checkpoint.integer("n_predict")
    hidden, vocabulary = target.hidden_size, target.vocab_size
    inner = checkpoint.integer("inner_dim", at_least=0, default=0) or hidden
    tied = checkpoint.flag("tie_weights")
    steps = [f"speculator.{{}}.{i}." for i in range(n_predict)]
    known: list[str] = []

    def names(part: str, kind: str, first: int = 0) -> tuple[str, ...]:
        own = tuple(step.format(part) + kind for step in steps)
        known.extend(own)
        if not tied:
            return own
        # A tied tensor may be stored once, under any step's name, or for each step.
        shared = own[first:]
        stored = tuple(name for name in shared if name in checkpoint.shapes) or shared
        return own[:first] + stored[:1] * len(shared)

    emb, head = names("emb", "weight"), names("head", "weight")
    proj = names("proj", "weight", first=1)
    ln_weight, ln_bias = names("ln", "weight"), names("ln", "bias")
    needed: dict[str, Shape] = dict.fromkeys(emb + head, (vocabulary, inner))
    needed |= dict.fromkeys(proj, (inner, inner)) | {proj[0]: (inner, hidden)}
    needed |= dict.fromkeys(ln_weight + ln_bias, (inner,))
    checkpoint.check_tensors(needed, known)
    return Layout(
        n_predict=n_predict,
        inner_dim=inner,
        scale_input=checkpoint.flag("scale_input"),
        emb=emb,
        proj=proj,
        ln_weight=ln_weight,
        ln_bias=ln_bias,
        head=head,
        needed=needed,
    )
