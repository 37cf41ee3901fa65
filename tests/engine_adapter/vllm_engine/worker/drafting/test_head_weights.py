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
        config=SimpleNamespace(vocab_size=6),
    )
    return made


def test_a_bias_for_the_whole_vocabulary_stays_as_it_is(head: Any) -> None:
    assert head.bias_after(torch.tensor([0, 5])).tolist() == [[1, 2, 3], [6, 7, 8]]


def test_a_head_with_fewer_tokens_has_a_bias_for_these_only(head: Any) -> None:
    head.model.draft_id_to_target_id = torch.tensor([1, 1, 3])  # the tokens 1, 2 and 5
    bias = head.bias_after(torch.tensor([0, 5]))
    assert bias.tolist() == [[0, 1, 2, 0, 0, 3], [0, 6, 7, 0, 0, 8]]
