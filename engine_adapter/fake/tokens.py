"""Deterministic tokens: a function of only the prompt, the adapter, the seed and the position.

The text is the same under every proposer. Which drafts are accepted is drawn separately, from the
proposer's name too.
"""

import hashlib
import math
from array import array
from collections.abc import Sequence, Set

from engine_adapter.fake.vocabulary import Vocabulary
from engine_adapter.seam.types import Alternative, TokenLogprob

_MASK = (1 << 64) - 1
_CHARACTER_EVERY = 16


def text_key(prompt_token_ids: Sequence[int], seed: int | None, adapter: str = "") -> int:
    """64 bits that identify a text: a digest of the prompt, the seed and the adapter's name."""
    digest = hashlib.blake2b(array("q", prompt_token_ids).tobytes(), digest_size=8)
    digest.update(repr(seed).encode() + adapter.encode())
    return int.from_bytes(digest.digest(), "little")


def draw(*numbers: int) -> int:
    """64 pseudo-random bits of integers (SplitMix64: Steele et al., OOPSLA 2014)."""
    state = 0
    for number in numbers:
        state = (state + number + 0x9E3779B97F4A7C15) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state


def accepted_drafts(key: int, position: int, proposer: str, drafted: int, rate: float) -> int:
    """How many of the drafts for positions [position, position + drafted) are accepted."""
    name = int.from_bytes(hashlib.blake2b(proposer.encode(), digest_size=8).digest(), "little")
    for i in range(drafted):
        if draw(key, position + i, name) >= rate * (1 << 64):
            return i
    return drafted


class TokenSource:
    """The tokens of one text, in order."""

    def __init__(self, vocabulary: Vocabulary, key: int, length: int) -> None:
        """`length`: the text ends by itself at a position in [length, 2 * length)."""
        self._vocabulary = vocabulary
        self._key = key
        self._end = length + draw(key) % length
        self._position = 0
        self._pending_tokens: list[int] = []

    def next(self, banned: Set[int]) -> int:
        """The next token; after 64 draws it may be one of `banned`."""
        position = self._position
        self._position += 1
        token = self._token_at(position)
        for retry in range(64):
            if token not in banned:
                return token
            self._pending_tokens.clear()
            token = self._word(draw(self._key, position, retry))
        return token

    def _token_at(self, position: int) -> int:
        if self._pending_tokens:
            return self._pending_tokens.pop(0)
        eos = self._vocabulary.eos
        if position >= self._end and eos is not None:
            return eos
        number = draw(self._key, position)
        characters = self._vocabulary.characters
        if characters and number % _CHARACTER_EVERY == 0:
            token, *self._pending_tokens = characters[(number >> 8) % len(characters)]
            return token
        return self._word(number >> 8)

    def _word(self, number: int) -> int:
        return self._vocabulary.words[number % len(self._vocabulary.words)]


class ScriptedSource:
    """The tokens of a given text, then the end of the text."""

    def __init__(self, vocabulary: Vocabulary, text: str) -> None:
        encoded = vocabulary.tokenizer.encode(text, add_special_tokens=False)
        self._pending_tokens = list(reversed(encoded.ids))
        self._end = vocabulary.words[0] if vocabulary.eos is None else vocabulary.eos

    def next(self, banned: Set[int]) -> int:
        """The next token; a given text has no alternatives to `banned` ones."""
        return self._pending_tokens.pop() if self._pending_tokens else self._end


def token_logprob(
    vocabulary: Vocabulary, key: int, position: int, token_id: int, count: int, greedy: bool
) -> TokenLogprob:
    """A distribution in which `token_id` is the best if `greedy`, else one of the three best.

    The probabilities halve from one candidate to the next and sum to less than 1.
    """
    rank = 0 if greedy else draw(key, position, 1) % 3
    best = 0.5 + draw(key, position, 2) % 1000 / 2500
    ids = _candidates(vocabulary, key, position, token_id, max(count, rank + 1))
    ids.insert(rank, token_id)
    ranked = [
        Alternative(i, vocabulary.text(i), math.log(best if r == 0 else (1 - best) * 0.5**r), r + 1)
        for r, i in enumerate(ids)
        if r < count or r == rank
    ]
    actual = next(a for a in ranked if a.token_id == token_id)
    return TokenLogprob(actual, tuple(ranked[:count]))


def _candidates(
    vocabulary: Vocabulary, key: int, position: int, token_id: int, count: int
) -> list[int]:
    start = draw(key, position, 3)
    words = vocabulary.words
    word_ids = (words[(start + i) % len(words)] for i in range(min(count + 1, len(words))))
    return [i for i in word_ids if i != token_id][:count]
