"""Prompt lookup on a device against the search on the CPU."""

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
import torch

from engine_adapter.proposers import device_lookup
from engine_adapter.proposers.device_lookup import DeviceLookup, DeviceTokens
from engine_adapter.proposers.ngram import NgramProposer
from tests.engine_adapter.proposers.batches import batch, random_lookups


def tokens_of(rows: Mapping[str, Sequence[int]], *, junk: int = 7, more: int = 0) -> DeviceTokens:
    """The rows as the device has them, scattered; `more`: by how much the longest is overrated."""
    draft_batch = batch(rows, scattered=True, junk=junk)
    return DeviceTokens(
        torch.from_numpy(draft_batch.token_ids.copy()),
        torch.from_numpy(draft_batch.rows),
        torch.from_numpy(draft_batch.num_tokens.astype(np.int32)),
        int(draft_batch.num_tokens.max()) + more,
    )


def padded(drafts: Sequence[int], text: Sequence[int], k: int) -> list[int]:
    return [*drafts, *[text[-1]] * (k - len(drafts))]


@pytest.mark.parametrize("part", [1 << 21, 256])
def test_drafts_of_thousands_of_rows_equal_those_of_the_cpu(
    monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    monkeypatch.setattr(device_lookup, "_PART", part)
    rng = np.random.default_rng(0)
    matched = 0
    for rows, min_n, max_n, k in random_lookups(rng):
        junk = rng.integers(3)
        proposer = NgramProposer(min_n, max_n)
        expected = proposer.propose(batch(rows, k=k)).tokens
        result = proposer.look_up(tokens_of(rows, junk=int(junk), more=int(rng.integers(9))), k)
        drafts, has_match = result[0].tolist(), result[1].tolist()
        texts = rows.values()
        assert drafts == [padded(*each, k) for each in zip(expected, texts, strict=True)]
        assert has_match == [*map(bool, expected)]
        matched += sum(has_match)
    assert 1000 < matched < 4900, "the cases must hold matches and misses"


def test_a_row_of_one_token_has_no_match() -> None:
    drafts, has_match = NgramProposer(1, 5).look_up(tokens_of({"a": [4]}), 3)
    assert (drafts.tolist(), has_match.tolist()) == ([[4, 4, 4]], [False])


def test_rows_without_places_have_no_drafts() -> None:
    drafts, has_match = NgramProposer(1, 5).look_up(tokens_of({"a": [4, 4]}), 0)
    assert (drafts.tolist(), has_match.tolist()) == ([[]], [True])


def test_long_ngrams_are_for_the_cpu() -> None:
    assert isinstance(NgramProposer(1, 17), DeviceLookup)
    assert NgramProposer(1, 17).look_up(tokens_of({"a": [4, 4]}), 3) is None
