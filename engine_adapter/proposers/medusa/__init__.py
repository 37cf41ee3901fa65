"""`medusa`: several heads on the target's final hidden state, one for each position ahead.

Source: Medusa, arXiv 2401.10774. Each head is one or more residual blocks, x + silu(W x + b) with
x of width H, and an output layer. Here a head gives one token, the most likely or a sampled one, so
the drafts are a sequence, not a tree. Checkpoints: the layouts of FasterDecoding and of vLLM.
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
from engine_adapter.proposers.medusa.layout import FILES, Layout, read_layout

if TYPE_CHECKING:
    from engine_adapter.proposers.medusa.heads import MedusaHeads


def _open(spec: ProposerSpec, target: TargetSizes) -> tuple[Checkpoint, Layout]:
    assert spec.model is not None
    checkpoint = Checkpoint(spec.model, FILES)
    layout = read_layout(checkpoint, target)
    checkpoint.check_k(spec.num_speculative_tokens, layout.num_heads, "the number of its heads")
    return checkpoint, layout


def _check(spec: ProposerSpec, target: TargetSizes) -> None:
    _open(spec, target)


def _create(spec: ProposerSpec, host: DraftHost) -> "MedusaHeads":
    from engine_adapter.proposers.medusa.heads import MedusaHeads

    target = host.target
    checkpoint, layout = _open(spec, TargetSizes(target.hidden_size, target.vocab_size))
    return MedusaHeads(checkpoint, layout, target)


def _device_bytes(spec: ProposerSpec, target: Target, rows: int) -> int:
    _, layout = _open(spec, TargetSizes(target.hidden_size, target.vocab_size))
    weights = sum(map(prod, layout.needed.values()))
    # All drafts are computed at once: the logits, with a token map also spread over all tokens.
    logits = spec.num_speculative_tokens * rows * target.vocab_size * (2 if layout.token_map else 1)
    size: int = target.dtype.itemsize
    return (weights + logits) * size


METHOD = ProposerMethod(
    name="medusa",
    capabilities=Capabilities(model=True, hidden_states=True),
    default_k=3,
    options=draft_options.OPTIONS,
    validate=draft_options.validate,
    create=_create,
    check=_check,
    device_bytes=_device_bytes,
)
"""The entry in `METHODS`."""
