"""What a request costs the engine, in the terms of admission."""

from math import ceil
from typing import TYPE_CHECKING

from server.control.slots import Demand

if TYPE_CHECKING:
    from server.openai.request import PreparedRequest

LOGPROBS_PER_SLOT = 5
"""Alternatives per token that cost about as much as a sequence without log probabilities."""


def demand(prepared: "PreparedRequest", key: str | None) -> Demand:
    """What a prepared request of an API key needs.

    A sequence takes a slot, and one more for each `LOGPROBS_PER_SLOT` alternatives per token. A
    prompt whose log probabilities are asked for costs as much more to read.
    """
    n, options = prepared.n, prepared.options[0]
    weight = 1
    if options.prompt_logprobs is not None:
        weight = 2 + ceil(options.prompt_logprobs / LOGPROBS_PER_SLOT)
    lengths = [len(prompt) for prompt in prepared.prompts]
    return Demand(
        key=key,
        slots=1 + ceil((options.logprobs or 0) / LOGPROBS_PER_SLOT),
        prompt_costs=[weight * length for length in lengths for _ in range(n)],
        prompt_tokens=sum(lengths),
        priority=prepared.body.priority or 0,
    )
