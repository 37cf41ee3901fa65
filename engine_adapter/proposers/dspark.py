"""`dspark`: blocks as `dflash` has them, whose tokens are then drawn one after the other.

Source: DSpark, github.com/deepseek-ai/DeepSpec. One pass gives logits for every draft of a block. A
Markov head, two matrices of a low rank, adds to the logits of each draft what follows from the
token before it. If the place of the newest token, with which a block begins, gives a draft too, the
block has one mask less than drafts. Checkpoints: those of `deepseek-ai/dspark_*`, and those that
the library `speculators` writes.
"""

from collections.abc import Mapping
from typing import Any

from engine_adapter.proposers import dflash, draft_options
from engine_adapter.proposers.checkpoint import Checkpoint, Shape
from engine_adapter.proposers.contract import (
    Capabilities,
    ProposerMethod,
    ProposerSpec,
    TargetSizes,
)

ARCHITECTURE = "Qwen3DSparkModel"

_KIND, _OTHERS = "markov_head_type", "dflash_config"
_MARKOV, _CONFIDENCE = "markov_head.markov_", "confidence_head.proj."


def from_newest(config: Mapping[str, Any]) -> bool:
    """Whether the place of the newest token gives the first draft; else the first mask does.

    Args:
        config: the fields of the head's `config.json`.
    """
    return bool(config.get(dflash.FROM_NEWEST, True))


def _check(spec: ProposerSpec, target: TargetSizes) -> None:
    checkpoint = dflash.open_block_head(spec, (ARCHITECTURE,), target)
    config = checkpoint.config
    num_combined = dflash.check_inputs(checkpoint, checkpoint, target)
    if type(config.get(dflash.FROM_NEWEST, True)) is not bool:
        raise checkpoint.field_error(dflash.FROM_NEWEST, "must be true or false")
    if config.get(_OTHERS):
        raise checkpoint.field_error(
            _OTHERS, "must not be there: a DSpark head has these fields itself"
        )
    if config.get(_KIND, "vanilla") != "vanilla":
        raise checkpoint.field_error(_KIND, 'must be "vanilla"')
    if block := config.get("block_size"):
        checkpoint.integer("block_size", at_least=2)
        max_k = block if from_newest(config) else block - 1
        limit = f"the drafts in a block of {block}"
        checkpoint.check_k(spec.num_speculative_tokens, max_k, limit)
    needed = dflash.tensors(checkpoint, checkpoint, target, num_combined)
    checkpoint.check_tensors(needed | _heads(checkpoint, target))


def _heads(checkpoint: Checkpoint, target: TargetSizes) -> dict[str, Shape]:
    """The tensors of the Markov head, and of the head that estimates acceptance if there is one."""
    rank, width = checkpoint.integer("markov_rank"), target.hidden_size
    shapes: dict[str, Shape] = {
        f"{_MARKOV}w1.weight": (target.vocab_size, rank),
        f"{_MARKOV}w2.weight": (dflash.num_drafted(checkpoint, target), rank),
    }
    if checkpoint.config.get("confidence_head_with_markov"):
        width += rank
    confidence: dict[str, Shape] = {"weight": (1, width), "bias": (1,)}
    return shapes | {
        f"{_CONFIDENCE}{name}": shape
        for name, shape in confidence.items()
        if f"{_CONFIDENCE}{name}" in checkpoint.shapes
    }


METHOD = ProposerMethod(
    name="dspark",
    capabilities=Capabilities(model=True, draft_kv=True),
    default_k=7,
    options=draft_options.HEAD_OPTIONS,
    validate=draft_options.validate,
    create=lambda spec, host: host.block_head(spec),
    check=_check,
)
"""The entry in `METHODS`."""
