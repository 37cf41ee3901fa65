"""What a loaded head that drafts blocks adds to vLLM's."""

from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.needs_vllm


@pytest.fixture
def head() -> Any:
    """A head whose Markov head has a bias for three tokens; token i adds i to each."""
    weights = import_module("engine_adapter.vllm_engine.worker.drafting.head_weights")
    made = object.__new__(weights.LoadedBlockHead)
    of_three = torch.tensor([1.0, 2.0, 3.0])
    made.model = SimpleNamespace(
        markov_embed=lambda tokens: tokens[:, None],
        markov_bias=lambda embedded: of_three + embedded,
        draft_id_to_target_id=None,
    )
    return made


def test_a_bias_for_the_whole_vocabulary_stays_as_it_is(head: Any) -> None:
    logits = torch.full((2, 3), 10.0)
    head.add_bias(logits, torch.tensor([0, 5]))
    assert logits.tolist() == [[11, 12, 13], [16, 17, 18]]


def test_a_head_with_fewer_tokens_has_a_bias_for_these_only(head: Any) -> None:
    """The others cannot be drafted: they keep the logits that vLLM gives them."""
    head.model.draft_id_to_target_id = torch.tensor([1, 1, 3])  # the tokens 1, 2 and 5
    none = float("-inf")
    for _ in range(2):
        logits = torch.tensor([[none, 10.0, 10.0, none, none, 10.0]] * 2)
        head.add_bias(logits, torch.tensor([0, 5]))
        assert logits.tolist() == [
            [none, 11, 12, none, none, 13],
            [none, 16, 17, none, none, 18],
        ]
