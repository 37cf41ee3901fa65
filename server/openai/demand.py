"""What a request costs the engine, in the terms of admission."""

from collections.abc import Sequence
from math import ceil

from engine_adapter.types import SamplingOptions
from server.control.slots import Demand

LOGPROBS_PER_SLOT = 5
"""Alternatives per token that cost about as much as a sequence without log probabilities."""


def demand(
    key: str | None,
    prompts: Sequence[Sequence[int]],
    n: int,
    options: SamplingOptions,
    priority: int = 0,
) -> Demand:
    """What a request needs.

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
    return Demand(
        key=key,
        slots=1 + ceil((options.logprobs or 0) / LOGPROBS_PER_SLOT),
        prompt_costs=[weight * length for length in lengths for _ in range(n)],
        prompt_tokens=sum(lengths),
        priority=priority,
    )
