"""Suffix decoding: catch-up, lag, and the lifetime of a request's trees."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from engine_adapter.proposers.methods import parse_spec
from engine_adapter.proposers.suffix import METHOD, SuffixProposer
from tests.engine_adapter.proposers.batches import batch

pytest.importorskip("arctic_inference.suffix_decoding")

PATTERN = [11, 12, 13, 14, 15, 16]


def proposer(**options: Any) -> SuffixProposer:
    suffix = METHOD.create(parse_spec({"name": "suffix", **options}), None)  # type: ignore[arg-type]
    assert isinstance(suffix, SuffixProposer)
    return suffix


def step(
    suffix: SuffixProposer, tokens: Sequence[int], k: int = 8, prompt: int = 4, name: str = "r"
) -> list[int]:
    """The drafts of a batch with one row."""
    (row,) = suffix.propose(batch({name: tokens}, k=k, prompt=prompt)).tokens
    return list(row)


def growing_row(rng: np.random.Generator, steps: int, prompt: int) -> list[list[int]]:
    """A row's committed tokens after each step: repetitive, 1 to 4 new tokens per step."""
    tokens = rng.integers(0, 4, prompt).tolist()
    lengths = []
    for _ in range(steps):
        tokens = tokens + rng.integers(0, 4, rng.integers(1, 5)).tolist()
        lengths.append(tokens)
    return lengths


def test_a_repeated_pattern_is_drafted() -> None:
    assert step(proposer(), PATTERN * 3 + PATTERN[:2], k=3) == [13, 14, 15]


@pytest.mark.parametrize("seed", range(20))
def test_drafts_after_catch_up_equal_those_without_a_lag(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = growing_row(rng, steps=12, prompt=6)
    here = sorted(rng.choice(12, 5, replace=False).tolist())
    steady, switched = proposer(), proposer()
    drafted = 0
    for i, tokens in enumerate(rows):
        expected = step(steady, tokens, prompt=6)
        if i in here:
            assert step(switched, tokens, prompt=6) == expected
            drafted += len(expected)
    assert drafted, "without drafts the test compares nothing"


def test_the_new_tokens_of_a_row_reach_the_shared_tree() -> None:
    suffix = proposer()
    step(suffix, [1, 2, 3, 4, 5], name="author")
    step(suffix, [1, 2, 3, 4, 5, *PATTERN], name="author")
    assert step(suffix, [9, 8, 7, 6, 11, 12], k=2, name="reader") == [13, 14]


def test_drafts_of_other_members_are_continued_and_do_not_reach_the_trees() -> None:
    """They may be rejected: the row must not find them as its own text later."""
    suffix, text = proposer(suffix_decoding_max_cached_requests=0), [*PATTERN, 1, 2]
    continued = replace(
        batch({"r": [*text, 12, 13]}, k=2, prompt=4, computed=[len(text) - 1]),
        num_tokens=np.array([len(text)]),
        num_continued=np.array([2]),
    )
    assert [*map(list, suffix.propose(continued).tokens)] == [[14, 15]]
    assert step(suffix, [*text, 5, 2], k=2) == step(proposer(), [*text, 5, 2], k=2) == [5]
    assert suffix._fed == {"r": len(text) + 2}


def test_a_lag_is_counted_once() -> None:
    suffix, lags = proposer(), []
    tokens = list(range(1, 40))
    for length, computed in ((5, 0), (7, 4), (8, 6), (20, 18), (21, 19)):
        drafts = suffix.propose(batch({"r": tokens[:length]}, prompt=4, computed=[computed]))
        lags.append(drafts.catchup_tokens)
    # Between the third and the fourth step another proposer drafted: 10 tokens were read.
    assert lags == [0, 0, 0, 10, 0]


def test_a_lag_is_summed_over_rows() -> None:
    suffix = proposer()
    suffix.propose(batch({"a": range(5), "b": range(6)}, prompt=4, computed=[0, 0]))
    rows = batch({"a": range(9), "b": range(12)}, prompt=4, computed=[8, 11])
    assert suffix.propose(rows).catchup_tokens == (8 - 5) + (11 - 6)


def test_a_row_of_another_proposer_lags_by_its_generated_tokens() -> None:
    suffix = proposer()
    assert suffix.propose(batch({"r": range(10)}, prompt=4, computed=[9])).catchup_tokens == 5


def test_no_row_gets_more_drafts_than_its_own_k() -> None:
    rows = dict.fromkeys("abc", PATTERN * 3)
    proposed = proposer().propose(batch(rows, k=[1, 5, 3], prompt=4, scattered=True)).tokens
    assert [len(row) for row in proposed] == [1, 5, 3]
    assert [list(row) for row in proposed] == [PATTERN[:1], PATTERN[:5], PATTERN[:3]]


def test_drafts_are_bounded_by_the_match_if_k_is_large() -> None:
    drafts = step(proposer(suffix_decoding_max_tree_depth=8), PATTERN * 8, k=200)
    assert 0 < len(drafts) <= 8


def test_the_spec_factor_bounds_drafts_by_the_matched_length() -> None:
    row = [1, 2, 11, 12, 13, 14, 15, 16, 3, 11, 12]
    assert len(step(proposer(suffix_decoding_max_spec_factor=2.0), row)) == 4
    assert len(step(proposer(suffix_decoding_max_spec_factor=1.0), row)) == 2


def test_a_high_probability_threshold_drops_uncertain_tokens() -> None:
    row = [1, 2, 1, 3, 1, 4, 1]
    assert step(proposer(suffix_decoding_min_token_prob=0.9), row, prompt=2) == []
    assert step(proposer(suffix_decoding_min_token_prob=0.1), row, prompt=2) != []


def test_forget_frees_the_requests_own_trees_and_can_be_repeated() -> None:
    suffix = proposer()
    step(suffix, PATTERN * 2)
    assert list(suffix._cache.active_requests) == ["r"]
    suffix.forget(["r", "never seen"])
    suffix.forget(["r"])
    assert not suffix._cache.active_requests
    assert not suffix._fed


def test_outputs_of_ended_requests_are_drafted_for_new_ones() -> None:
    suffix = proposer()
    step(suffix, [1, 2, 3, 4, *PATTERN], name="ended")
    suffix.forget(["ended"])
    assert step(suffix, [9, 8, 7, 6, 11, 12], k=2, name="new") == [13, 14]


def test_without_a_shared_tree_requests_do_not_share_outputs() -> None:
    suffix = proposer(suffix_decoding_max_cached_requests=0)
    step(suffix, [1, 2, 3, 4, *PATTERN], name="ended")
    assert step(suffix, [9, 8, 7, 6, 11, 12], name="new") == []


def test_a_reused_request_id_starts_from_its_new_prompt() -> None:
    suffix = proposer(suffix_decoding_max_cached_requests=0)
    step(suffix, PATTERN * 3)
    suffix.forget(["r"])
    again = [21, 22, 23, 24, 21, 22]
    assert step(suffix, again, k=2) == step(proposer(), again, k=2) == [23, 24]


def test_draft_tokens_are_python_integers() -> None:
    assert all(type(token) is int for token in step(proposer(), PATTERN * 3))
