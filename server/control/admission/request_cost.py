"""What a request costs: slots of the engine, and places in the queue."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from engine_adapter.seam.types import SamplingOptions

LOGPROBS_PER_SLOT = 5
"""Alternatives per token that cost about as much as a sequence without log probabilities."""


@dataclass(frozen=True, slots=True)
class RequestCost:
    """What a request costs.

    Attributes:
        key: the name of its API key; all requests without a key have `None`.
        slots: of each of its sequences; no more than `SlotLimits.of_request` are taken.
        prompt_costs: of each of its sequences: the prompt's tokens, weighted.
        prompt_tokens: of all its prompts, each counted once.
        priority: a lower one goes first.
        is_background: it is a line of a batch, which goes behind every other request.
    """

    key: str | None
    slots: int
    prompt_costs: Sequence[int]
    prompt_tokens: int
    priority: int = 0
    is_background: bool = False


def request_cost(
    key: str | None,
    prompts: Sequence[Sequence[int]],
    n: int,
    options: SamplingOptions,
    priority: int = 0,
    *,
    is_background: bool = False,
) -> RequestCost:
    """The cost of a request.

    A sequence takes a slot, and one more for each `LOGPROBS_PER_SLOT` alternatives per token. A
    prompt whose log probabilities are asked for costs as much more to read.

    Args:
        key: the name of its API key.
        prompts: token ids.
        n: choices per prompt.
        options: of any of its prompts.
    """
    weight = 1
    if options.prompt_logprobs is not None:
        weight = 2 + ceil(options.prompt_logprobs / LOGPROBS_PER_SLOT)
    lengths = [len(prompt) for prompt in prompts]
    return RequestCost(
        key=key,
        slots=1 + ceil((options.logprobs or 0) / LOGPROBS_PER_SLOT),
        prompt_costs=[weight * length for length in lengths for _ in range(n)],
        prompt_tokens=sum(lengths),
        priority=priority,
        is_background=is_background,
    )
