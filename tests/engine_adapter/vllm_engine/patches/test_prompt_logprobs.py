"""The log probabilities of a prompt, decoded in pieces."""

from typing import Any

import pytest
import torch

from demo import model_path
from engine_adapter.vllm_engine import compat
from engine_adapter.vllm_engine.patches.prompt_logprobs import (
    PIECE_SIZE,
    UndecodedPrompt,
    patch_prompt_logprobs,
)

pytestmark = pytest.mark.needs_vllm


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    patch_prompt_logprobs()
    return compat.get_tokenizer(str(model_path()))


def new_processor(tokenizer: Any) -> Any:
    return compat.engine_logprobs.LogprobsProcessor(
        tokenizer=tokenizer,
        logprobs=None,
        prompt_logprobs=[None],
        cumulative_logprob=None,
        num_logprobs=None,
        num_prompt_logprobs=2,
    )


def prompt_tensors(tokenizer: Any, count: int) -> tuple[torch.Tensor, ...]:
    """Token ids [T, 3], log probabilities [T, 3] and ranks [T]. Some tokens are parts of
    characters, whose text depends on those before them."""
    seeded = torch.Generator().manual_seed(0)
    texts = "naïve 日本語 🙂 def f(x): " * count
    actual = torch.tensor(tokenizer.encode(texts)[:count])
    others = torch.randint(0, len(tokenizer), (count, 2), generator=seeded)
    token_ids = torch.cat([actual[:, None], others], dim=1)
    return token_ids, -torch.rand(count, 3, generator=seeded), torch.arange(1, count + 1)


def test_the_pieces_are_what_vllm_decodes_at_once(tokenizer: Any) -> None:
    tensors = prompt_tensors(tokenizer, 3 * PIECE_SIZE + 5)
    expected = new_processor(tokenizer)
    UndecodedPrompt.decode(expected, tensors)
    processor = new_processor(tokenizer)
    processor._update_prompt_logprobs(tensors)
    pieces = list(processor.pop_prompt_logprobs().pieces())
    assert [len(piece) for piece in pieces] == [1, PIECE_SIZE, PIECE_SIZE, PIECE_SIZE, 5]
    positions = [position for piece in pieces for position in piece]
    assert positions == expected.prompt_logprobs
    texts = [entry.decoded_token for position in positions[1:] for entry in position.values()]
    assert "🙂" in texts, "the text of several tokens depends on the tokens before them"


def test_a_prompt_that_arrives_in_two_parts_is_decoded_as_one(tokenizer: Any) -> None:
    tensors = prompt_tensors(tokenizer, 40)
    whole, parts = new_processor(tokenizer), new_processor(tokenizer)
    whole._update_prompt_logprobs(tensors)
    for rows in (slice(0, 7), slice(7, 40)):
        parts._update_prompt_logprobs(tuple(column[rows] for column in tensors))
    of_whole, of_parts = (
        [position for piece in processor.pop_prompt_logprobs().pieces() for position in piece]
        for processor in (whole, parts)
    )
    assert of_parts == of_whole


def test_an_output_has_them_once(tokenizer: Any) -> None:
    processor = new_processor(tokenizer)
    processor._update_prompt_logprobs(prompt_tensors(tokenizer, 4))
    assert processor.pop_prompt_logprobs()
    assert not processor.pop_prompt_logprobs()


def test_the_patch_is_made_once(tokenizer: Any) -> None:
    decode = UndecodedPrompt.decode
    patch_prompt_logprobs()
    assert UndecodedPrompt.decode is decode
