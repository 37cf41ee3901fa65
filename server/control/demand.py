"""What a request needs of the engine and of the queue."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Demand:
    """What a request needs.

    Attributes:
        key: the name of its API key; all requests without a key have `None`.
        slots: of each of its sequences; no more than `SlotLimits.of_request` are taken.
        prompt_costs: of each of its sequences: the prompt's tokens, weighted.
        prompt_tokens: of all its prompts, each counted once.
        priority: a lower one goes first.
    """

    key: str | None
    slots: int
    prompt_costs: Sequence[int]
    prompt_tokens: int
    priority: int = 0
