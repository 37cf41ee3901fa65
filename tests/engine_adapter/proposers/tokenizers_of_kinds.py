"""Small tokenizers of the kinds that published models have, with mostly the same tokens."""

from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast


def byte_level(
    specials: Mapping[str, str] | None = None, extra: Sequence[str] = (), first: int = 0
) -> Any:
    """As GPT-2, Llama 3 and Qwen: a space is `Ġ`, and each byte has a character.

    Args:
        specials: role -> special token.
        extra: more tokens, as the vocabulary spells them.
        first: how far the ids are rotated.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = rotated([*alphabet, "Ġthe", "ing", "Ċ" * 2, "Ã©", *extra], first)
    tokenizer = Tokenizer(models.BPE({piece: i for i, piece in enumerate(pieces)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return wrapped(tokenizer, specials)


def byte_fallback(
    specials: Mapping[str, str] | None = None, extra: Sequence[str] = (), first: int = 0
) -> Any:
    """As Llama 2, Mistral and Gemma: a space is `▁`, and bytes without a token are `<0x..>`."""
    letters = [chr(i) for i in range(33, 127)]
    single = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = rotated(["<unk>", *single, "▁", *letters, "▁the", "ing", "é", *extra], first)
    vocabulary = {piece: i for i, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True, unk_token="<unk>"))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return wrapped(tokenizer, {"unk_token": "<unk>", **(specials or {})})


def metaspace(specials: Mapping[str, str] | None = None, extra: Sequence[str] = ()) -> Any:
    """As T5: a unigram vocabulary without bytes, in which a space is `▁`."""
    letters = [chr(i) for i in range(33, 127)]
    pieces = ["<unk>", "▁", *letters, "▁the", "ing", "é", *extra]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="never")
    return wrapped(tokenizer, {"unk_token": "<unk>", **(specials or {})})


def words(names: Sequence[str]) -> Any:
    """Whole words without a decoder."""
    vocabulary = {word: i for i, word in enumerate(("<unk>", *names))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    return wrapped(tokenizer, {"unk_token": "<unk>"})


def wrapped(tokenizer: Tokenizer, specials: Mapping[str, str] | None) -> Any:
    """The tokenizer as transformers has it."""
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **(specials or {}))  # type: ignore[no-untyped-call]


def with_markup(tokenizer: Any, *names: str, special: bool) -> Any:
    """The tokenizer with more added tokens."""
    tokenizer.add_tokens([AddedToken(name, special=special) for name in names])
    return tokenizer


def rotated(pieces: Sequence[str], first: int) -> list[str]:
    return [*pieces[first:], *pieces[:first]]
