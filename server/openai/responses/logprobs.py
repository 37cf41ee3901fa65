"""Log probabilities in the format of a response's text."""

from collections.abc import Iterable, Sequence
from typing import Any

from engine_adapter.seam.types import TokenLogprob
from server.openai.logprobs import chat_logprobs
from server.openai.responses.input_items import Item


def response_logprobs(tokens: Iterable[TokenLogprob], num_top: int) -> list[dict[str, Any]]:
    """One entry per token. The bytes of an incomplete character are not known: an empty list."""
    entries: list[dict[str, Any]] = chat_logprobs(tokens, num_top)["content"]
    for entry in entries:
        for token in (entry, *entry["top_logprobs"]):
            token["bytes"] = token["bytes"] or []
    return entries


def without_logprobs(output: Sequence[Item]) -> list[Item]:
    """The items of an output with empty lists of log probabilities."""
    return [_without_logprobs(item) if "content" in item else item for item in output]


def _without_logprobs(item: Item) -> Item:
    parts = item["content"] or ()
    return {
        **item,
        "content": [{**part, "logprobs": []} if "logprobs" in part else part for part in parts],
    }
