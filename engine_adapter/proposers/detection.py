"""Which method drafts with a checkpoint, for a proposer that does not say it."""

from collections.abc import Mapping

from engine_adapter.proposers.checkpoint import Checkpoint
from engine_adapter.proposers.speculators import CONFIG, KIND, METHODS

_IN_NAMES: Mapping[str, str] = {
    "eagle-": "eagle",
    "eagle3": "eagle3",
    "dflash": "dflash",
    "dspark": "dspark",
}
"""What the path or id of a head contains -> its method, in vLLM's order."""

_IN_ARCHITECTURES: Mapping[str, str] = {
    "eagle3": "eagle3",
    "eagle": "eagle",
    "dflash": "dflash",
    "dspark": "dspark",
    "xpress": "dflash",
    "medusa": "medusa",
    "mlpspeculator": "mlp_speculator",
    "mtp": "mtp",
    "gemma4assistant": "mtp",
    "gemma4unifiedassistant": "mtp",
}
"""What the name of an architecture contains -> its method."""


def method_of(model: str) -> str:
    """The method that drafts with a checkpoint: a draft model's if no head's is recognized.

    vLLM recognizes heads by their path or id, and by `model_type`. Here the format of
    `speculators` and the architecture come first.

    Args:
        model: a folder or a hub id.

    Raises:
        CheckpointError: `config.json` is missing or cannot be read.
    """
    config = Checkpoint(model).config
    if CONFIG in config:
        algorithm = str(config.get(KIND))
        return METHODS.get(algorithm, algorithm)
    architectures = config.get("architectures")
    names = architectures if isinstance(architectures, list) else []
    words = " ".join([*map(str, names), str(config.get("model_type"))]).lower().replace("_", "")
    for part, method in _IN_ARCHITECTURES.items():
        if part in words:
            return method
    if "medusa_num_heads" in config:
        return "medusa"
    for part, method in _IN_NAMES.items():
        if part in model.lower():
            return method
    return "draft_model"
