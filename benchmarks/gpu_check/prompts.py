"""The prompts of the check, and the texts that are compared."""

from collections.abc import Sequence
from typing import Any

from benchmarks.compare import mixed_prompts

Tokens = tuple[int, ...]


def read_prompts(target: str, count: int) -> list[Tokens]:
    """Token ids of the demo's quoting and free chats in turn, as the target's template has them.

    Without a template, their texts.
    """
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(target)
    prompts = []
    for messages in mixed_prompts()[:count]:
        if tokenizer.chat_template:
            ids = tokenizer.apply_chat_template(
                list(messages), add_generation_prompt=True, return_dict=False
            )
        else:
            ids = tokenizer("\n".join(message["content"] for message in messages))["input_ids"]
        prompts.append(tuple(ids))
    return prompts


def first_difference(tokens: Sequence[int], other_tokens: Sequence[int]) -> int | None:
    """Where two texts differ first; `None` if they are equal as far as both go."""
    pairs = enumerate(zip(tokens, other_tokens, strict=False))
    return next((i for i, (token, other) in pairs if token != other), None)
