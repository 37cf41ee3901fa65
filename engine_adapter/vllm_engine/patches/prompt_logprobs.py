"""The log probabilities of a prompt, which vLLM decodes later and in pieces."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from engine_adapter.vllm_engine import compat

PIECE_SIZE = 64
"""Positions of a prompt that are decoded at once: about 2 ms with 6 alternatives each."""

Position = dict[int, Any] | None
"""Token id -> vLLM's `Logprob`; `None` for a prompt's first token."""


def patch_prompt_logprobs() -> None:
    """Replaces the method with which vLLM's front end decodes the log probabilities of a prompt.

    It decodes a whole prompt on the gateway's event loop: 2000 tokens with 6 alternatives each took
    56 ms on average, and up to 99 ms, in which every other request waited.
    """
    processor = compat.engine_logprobs.LogprobsProcessor
    if processor._update_prompt_logprobs is not _defer:
        UndecodedPrompt.decode = staticmethod(processor._update_prompt_logprobs)
        processor._update_prompt_logprobs = _defer


def _defer(processor: Any, tensors: Any) -> None:
    """Stands for `LogprobsProcessor._update_prompt_logprobs`: the output gets what is undecoded."""
    undecoded = processor.prompt_logprobs
    if not isinstance(undecoded, UndecodedPrompt):
        undecoded = UndecodedPrompt(replace(processor))
        processor.prompt_logprobs = undecoded
    undecoded.add(tensors)


def pieces_of(prompt_logprobs: Any) -> Iterator[list[Position]]:
    """The positions of the `prompt_logprobs` of a vLLM output, in pieces. Call it once.

    A list is one piece: of a prompt of one token vLLM has nothing to decode.
    """
    if isinstance(prompt_logprobs, UndecodedPrompt):
        return prompt_logprobs.pieces()
    return iter([prompt_logprobs])


class UndecodedPrompt:
    """What the `prompt_logprobs` of a vLLM output are until they are decoded.

    Args:
        processor: a copy of the request's `LogprobsProcessor`, with its first position.

    Attributes:
        decode: vLLM's own method, which appends positions to a processor.
    """

    decode: Any

    def __init__(self, processor: Any) -> None:
        self._processor = processor
        self._tensors: list[tuple[Any, ...]] = []

    def add(self, tensors: Any) -> None:
        """Adds the positions of vLLM's `LogprobsTensors`, of which the first three are per token:
        int64 [T, K] token ids, float32 [T, K] log probabilities, int64 [T] ranks."""
        self._tensors.append(tuple(tensors[:3]))

    def pieces(self) -> Iterator[list[Position]]:
        """The positions in their order, decoded a piece at a time. Call it once."""
        positions = self._processor.prompt_logprobs
        yield list(positions)
        for columns in self._tensors:
            for start in range(0, len(columns[0]), PIECE_SIZE):
                num_before = len(positions)
                piece = tuple(column[start : start + PIECE_SIZE] for column in columns)
                # It reads the last positions again: the text of a part of a character depends on
                # the tokens before it.
                self.decode(self._processor, piece)
                yield positions[num_before:]
