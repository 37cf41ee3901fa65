"""The tensors of an MLP speculator's checkpoint, in the format of `ibm-fms/*-accelerator`."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine_adapter.proposers.checkpoint import MAX_PARTS, Checkpoint, Shape
from engine_adapter.proposers.contract import TargetSizes


@dataclass(frozen=True, slots=True)
class Layout:
    """A checkpoint's sizes, and the names of the tensors of each step.

    With tied weights all steps use the same tensors. Only `proj` of the first step differs,
    because its input is the target's hidden state.

    Attributes:
        n_predict: the number of steps, and so the largest k.
        inner_dim: D, the width of the state.
        scale_input: whether the hidden state is normalized first.
        emb: the token embedding of each step, [V, D].
        proj: the projection of each step, [D, H] in the first step and [D, D] in the others.
        ln_weight, ln_bias: weight and bias of the norm of each step, [D].
        head: the output matrix of each step, [V, D].
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
    checkpoint.require("emb_dim", target.hidden_size, "the target's hidden size")
    checkpoint.require("vocab_size", target.vocab_size, "the target's vocabulary")
    n_predict = checkpoint.integer("n_predict", at_most=MAX_PARTS)
    hidden, vocabulary = target.hidden_size, target.vocab_size
    inner = checkpoint.integer("inner_dim", at_least=0, default=0) or hidden
    tied = checkpoint.flag("tie_weights")
    steps = [f"speculator.{{}}.{i}." for i in range(n_predict)]
    all_names: list[str] = []

    def names(part: str, kind: str, num_separate: int = 0) -> tuple[str, ...]:
        step_names = tuple(step.format(part) + kind for step in steps)
        all_names.extend(step_names)
        if not tied:
            return step_names
        # A tied tensor is stored once, under the name of any step, or once for each step.
        shared = step_names[num_separate:]
        stored = tuple(name for name in shared if name in checkpoint.shapes) or shared
        return step_names[:num_separate] + stored[:1] * len(shared)

    emb, head = names("emb", "weight"), names("head", "weight")
    proj = names("proj", "weight", num_separate=1)
    ln_weight, ln_bias = names("ln", "weight"), names("ln", "bias")
    needed: dict[str, Shape] = dict.fromkeys(emb + head, (vocabulary, inner))
    needed |= dict.fromkeys(proj, (inner, inner)) | {proj[0]: (inner, hidden)}
    needed |= dict.fromkeys(ln_weight + ln_bias, (inner,))
    checkpoint.check_tensors(needed, all_names)
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
