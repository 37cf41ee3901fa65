"""The options of methods that can sample their drafts, not only take the likeliest token."""

from collections.abc import Mapping
from typing import Any

from engine_adapter.proposers.contract import ProposerSpec

OPTIONS: Mapping[str, Any] = {"draft_sampling": "greedy", "verification": "token"}
"""The options, with their defaults."""

_VALUES = {"draft_sampling": ("greedy", "probabilistic"), "verification": ("token", "block")}


def samples(spec: ProposerSpec) -> bool:
    """Whether the proposer's drafts are sampled, for requests that are sampled."""
    return bool(spec.options.get("draft_sampling") == "probabilistic")


def validate(spec: ProposerSpec) -> None:
    """Raises `ValueError`, naming the option, for a value that means nothing."""
    for option, values in _VALUES.items():
        if spec.options[option] not in values:
            known = " or ".join(map(repr, values))
            raise ValueError(f"{option} must be {known}, got {spec.options[option]!r}")
    if spec.options["verification"] == "block" and not samples(spec):
        raise ValueError(
            'verification "block" is for sampled drafts: it needs draft_sampling "probabilistic"'
        )
