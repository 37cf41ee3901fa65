"""The rules that every engine shares: the draft capacity."""

import pytest

from engine_adapter.proposers.methods import parse_specs
from engine_adapter.seam.config import draft_capacity
from engine_adapter.seam.errors import EngineConfigError


@pytest.mark.parametrize(
    ("ks", "setting", "capacity"),
    [
        ([], None, 5),
        ([3], None, 5),
        ([3, 8], None, 8),
        ([3], 3, 3),
        ([3], 12, 12),
        ([], 2, 2),
    ],
)
def test_the_capacity_is_the_setting_or_the_largest_k_and_at_least_5(
    ks: list[int], setting: int | None, capacity: int
) -> None:
    proposers = [
        {"name": f"n{i}", "method": "ngram", "num_speculative_tokens": k} for i, k in enumerate(ks)
    ]
    assert draft_capacity(parse_specs(proposers), setting) == capacity


def test_a_k_above_the_capacity_is_refused_with_both_numbers() -> None:
    proposers = [
        {"name": "ngram", "num_speculative_tokens": 4},
        {"name": "long", "method": "ngram", "num_speculative_tokens": 9},
    ]
    with pytest.raises(EngineConfigError) as caught:
        draft_capacity(parse_specs(proposers), 8)
    assert caught.value.setting == "proposer"
    assert "long: num_speculative_tokens is 9" in str(caught.value)
    assert "--max-speculative-tokens, 8" in str(caught.value)
