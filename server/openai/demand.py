"""What a request costs the engine, in the terms of admission."""

from collections.abc import Sequence
from math import ceil

from engine_adapter.types import SamplingOptions
from server.control.demand import Demand
from server.errors import InvalidField

LOGPROBS_PER_SLOT = 5
"""Alternatives per token that cost about as much as a sequence without log probabilities."""

MOST_OF_PROMPTS = 2**22
"""Tokens and log probabilities of prompts that an answer in one piece holds: 100 MB of JSON."""


def check_echo(
    prompts: Sequence[Sequence[int]], n: int, options: SamplingOptions, *, echoes: bool
) -> None:
    """Raises `InvalidField` if an answer in one piece would hold too much of its prompts.

    Args:
        prompts: token ids.
        n: choices per prompt; each of them holds its prompt.
        options: of any of the prompts.
        echoes: the choices begin with their prompts.
    """
    of_token = options.prompt_logprobs
    if of_token is None and not echoes:
        return
    held = n * sum(map(len, prompts)) * (1 + (of_token or 0))
    if held > MOST_OF_PROMPTS:
        param = "echo" if echoes else "prompt_logprobs"
        message = (
            f"{param}: the answer would hold {held} tokens and log probabilities of prompts; it "
            f"can hold {MOST_OF_PROMPTS}. Send fewer prompts, or `stream` true."
        )
        raise InvalidField(param, message)


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
