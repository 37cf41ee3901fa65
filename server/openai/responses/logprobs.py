"""Log probabilities in the format of a response's text."""

from collections.abc import Iterable
from typing import Any

from engine_adapter.types import TokenLogprob
from server.openai.logprobs import chat_logprobs


def response_logprobs(tokens: Iterable[TokenLogprob], num_top: int) -> list[dict[str, Any]]:
    """One entry per token. The bytes of an incomplete character are not known: an empty list."""
    entries: list[dict[str, Any]] = chat_logprobs(tokens, num_top)["content"]
    for entry in entries:
        for token in (entry, *entry["top_logprobs"]):
            token["bytes"] = token["bytes"] or []
    return entries
