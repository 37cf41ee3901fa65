"""The options of methods that draft with a model: how tokens are drawn, and where a draft ends.

Heads that compute missing KV from the target's hidden states have one more: `keep_states`.
"""

from collections.abc import Mapping
from typing import Any

from engine_adapter.proposers.contract import OptionError, ProposerSpec
from engine_adapter.seam.text import short_repr

MIN_CONFIDENCE = "min_confidence"
"""The option for the least confidence of a path; 0 ends no draft."""

OPTIONS: Mapping[str, Any] = {
    "draft_sampling": "greedy",
    "verification": "token",
    MIN_CONFIDENCE: 0.0,
}
"""The options, with their defaults."""

KEEP_STATES = "keep_states"
"""The option of a head that says whether the target's states are kept for it while it is idle."""

HEAD_OPTIONS: Mapping[str, Any] = {**OPTIONS, KEEP_STATES: True}
"""The options of a head with KV of its own, with their defaults."""

_VALUES = {"draft_sampling": ("greedy", "probabilistic"), "verification": ("token", "block")}


def samples(spec: ProposerSpec) -> bool:
    """Whether the proposer samples its drafts for requests with a temperature above 0."""
    return bool(spec.options.get("draft_sampling") == "probabilistic")


def verifies_blocks(spec: ProposerSpec) -> bool:
    """Whether the proposer's sampled drafts are verified by the block rule."""
    return bool(spec.options.get("verification") == "block")


def min_confidence(spec: ProposerSpec) -> float:
    """The threshold of the proposer's confidence gate; 0 if it has none."""
    return float(spec.options.get(MIN_CONFIDENCE, 0.0))


def validate(spec: ProposerSpec) -> None:
    """Raises `OptionError` for an invalid value, or block verification of greedy drafts."""
    for option, values in _VALUES.items():
        if spec.options[option] not in values:
            allowed = " or ".join(map(repr, values))
            raise OptionError(option, f"must be {allowed}, got {short_repr(spec.options[option])}")
    if spec.options["verification"] == "block" and not samples(spec):
        raise OptionError(
            "verification", '"block" is for sampled drafts: it needs draft_sampling "probabilistic"'
        )
    threshold = spec.options[MIN_CONFIDENCE]
    if type(threshold) not in (int, float) or not 0 <= threshold < 1:
        message = f"must be a number of at least 0 and below 1, got {short_repr(threshold)}"
        raise OptionError(MIN_CONFIDENCE, message)
    if type(keeps := spec.options.get(KEEP_STATES, True)) is not bool:
        raise OptionError(KEEP_STATES, f"must be true or false, got {short_repr(keeps)}")
