"""Log probabilities in the two formats of OpenAI's API."""

from collections.abc import Iterable, Sequence
from typing import Any

from engine_adapter.seam.types import Alternative, TokenLogprob
from server.openai.responses.input_items import Item

LEAST_LOGPROB = -9999.0
"""Replaces minus infinity, which JSON does not have; vLLM uses the same value."""

_REPLACEMENT = "\ufffd"


def chat_logprobs(
    tokens: Iterable[TokenLogprob], num_top: int, *, as_ids: bool = False
) -> dict[str, Any]:
    """The `logprobs` of a chat choice: one entry per token.

    With `as_ids` a token is written as `token_id:ID`. Its bytes are still those of its text.
    """
    content = [
        {
            **_alternative(token.actual, as_ids),
            "top_logprobs": [_alternative(top, as_ids) for top in token.top[:num_top]],
        }
        for token in tokens
    ]
    return {"content": content, "refusal": None}


def _alternative(token: Alternative, as_ids: bool) -> dict[str, Any]:
    # An incomplete character has no text of its own, and its bytes are not known here.
    partial = _REPLACEMENT in token.token
    return {
        "token": _name(token, as_ids),
        "logprob": max(token.logprob, LEAST_LOGPROB),
        "bytes": None if partial else list(token.token.encode()),
    }


def _name(token: Alternative, as_ids: bool) -> str:
    """A token as it is written: two tokens can have one text, and no two have one id."""
    return f"token_id:{token.token_id}" if as_ids else token.token


class CompletionLogprobs:
    """Builds the `logprobs` of a completion's choice; the offsets count through its whole text.

    With `as_ids` a token is written as `token_id:ID`. The offsets are still those of its text.
    """

    def __init__(self, num_top: int, *, as_ids: bool = False) -> None:
        self._num_top = num_top
        self._as_ids = as_ids
        self._offset = 0

    def shape(
        self,
        tokens: Sequence[TokenLogprob | None],
        first_token: str = "",
        echo: str = "",
        first_id: int = 0,
    ) -> dict[str, list[Any]]:
        """The object for the next tokens; the first ones are the prompt's if `echo` is given.

        A prompt's first token has no log probability, so it is given: its text and its id.
        """
        texts = [first_token if t is None else t.actual.token for t in tokens]
        offsets = [self._advance(text) for text in texts]
        if first_token and not echo.startswith(first_token):
            # The tokenizer added a special token before the text; the echo does not contain it.
            offsets = [max(offset - len(first_token), 0) for offset in offsets]
            self._offset -= len(first_token)
        names = texts
        if self._as_ids:
            unknown = Alternative(first_id, first_token, 0.0, 0)
            names = [_name(unknown if t is None else t.actual, True) for t in tokens]
        return {
            "tokens": names,
            "token_logprobs": [None if t is None else _clamped(t.actual) for t in tokens],
            "top_logprobs": [None if t is None else self._top(t) for t in tokens],
            "text_offset": offsets,
        }

    def _top(self, token: TokenLogprob) -> dict[str, float]:
        """The best alternatives and the token itself: at most one more than requested."""
        best = {_name(top, self._as_ids): _clamped(top) for top in token.top[: self._num_top]}
        return best | {_name(token.actual, self._as_ids): _clamped(token.actual)}

    def _advance(self, text: str) -> int:
        offset = self._offset
        self._offset += len(text)
        return offset


def _clamped(token: Alternative) -> float:
    return max(token.logprob, LEAST_LOGPROB)


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
