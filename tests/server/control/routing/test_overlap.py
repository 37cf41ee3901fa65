"""Retrieval-likeness: the share of an answer that repeats the text before it."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from server.control.routing.overlap import MAX_TOKENS, WINDOW, RunningOverlap, overlap

QUOTE = [11, 12, 13, 14, 15, 16]


@pytest.mark.parametrize(
    ("before", "answer", "share"),
    [
        (QUOTE, QUOTE, 1.0),
        (QUOTE, [1, 2, 3, 4], 0.0),
        (QUOTE, [1, 2, 11, 12, 13, 14, 3, 4], 0.5),
        (QUOTE, [12, 13, 14, 15, 16, 1, 2, 3, 4, 5], 0.5),
        (QUOTE, [11, 12, 13, 1, 14, 15, 16, 2], 0.0),
        ([], [1, 2, 3, 4, 1, 2, 3, 4], 0.5),
        ([], [7] * 8, 7 / 8),
        ([1, 2], [3, 4, 1, 2, 3, 4], 4 / 6),
        (QUOTE, QUOTE[:3], None),
        (QUOTE, [], None),
    ],
)
def test_it_is_the_share_of_tokens_in_repeated_runs_of_four(
    before: list[int], answer: list[int], share: float | None
) -> None:
    assert overlap(before, answer) == (None if share is None else pytest.approx(share))


def test_it_is_the_definition_computed_slowly() -> None:
    random = Random(3)
    for _ in range(200):
        before = [random.randrange(3) for _ in range(random.randrange(12))]
        answer = [random.randrange(3) for _ in range(random.randrange(4, 16))]
        text = before + answer
        covered = set()
        for end in range(len(before) + 4, len(text) + 1):
            gram = text[end - 4 : end]
            if any(text[i : i + 4] == gram for i in range(end - 4)):
                covered |= set(range(end - 4, end))
        assert overlap(before, answer) == pytest.approx(len(covered) / len(answer))


class CountedTokens(list[int]):
    """Tokens that count how many of them are read."""

    read = 0

    def __getitem__(self, key: Any) -> Any:
        part = super().__getitem__(key)
        self.read += len(part)
        return part

    def __iter__(self) -> Iterator[int]:
        raise AssertionError("all tokens are read")


def test_the_work_is_bounded() -> None:
    """Of a text far beyond the limit, no more is read than of one at the limit."""
    tokens = list(range(MAX_TOKENS))
    assert overlap(tokens, tokens) == 0.0, "the text before the last tokens is not read"
    before, answer = CountedTokens(range(10**5)), CountedTokens(range(10**5))
    assert overlap(before, answer) == 0.0
    assert (before.read, answer.read) == (0, MAX_TOKENS)
    before.read, few = 0, CountedTokens(range(10**5 - 8, 10**5))
    assert overlap(before, few) == 1.0, "the last tokens before are read"
    assert before.read + few.read == MAX_TOKENS


def test_the_running_mean_forgets_old_answers() -> None:
    running = RunningOverlap()
    assert (running.mean, len(running)) == (None, 0)
    for _ in range(WINDOW):
        running.add(1.0)
    for _ in range(WINDOW // 2):
        running.add(0.0)
    assert (running.mean, len(running)) == (0.5, WINDOW)
