"""`mlp_speculator`: a small recurrent network on the target's final hidden state.

Source: arXiv 2404.19124; checkpoints: `ibm-fms/*-accelerator`. The state, [D], starts as the
target's hidden state, [H]. Each step adds the projected state and the embedding of the last token
with fixed weights, then applies a norm and GELU. The output layer gives the next token.
"""

from math import prod
from typing import TYPE_CHECKING

from engine_adapter.proposers import draft_options
from engine_adapter.proposers.checkpoint import Checkpoint
from engine_adapter.proposers.contract import (
    Capabilities,
    DraftHost,
    ProposerMethod,
    ProposerSpec,
    Target,
    TargetSizes,
)
from engine_adapter.proposers.mlp_speculator.layout import Layout, read_layout

if TYPE_CHECKING:
    from engine_adapter.proposers.mlp_speculator.model import MlpSpeculator


def _open(spec: ProposerSpec, target: TargetSizes) -> tuple[Checkpoint, Layout]:
    assert spec.model is not None
    checkpoint = Checkpoint(spec.model)
    layout = read_layout(checkpoint, target)
    checkpoint.check_k(spec.num_speculative_tokens, layout.n_predict, "its n_predict")
    return checkpoint, layout


def _check(spec: ProposerSpec, target: TargetSizes) -> None:
    _open(spec, target)


def _create(spec: ProposerSpec, host: DraftHost) -> "MlpSpeculator":
    from engine_adapter.proposers.mlp_speculator.model import MlpSpeculator

    target = host.target
    checkpoint, layout = _open(spec, TargetSizes(target.hidden_size, target.vocab_size))
    return MlpSpeculator(checkpoint, layout, target)


def _device_bytes(spec: ProposerSpec, target: Target, rows: int) -> int:
    _, layout = _open(spec, TargetSizes(target.hidden_size, target.vocab_size))
    logits = rows * target.vocab_size
    size: int = target.dtype.itemsize
    return (sum(map(prod, layout.needed.values())) + logits) * size


METHOD = ProposerMethod(
    name="mlp_speculator",
    capabilities=Capabilities(model=True, hidden_states=True),
    default_k=3,
    options=draft_options.OPTIONS,
    validate=draft_options.validate,
    create=_create,
    check=_check,
    device_bytes=_device_bytes,
)
"""The entry in `METHODS`."""
