"""Filling in: the tokens with which a model was trained to write what stands between two texts."""

from collections.abc import Mapping
from dataclasses import dataclass

FAMILIES = (
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),  # Qwen Coder, CodeGemma
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),  # StarCoder, Granite Code
    ("<fim-prefix>", "<fim-suffix>", "<fim-middle>"),  # SantaCoder
    ("<｜fim▁begin｜>", "<｜fim▁hole｜>", "<｜fim▁end｜>"),  # DeepSeek  # noqa: RUF001
)
"""How a vocabulary writes the tokens before the first text, the second, and what is written."""


@dataclass(frozen=True, slots=True)
class FillInTokens:
    """The ids of these tokens; the prompt is `prefix` first `suffix` second `middle`.

    The order is that of Bavarian et al., "Efficient Training of Language Models to Fill in the
    Middle" (2022), called PSM there.
    """

    prefix: int
    suffix: int
    middle: int


def find_fill_in_tokens(vocabulary: Mapping[str, int]) -> FillInTokens | None:
    """Those of a tokenizer's vocabulary; `None` if it has not all three of a family."""
    for names in FAMILIES:
        if all(name in vocabulary for name in names):
            return FillInTokens(*(vocabulary[name] for name in names))
    return None
