"""The options of methods that can sample their drafts instead of taking the most likely token."""

from collections.abc import Mapping
from typing import Any

from engine_adapter.proposers.contract import OptionError, ProposerSpec
from engine_adapter.text import clip

OPTIONS: Mapping[str, Any] = {"draft_sampling": "greedy", "verification": "token"}
"""The options, with their defaults."""

_VALUES = {"draft_sampling": ("greedy", "probabilistic"), "verification": ("token", "block")}


def samples(spec: ProposerSpec) -> bool:
    """Whether the proposer samples its drafts for requests with a temperature above 0."""
    return bool(spec.options.get("draft_sampling") == "probabilistic")


def validate(spec: ProposerSpec) -> None:
    """Raises `OptionError` for an unknown value, or block verification of greedy drafts."""
    for option, values in _VALUES.items():
        if spec.options[option] not in values:
            known = " or ".join(map(repr, values))
            raise OptionError(option, f"must be {known}, got {clip(spec.options[option])}")
    if spec.options["verification"] == "block" and not samples(spec):
        raise OptionError(
            "verification", '"block" is for sampled drafts: it needs draft_sampling "probabilistic"'
        )
