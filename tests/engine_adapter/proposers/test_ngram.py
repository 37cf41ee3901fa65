"""Prompt lookup against a brute-force reference and against vLLM's."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from engine_adapter.proposers.methods import parse_spec
from engine_adapter.proposers.ngram import NgramProposer
from tests.engine_adapter.proposers.batches import batch, random_lookups

BOUNDS = st.tuples(st.integers(1, 6), st.integers(0, 5)).map(lambda p: (p[0], p[0] + p[1]))


def reference(tokens: list[int], min_n: int, max_n: int, k: int) -> list[int]:
    """The definition: longest n-gram first, then the earliest match."""
    for n in range(max_n, min_n - 1, -1):
        for end in range(n, len(tokens)):
            if tokens[end - n : end] == tokens[-n:]:
                return tokens[end : end + k]
    return []


def drafts(tokens: list[int], min_n: int, max_n: int, k: int) -> list[int]:
    (row,) = NgramProposer(min_n, max_n).propose(batch({"a": tokens}, k=k)).tokens
    return list(row)


# Without a deadline: a busy machine makes an example slow, not wrong.
@settings(deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=40), BOUNDS, st.integers(1, 9))
@example([1], (1, 1), 3)
@example([1, 1], (1, 5), 3)
@example([1, 1, 1], (2, 2), 3)
@example([1, 2, 1, 2, 1, 2], (2, 4), 1)
def test_drafts_equal_the_definition(tokens: list[int], bounds: tuple[int, int], k: int) -> None:
    assert drafts(tokens, *bounds, k) == reference(tokens, *bounds, k)


def test_drafts_of_other_members_are_continued_as_if_they_were_text() -> None:
    """The first row's match ends with them; the second row has none."""
    rows = {"a": [1, 2, 3, 4, 5, 1, 2, 3], "b": [6, 7, 6, 0, 0, 0]}
    continued = replace(
        batch(rows, k=3), num_tokens=np.array([6, 3]), num_continued=np.array([2, 0])
    )
    assert NgramProposer(2, 3).propose(continued).tokens == [[4, 5, 1], []]
    assert NgramProposer(1, 3).propose(continued).tokens == [[4, 5, 1], [7, 6]]


def test_drafts_of_thousands_of_rows_equal_the_definition() -> None:
    rng = np.random.default_rng(0)
    matched = 0
    for rows, min_n, max_n, most in random_lookups(rng):
        k = rng.integers(1, most + 1, len(rows)).tolist()
        given_rows = batch(rows, k=k, scattered=bool(rng.integers(2)), junk=int(rng.integers(3)))
        drafted = NgramProposer(min_n, max_n).propose(given_rows).tokens
        of_rows = zip(rows.values(), k, strict=True)
        expected = [reference(tokens, min_n, max_n, most) for tokens, most in of_rows]
        assert drafted == expected
        matched += sum(map(bool, expected))
    assert 1000 < matched < 4900, "the cases must hold matches and misses"


def test_the_longest_ngram_wins_over_an_earlier_short_one() -> None:
    assert drafts([5, 9, 1, 2, 5, 7, 2, 5], 1, 3, 1) == [7]


def test_the_earliest_of_equal_matches_wins() -> None:
    assert drafts([1, 2, 3, 1, 2, 4, 1, 2], 2, 2, 1) == [3]


def test_a_draft_ends_with_the_row() -> None:
    assert drafts([8, 8, 8], 1, 5, 5) == [8]
    assert drafts([1, 2, 1, 2], 1, 2, 8) == [1, 2]


@pytest.mark.parametrize("tokens", [[1], [1, 2], [1, 2, 3, 4]])
def test_a_row_without_a_repetition_gets_no_draft(tokens: list[int]) -> None:
    assert drafts(tokens, 1, 5, 5) == []


def test_a_match_shorter_than_the_minimum_is_ignored() -> None:
    assert drafts([3, 1, 4, 1], 2, 5, 5) == []


def test_each_row_is_searched_by_itself_and_has_its_own_k() -> None:
    rows = {"a": [1, 2, 3, 4, 1, 2], "b": [3, 4], "c": [5, 6, 5, 6, 5, 6]}
    proposed = NgramProposer(2, 5).propose(batch(rows, k=[1, 4, 3], scattered=True)).tokens
    assert [list(row) for row in proposed] == [[3], [], [5, 6]]


def test_draft_tokens_are_python_integers() -> None:
    (row,) = NgramProposer(1, 2).propose(batch({"a": [1, 2, 1]})).tokens
    assert all(type(token) is int for token in row)


def test_the_options_reach_the_proposer() -> None:
    spec = parse_spec({"name": "ngram", "prompt_lookup_min": 3, "prompt_lookup_max": 3})
    from engine_adapter.proposers.ngram import METHOD

    proposer = METHOD.create(spec, None)  # type: ignore[arg-type]
    rows = {"two": [1, 2, 3, 1, 2], "three": [9, 1, 2, 3, 9, 1, 2]}
    assert [list(row) for row in proposer.propose(batch(rows, k=1)).tokens] == [[], [3]]


@pytest.mark.needs_vllm
def test_drafts_equal_those_of_vllm() -> None:
    from vllm.v1.spec_decode.ngram_proposer import (
        _find_longest_matched_ngram_and_propose_tokens as theirs,
    )

    rng = np.random.default_rng(1)
    for _ in range(3000):
        tokens = rng.integers(0, rng.integers(1, 5), rng.integers(1, 50)).astype(np.int32)
        min_n = int(rng.integers(1, 5))
        max_n, k = min_n + int(rng.integers(0, 4)), int(rng.integers(1, 9))
        theirs_drafts = theirs(tokens, min_n, max_n, 1 << 20, k).tolist()
        assert drafts(tokens.tolist(), min_n, max_n, k) == theirs_drafts
