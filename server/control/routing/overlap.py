"""Retrieval-likeness: how much of an answer repeats the text before it. Pure.

Drafts by look-up pay where it is high, as in answers from quoted documents.
"""

from collections import deque
from collections.abc import Sequence

NGRAM = 4
"""Tokens that must be repeated in a row."""

MAX_TOKENS = 8192
"""The most tokens of one measurement, about 3 ms; earlier ones are left out."""

WINDOW = 100
"""Answers in a running mean."""


def overlap(context: Sequence[int], answer: Sequence[int]) -> float | None:
    """The share of the answer's tokens in 4-grams that occur in the text before them.

    Args:
        context: the tokens before the answer.
        answer: its tokens; an earlier part of it counts as text before a later part.

    Returns:
        The share in [0, 1]; `None` for an answer of less than 4 tokens.
    """
    if len(answer) < NGRAM:
        return None
    answer = answer[-MAX_TOKENS:]
    room = MAX_TOKENS - len(answer)
    start = max(len(context) - room, 0)
    text = (*context[start:], *answer)
    answer_start = len(text) - len(answer)
    earlier_grams: set[tuple[int, ...]] = set()
    num_covered, covered_end = 0, answer_start
    for end in range(NGRAM, len(text) + 1):
        gram = text[end - NGRAM : end]
        if end - NGRAM >= answer_start and gram in earlier_grams:
            num_covered += end - max(covered_end, end - NGRAM)
            covered_end = end
        earlier_grams.add(gram)
    return num_covered / len(answer)


class RunningOverlap:
    """The mean overlap of the last `WINDOW` answers."""

    def __init__(self) -> None:
        self._values: deque[float] = deque(maxlen=WINDOW)

    def __len__(self) -> int:
        return len(self._values)

    def add(self, value: float) -> None:
        """Adds an answer's overlap."""
        self._values.append(value)

    @property
    def mean(self) -> float | None:
        """The mean; `None` before the first answer."""
        return sum(self._values) / len(self._values) if self._values else None
