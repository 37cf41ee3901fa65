"""The texts of single tokens beside log probabilities, each decoded once."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from demo import model_path
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.prompt_logprobs import (
    UndecodedPrompt,
    patch_prompt_logprobs,
)
from engine_adapter.vllm_engine.patches.token_texts import TokenTexts, patch_token_texts

pytestmark = pytest.mark.needs_vllm


def prompt_texts(tokenizer: Any, token_ids: torch.Tensor) -> list[list[str]]:
    """The texts that vLLM's front end gives the alternatives [positions, alternatives]."""
    processor = compat.engine_logprobs.LogprobsProcessor(
        tokenizer=tokenizer,
        logprobs=None,
        prompt_logprobs=[None],
        cumulative_logprob=None,
        num_logprobs=None,
        num_prompt_logprobs=token_ids.shape[1] - 1,
    )
    logprobs = torch.zeros(token_ids.shape)
    UndecodedPrompt.decode(processor, (token_ids, logprobs, torch.ones(len(token_ids))))
    return [
        [position[token].decoded_token for token in row]
        for position, row in zip(processor.prompt_logprobs[1:], token_ids.tolist(), strict=True)
    ]


def test_vllms_texts_are_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = compat.get_tokenizer(str(model_path()))
    patch_prompt_logprobs()
    # Every token as an alternative; some are parts of characters, whose text depends on those
    # before them.
    seeded = torch.Generator().manual_seed(0)
    token_ids = torch.randperm(len(tokenizer) // 4 * 4, generator=seeded).reshape(-1, 4)
    current = compat.engine_logprobs.convert_ids_list_to_tokens
    # A test before this one may have left the patch.
    original = current._decode if isinstance(current, TokenTexts) else current
    monkeypatch.setattr(compat.engine_logprobs, "convert_ids_list_to_tokens", original)
    expected = prompt_texts(tokenizer, token_ids)
    patch_token_texts()
    patched = compat.engine_logprobs.convert_ids_list_to_tokens
    assert isinstance(patched, TokenTexts)
    for _ in range(2):
        assert prompt_texts(tokenizer, token_ids) == expected
    patch_token_texts()
    assert compat.engine_logprobs.convert_ids_list_to_tokens is patched


def test_a_token_is_decoded_once_for_each_tokenizer() -> None:
    asked: list[tuple[str, list[int]]] = []

    def decode(tokenizer: Any, token_ids: list[int]) -> list[str]:
        asked.append((tokenizer.name, sorted(token_ids)))
        return [f"{tokenizer.name}{token_id}" for token_id in token_ids]

    texts = TokenTexts(decode)
    a, b = SimpleNamespace(name="a"), SimpleNamespace(name="b")
    assert texts(a, [3, 1, 3]) == ["a3", "a1", "a3"]
    assert texts(a, [1, 2]) == ["a1", "a2"]
    assert texts(a, []) == []
    assert texts(b, [1]) == ["b1"]
    assert asked == [("a", [1, 3]), ("a", [2]), ("b", [1])]
